// Shortcuts. None is a single letter: those belong to whoever types, and to screen readers.

import { byId } from "./dom.js";

/** `playground` has `send`, `stop`, `clear` and `busy`. */
export function installKeyboard(playground) {
  const places = { KeyP: "prompt", KeyO: "output", KeyV: "live" };
  byId("open-keyboard").addEventListener("click", () => byId("keyboard-dialog").showModal());
  for (const link of document.querySelectorAll('a[href^="#"]')) {
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the address holds the request
      go(link.getAttribute("href").slice(1));
    });
  }
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) playground.send();
    else if (event.key === "Escape" && playground.busy) playground.stop();
    else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code in places) go(places[event.code]);
    else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code === "KeyN") playground.clear();
    else return;
    event.preventDefault();
  });
}

function go(id) {
  byId(id).focus({ preventScroll: true });
  byId(id).scrollIntoView({ block: "nearest" });
}
