/** How turns of a conversation look. */
import { copyButton, element } from "./dom.js";
import { Markdown } from "./markdown.js";

const REASONS = {
  length: "cut at the limit of tokens",
  stopped: "stopped",
  content_filter: "ended by a filter",
  abort: "ended by the server",
  error: "failed",
};

/** What a person wrote, as it was written. */
export function userTurn(turn) {
  return element("article", { class: "turn user", "aria-label": "You" }, element("div", { class: "text" }, turn.content));
}

/** An answer, which `update` shows as it is now. again, send: what the buttons do. */
export class AnswerView {
  #turn;
  #text;
  #reasoning;
  #written;
  #thought;
  #calls = element("div", { class: "calls" });
  #figures = element("span", { class: "figures" });
  #error = element("p", { class: "error", role: "alert", hidden: true });
  #copy = copyButton(() => this.#turn.content);
  #again = element("button", { type: "button", class: "small" }, "Regenerate");
  #send = element("button", { type: "button", class: "small primary", hidden: true }, "Send results");

  constructor(turn, { again, send }) {
    this.#turn = turn;
    const thoughts = element("div", { class: "text" });
    this.#reasoning = element("details", { class: "reasoning", hidden: true }, element("summary", {}, "Reasoning"), thoughts);
    this.#text = element("div", { class: "text" });
    this.#written = new Markdown(this.#text);
    this.#thought = new Markdown(thoughts);
    this.#again.addEventListener("click", again);
    this.#send.addEventListener("click", send);
    const footer = element("footer", {}, this.#figures, this.#copy, this.#again);
    this.element = element(
      "article",
      { class: "turn assistant", "aria-label": "Answer" },
      this.#reasoning,
      this.#text,
      this.#calls,
      this.#send,
      this.#error,
      footer,
    );
  }

  /** busy: more will come. last: it ends the conversation. */
  update({ busy, last }) {
    const turn = this.#turn;
    this.element.setAttribute("aria-busy", String(busy));
    this.#reasoning.hidden = !turn.reasoning;
    this.#thought.update(turn.reasoning);
    this.#written.update(turn.content);
    this.#showCalls();
    this.#send.hidden = busy || !last || turn.calls.length === 0;
    this.#error.hidden = !turn.error;
    this.#error.textContent = turn.error ?? "";
    this.#copy.hidden = !turn.content;
    this.#again.hidden = busy || !last;
    this.#again.textContent = turn.error ? "Try again" : "Regenerate";
    this.#figures.textContent = figuresOf(turn);
  }

  #showCalls() {
    this.#turn.calls.forEach((call, index) => {
      const shown = this.#calls.children[index] ?? this.#calls.appendChild(callElement(call, index));
      shown.querySelector("code").textContent = `${call.name}(${pretty(call.arguments)})`;
    });
  }
}

function callElement(call, index) {
  const id = `result-${Math.random().toString(36).slice(2)}-${index}`;
  const result = element("textarea", { id, rows: 2, value: call.result, spellcheck: false });
  result.addEventListener("input", () => (call.result = result.value));
  const code = element("pre", { tabIndex: 0, role: "region", "aria-label": "Call of a tool" }, element("code"));
  return element("div", { class: "call" }, element("p", { class: "call-title" }, "Calls a tool"), code, element("label", { htmlFor: id }, "Result"), result);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // not whole yet
  }
}

function figuresOf({ figures, finish }) {
  const parts = [];
  if (figures) {
    parts.push(`TTFT ${figures.ttft_s.toFixed(2)} s`);
    if (figures.rate !== null) parts.push(`${figures.rate.toFixed(1)} tokens/s`);
    parts.push(`${figures.exact ? "" : "≈ "}${figures.tokens} ${figures.tokens === 1 ? "token" : "tokens"}`);
  }
  if (finish in REASONS) parts.push(REASONS[finish]);
  return parts.join(" · ");
}
