// The dialog that takes the API key.

import { apiKey } from "./api.js";
import { byId, setText } from "./dom.js";

export function askForKey() {
  byId("key-input").value = "";
  byId("key-dialog").showModal();
}

/** `onChange` is called when there is another key, or none any more. */
export function installKeyDialog(onChange) {
  const dialog = byId("key-dialog");
  const show = () => setText(byId("key-state"), apiKey.get() ? " (set)" : "");
  byId("open-key").addEventListener("click", askForKey);
  dialog.addEventListener("close", () => {
    const key = byId("key-input").value.trim();
    byId("key-input").value = "";
    if (dialog.returnValue === "use" && key) apiKey.set(key);
    else if (dialog.returnValue === "forget") apiKey.set("");
    else return;
    dialog.returnValue = "";
    show();
    onChange();
  });
  show();
}
