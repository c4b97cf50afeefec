// The official JavaScript client: chat, streams, tools, log probabilities, echo, responses, errors.
// node openai.mjs URL MODEL FOLDER, which has node_modules.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, model, packages] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${packages}/`));
const { default: OpenAI, BadRequestError, NotFoundError } = require("openai");
const api = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 120_000 });

const question = [{ role: "user", content: "What is the capital of France?" }];
const greedy = { model, temperature: 0, max_tokens: 20 };
const parameters = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, unit: { enum: ["celsius", "fahrenheit"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", description: "The weather", parameters } }];

const models = await api.models.list();
assert.deepEqual(models.data.map((one) => one.id), [model]);

const whole = await api.chat.completions.create({ ...greedy, messages: question, logprobs: true, top_logprobs: 2 });
assert.equal(whole.choices[0].message.content, "The capital of France is Paris.");
assert.equal(whole.choices[0].finish_reason, "stop");
const told = whole.choices[0].logprobs.content;
assert.equal(told.map((one) => one.token).join(""), "The capital of France is Paris.");
assert.ok(told.every((one) => one.top_logprobs.length === 2 && one.logprob <= 0));

const asked = { ...greedy, messages: question, stream: true, stream_options: { include_usage: true } };
let text = "", usage = null, reason = null;
for await (const chunk of await api.chat.completions.create(asked)) {
  text += chunk.choices[0]?.delta?.content ?? "";
  reason = chunk.choices[0]?.finish_reason ?? reason;
  usage = chunk.usage ?? usage;
}
assert.deepEqual([text, reason], ["The capital of France is Paris.", "stop"]);
assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [whole.usage.prompt_tokens, whole.usage.completion_tokens]);

const runner = api.chat.completions.stream({ ...greedy, max_tokens: 100, messages: [{ role: "user", content: "Weather in Paris?" }], tools, tool_choice: "required", parallel_tool_calls: false });
let pieces = "";
runner.on("tool_calls.function.arguments.delta", (event) => (pieces += event.arguments_delta));
const final = await runner.finalChatCompletion();
const [call] = final.choices[0].message.tool_calls;
assert.equal(final.choices[0].finish_reason, "tool_calls");
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)).sort(), ["city", "unit"]);
if (pieces) assert.equal(pieces, call.function.arguments);

const scored = await api.completions.create({ model, prompt: "The capital of France is Paris", max_tokens: 0, echo: true, logprobs: 1 });
const { tokens, token_logprobs } = scored.choices[0].logprobs;
assert.equal(tokens.join(""), "The capital of France is Paris");
assert.equal(token_logprobs[0], null);
assert.ok(token_logprobs.slice(1).every((one) => one <= 0));

const response = await api.responses.create({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 20 });
assert.equal(response.output_text, "The capital of France is Paris.");
let deltas = "";
for await (const event of await api.responses.create({ model, input: "What is the capital of France?", temperature: 0, max_output_tokens: 20, stream: true })) {
  if (event.type === "response.output_text.delta") deltas += event.delta;
}
assert.equal(deltas, response.output_text);

await assert.rejects(api.chat.completions.create({ ...greedy, messages: question, top_p: 7 }), (error) => {
  assert.ok(error instanceof BadRequestError);
  assert.deepEqual([error.status, error.param], [400, "top_p"]);
  return true;
});
await assert.rejects(api.chat.completions.create({ ...greedy, model: "nobody", messages: question }), NotFoundError);

// A client that leaves: the connection is closed, which ends the answer in the engine.
const left = await api.chat.completions.create({ ...greedy, max_tokens: 400, ignore_eos: true, messages: question, stream: true });
for await (const _ of left) { left.controller.abort(); break; }
for (let load = null; load?.server_load !== 0; ) load = await (await fetch(`${url}/load`)).json();
