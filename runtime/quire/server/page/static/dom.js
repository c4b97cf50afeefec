/** Elements. Text becomes text nodes here, never HTML. */

/** A new element. properties are set as such, but `class`, `role`, `data-*` and `aria-*` as attributes. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class" || name === "role" || name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

/** Say something to those who hear the page. */
export function announce(text) {
  byId("announce").textContent = text;
}

/** Put text on the clipboard; browsers offer `navigator.clipboard` on https and on this machine only. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = element("textarea", { value: text, class: "hidden" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A button that copies what `text()` gives, and says so. */
export function copyButton(text) {
  const button = element("button", { type: "button", class: "small" }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copyText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not copied";
    }
    announce(button.textContent);
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return button;
}
