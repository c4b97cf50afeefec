/**
 * One answer of the model: asked as any client of the OpenAI API does, read as it comes.
 *
 * Turns are what a conversation is made of: {role: "user", content} and what `newAnswer` makes.
 */
import { ApiError, request, told } from "./api.js";
import { eventsOf } from "./events.js";

/** Models that said they have no chat template: they go on with texts. `undefined` is the one whose name is not known yet. */
const untemplated = new Set();

export const hasTemplate = (model) => !untemplated.has(model);

/** The model that was asked while its name was not known is this one. */
export function nameModel(model) {
  if (untemplated.delete(undefined)) untemplated.add(model);
}

/** finish: why it ended, as the server says, or "stopped" by the person. calls: of tools, {id, name, arguments, result}. */
export function newAnswer() {
  return { role: "assistant", content: "", reasoning: "", calls: [], finish: null, error: null, figures: null };
}

/**
 * Fill the answer that ends `turns`; `changed` is called after every part. Throws ApiError; when stopped, it just ends.
 *
 * model: tells the name, or undefined while it is not known; that may change while the answer comes.
 */
export async function ask({ turns, settings, model, signal, changed }) {
  const answer = turns.at(-1);
  const before = turns.slice(0, -1);
  const common = { model: model(), stream: true, stream_options: { include_usage: true }, ...settings.sampling };
  try {
    if (hasTemplate(model())) {
      try {
        const body = { ...common, messages: messagesOf(before, settings.system), ...(settings.tools && { tools: settings.tools }) };
        return await read("v1/chat/completions", body, { answer, signal, changed });
      } catch (error) {
        if (error.code !== "chat_template_missing") throw error;
        untemplated.add(model());
      }
    }
    return await read("v1/completions", { ...common, prompt: textOf(before, settings.system) }, { answer, signal, changed });
  } catch (error) {
    if (!signal.aborted) throw error;
    answer.finish = "stopped";
  }
}

async function read(path, body, { answer, signal, changed }) {
  const pace = new Pace();
  const response = await request(path, { body, signal });
  let whole = false;
  try {
    for await (const { name, data } of eventsOf(response.body)) {
      if (data === "[DONE]") {
        whole = true;
        break;
      }
      const event = JSON.parse(data);
      if (name === "error" || event.error) throw told(event.error, response.status);
      const choice = event.choices?.[0];
      if (choice && take(answer, choice)) pace.token();
      if (choice?.finish_reason) answer.finish = choice.finish_reason;
      answer.figures = pace.figures(event.usage);
      changed();
    }
  } catch (error) {
    if (error instanceof ApiError || signal.aborted) throw error;
    throw new ApiError("The connection broke before the answer was whole.");
  }
  if (!whole) throw new ApiError("The answer ended before it was whole.");
}

/** Add a chunk; whether it had anything of the answer. */
function take(answer, choice) {
  const delta = choice.delta ?? { content: choice.text };
  answer.content += delta.content ?? "";
  answer.reasoning += delta.reasoning_content ?? "";
  for (const part of delta.tool_calls ?? []) {
    const call = (answer.calls[part.index] ??= { id: "", name: "", arguments: "", result: "" });
    call.id = part.id ?? call.id;
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);
}

/** What chat completions take. Templates want user and assistant in turn, so texts that an error left unanswered become one. */
function messagesOf(turns, system) {
  const messages = system ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") {
      if (messages.at(-1)?.role === "user") messages.at(-1).content += `\n\n${turn.content}`;
      else messages.push({ role: "user", content: turn.content });
    } else if (turn.content || turn.calls.length) {
      messages.push({
        role: "assistant",
        content: turn.content,
        ...(turn.calls.length && {
          tool_calls: turn.calls.map(({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } })),
        }),
      });
      for (const { id, result } of turn.calls) messages.push({ role: "tool", tool_call_id: id, content: result });
    }
  }
  return messages;
}

function textOf(turns, system) {
  return (system ? `${system}\n\n` : "") + turns.map((turn) => turn.content).join("");
}

/** How fast an answer comes. Chunks are counted until the server says how many tokens there were: most have one. */
class Pace {
  #began = performance.now();
  #first = null;
  #last = null;
  #chunks = 0;

  token() {
    this.#last = performance.now();
    this.#first ??= this.#last;
    this.#chunks += 1;
  }

  /** {ttft_s, tokens, rate, exact}; rate is in tokens/s from the first to the last, null where chunks do not tell when they came. */
  figures(usage) {
    if (this.#first === null) return null;
    const tokens = usage?.completion_tokens ?? this.#chunks;
    const span_s = (this.#last - this.#first) / 1000;
    return {
      ttft_s: (this.#first - this.#began) / 1000,
      tokens,
      rate: this.#chunks > 1 && this.#chunks * 2 > tokens && span_s > 0 ? (tokens - 1) / span_s : null,
      exact: Boolean(usage),
    };
  }
}
