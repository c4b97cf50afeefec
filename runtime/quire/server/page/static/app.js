/** The page: a conversation, its settings, a key where one is needed, gauges. */
import { key, request } from "./api.js";
import { ask, hasTemplate, nameModel, newAnswer } from "./ask.js";
import { announce, byId } from "./dom.js";
import { Gauges } from "./gauges.js";
import { askForKey } from "./keys.js";
import { Settings } from "./settings.js";
import { AnswerView, userTurn } from "./turns.js";

const KEPT = "quire.turns";

const log = byId("log");
const prompt = byId("prompt");
const model = byId("model");
const settings = new Settings(byId("settings-form"));

let turns = [];
let views = [];
let running = null; // the AbortController of the answer that comes

// --- the conversation ---

function add(turn) {
  turns.push(turn);
  byId("empty").hidden = true;
  const view = turn.role === "user" ? null : new AnswerView(turn, { again, send: goOn });
  views.push(view);
  log.append(view?.element ?? userTurn(turn));
  return view;
}

function refresh() {
  views.forEach((view, index) => {
    const last = index === views.length - 1;
    view?.update({ busy: last && running !== null, last });
  });
}

function submit() {
  const text = prompt.value;
  if (running || !text.trim()) return;
  if (!settings.read()) return badSettings();
  prompt.value = "";
  fitPrompt();
  add({ role: "user", content: hasTemplate(chosenModel()) ? text.trim() : text });
  goOn();
}

function again() {
  if (running || !settings.read()) return badSettings();
  turns.pop();
  views.pop().element.remove();
  goOn();
}

function badSettings() {
  if (running) return;
  showSettings(true);
  settings.complain();
}

/** Have the model answer what is there. */
async function goOn() {
  const given = settings.read();
  if (running || !given) return badSettings();
  running = new AbortController();
  const answer = newAnswer();
  add(answer);
  setBusy(true);
  refresh();
  scrollDown();
  announce("The model answers.");
  gauges.poll();
  try {
    while (true) {
      try {
        await ask({ turns, settings: given, model: chosenModel, signal: running.signal, changed: soon });
        break;
      } catch (error) {
        if (error.status !== 401 || !(await askForKey())) throw error;
        gauges.poll();
        loadModels();
      }
    }
  } catch (error) {
    answer.error = error.message;
  }
  running = null;
  const following = isAtEnd();
  setBusy(false);
  refresh();
  if (following) scrollDown();
  announce(answer.error ?? (answer.finish === "stopped" ? "Stopped." : "The answer is there."));
  gauges.poll();
  keep();
}

let drawing = false;

/** Show the last answer with the next frame; chunks that come before it are shown together. */
function soon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!running) return;
    const following = isAtEnd();
    showNote();
    views.at(-1)?.update({ busy: true, last: true });
    if (following) scrollDown();
  });
}

function isAtEnd() {
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
}

function scrollDown() {
  log.scrollTop = log.scrollHeight;
}

function setBusy(busy) {
  const focused = document.activeElement;
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  showNote();
  if (focused === byId("send") || focused === byId("stop")) prompt.focus();
}

/** Say where texts are gone on with instead of answered. */
function showNote() {
  byId("note").hidden = hasTemplate(chosenModel());
}

function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(turns));
  } catch {
    sessionStorage.removeItem(KEPT); // too long for the browser
  }
}

function startAnew() {
  running?.abort();
  turns = [];
  views = [];
  log.replaceChildren(byId("empty"));
  byId("empty").hidden = false;
  keep();
  prompt.focus();
}

// --- models and keys ---

/** Its name, or undefined until the server told the names. */
function chosenModel() {
  return model.disabled ? undefined : model.value;
}

async function loadModels() {
  byId("forget-key").hidden = !key.get();
  try {
    const { data } = await (await request("v1/models")).json();
    const chosen = model.value;
    nameModel(data[0]?.id); // who does not name one asks the first
    model.replaceChildren(...data.map(({ id }) => new Option(id, id)));
    if (data.some(({ id }) => id === chosen)) model.value = chosen;
    model.disabled = false;
    showNote();
  } catch (error) {
    if (error.status === 401 && (await askForKey())) {
      gauges.poll();
      await loadModels();
    }
  }
}

// --- what a person does ---

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function showSettings(shown) {
  byId("settings").hidden = !shown;
  byId("open-settings").setAttribute("aria-expanded", String(shown));
  document.body.classList.toggle("with-settings", shown);
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  // A key that ends a word of an input method is none of ours.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new-chat").addEventListener("click", startAnew);
byId("open-settings").addEventListener("click", () => {
  const shown = byId("settings").hidden;
  showSettings(shown);
  if (shown) byId("system").focus();
});
byId("close-settings").addEventListener("click", () => {
  showSettings(false);
  byId("open-settings").focus();
});
byId("forget-key").addEventListener("click", () => {
  key.forget();
  byId("forget-key").hidden = true;
  gauges.poll();
});
model.addEventListener("change", showNote);
window.addEventListener("pagehide", () => {
  if (running && turns.length) turns.at(-1).finish = "stopped";
  keep();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || byId("key-dialog").open) return;
  if (running) running.abort();
  else if (!byId("settings").hidden) byId("close-settings").click();
});

const gauges = new Gauges((state) => {
  if (state !== "lost") loadModels(); // also when it is ready: the name may only be known now
});
for (const turn of JSON.parse(sessionStorage.getItem(KEPT) ?? "[]")) add(turn);
refresh();
scrollDown();
