/** The dialog that asks for a key. */
import { key } from "./api.js";
import { byId } from "./dom.js";

let open = null;

/** Ask for a key, and keep it; whether one was given. Who asks while it is open waits for the same one. */
export function askForKey() {
  open ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const field = byId("key");
    byId("key-refused").hidden = !key.get();
    key.forget();
    field.value = "";
    const give = (event) => {
      event.preventDefault();
      key.set(field.value.trim());
      dialog.close("given");
    };
    const cancel = () => dialog.close("");
    byId("key-form").addEventListener("submit", give);
    byId("key-cancel").addEventListener("click", cancel);
    dialog.addEventListener(
      "close",
      () => {
        byId("key-form").removeEventListener("submit", give);
        byId("key-cancel").removeEventListener("click", cancel);
        const given = dialog.returnValue === "given";
        dialog.returnValue = "";
        field.value = "";
        open = null;
        resolve(given);
      },
      { once: true },
    );
    dialog.showModal();
  });
  return open;
}
