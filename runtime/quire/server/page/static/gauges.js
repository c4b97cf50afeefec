/** What the engine is doing, asked of `/load` while the page is seen. */
import { request } from "./api.js";
import { byId } from "./dom.js";

const BUSY_MS = 1000;
const IDLE_MS = 2000;
const LOST_MS = 5000;

const STATES = { loading: "loading the model", ready: "ready", draining: "shutting down", dead: "the engine is gone" };

export class Gauges {
  #timer = null;
  #asking = null;
  #state = "unknown";
  #became;

  /** became: told of each new state. */
  constructor(became) {
    this.#became = became;
    document.addEventListener("visibilitychange", () => this.#look());
    this.#look();
  }

  /** Ask now, where the page is seen, and then from time to time; hidden, it asks nothing. */
  #look() {
    clearTimeout(this.#timer);
    this.#timer = null;
    if (!document.hidden) this.poll();
  }

  async poll() {
    clearTimeout(this.#timer);
    this.#asking?.abort();
    const asking = (this.#asking = new AbortController());
    let wait_ms = LOST_MS;
    try {
      const load = await (await request("load", { signal: asking.signal })).json();
      wait_ms = load.server_load ? BUSY_MS : IDLE_MS;
      this.#show(load);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#show({ state: error.status === 401 ? "locked" : "lost", message: error.message });
    }
    if (asking.signal.aborted || document.hidden) return;
    this.#timer = setTimeout(() => this.poll(), wait_ms);
  }

  #show({ state, message, running, waiting, cache_usage }) {
    const place = byId("state");
    place.dataset.state = state;
    place.textContent = { ...STATES, locked: "needs a key", lost: "cannot be reached" }[state] ?? state;
    place.title = message ?? "";
    byId("running").textContent = running ?? "–";
    byId("waiting").textContent = waiting ?? "–";
    const used = typeof cache_usage === "number" ? Math.round(cache_usage * 100) : null;
    byId("cache-text").textContent = used === null ? "–" : `${used} %`;
    byId("cache").setAttribute("aria-valuenow", used ?? 0);
    byId("cache").firstElementChild.style.width = `${used ?? 0}%`;
    byId("cache").dataset.level = used >= 95 ? "full" : used >= 80 ? "high" : "";
    if (state !== this.#state) this.#became((this.#state = state));
  }
}
