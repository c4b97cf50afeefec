/** What is asked for besides the messages; kept in this tab. */

const KEPT = "quire.settings";

export class Settings {
  #form;
  #fields;

  constructor(form) {
    this.#form = form;
    this.#fields = [...form.querySelectorAll("[data-kind]")];
    const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
    for (const field of this.#fields) field.value = kept[field.id] ?? "";
    form.addEventListener("input", () => this.#keep());
    form.addEventListener("reset", () => setTimeout(() => this.#keep()));
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  /** {system, tools, sampling}, or null where a field is no good, which the form then shows. */
  read() {
    for (const field of this.#fields) field.setCustomValidity(problem(field));
    if (!this.#form.checkValidity()) return null;
    const sampling = {};
    let tools = null;
    for (const field of this.#fields) {
      if (!field.value.trim()) continue;
      if (field.dataset.kind === "number") sampling[field.id] = field.valueAsNumber;
      else if (field.dataset.kind === "lines") sampling.stop = field.value.split("\n").filter((line) => line !== "");
      else if (field.dataset.kind === "json") tools = JSON.parse(field.value);
    }
    const system = this.#fields.find((field) => field.id === "system").value.trim();
    return { system, tools, sampling };
  }

  /** Point at the first field that is no good. */
  complain() {
    this.#form.reportValidity();
  }

  #keep() {
    const values = Object.fromEntries(this.#fields.map((field) => [field.id, field.value]));
    sessionStorage.setItem(KEPT, JSON.stringify(values));
  }
}

function problem(field) {
  if (field.dataset.kind !== "json" || !field.value.trim()) return "";
  try {
    return Array.isArray(JSON.parse(field.value)) ? "" : "This must be a JSON list.";
  } catch (error) {
    return `This is no JSON: ${error.message}`;
  }
}
