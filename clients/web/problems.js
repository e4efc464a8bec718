// What went wrong, in words, with the one thing that can be done about it.

import { byId, setText } from "./dom.js";
import { askForKey } from "./key_dialog.js";

let countdown = null;

/** `gone`: the request that is shown is unknown. `onRetry` and `onForget` are what the button may do. */
export function showProblem(error, { gone = false, onRetry, onForget }) {
  const { words, label, action, wait } = explained(error, gone, onRetry, onForget);
  setText(byId("problem-text"), words);
  const button = byId("problem-action");
  button.hidden = !action;
  button.onclick = action ?? null;
  byId("problem").hidden = false;
  clearInterval(countdown);
  countDown(button, label, wait);
}

export function hideProblem() {
  clearInterval(countdown);
  byId("problem").hidden = true;
}

function explained(error, gone, onRetry, onForget) {
  const said = error.message;
  const again = { label: "Try again", action: onRetry, wait: 0 };
  if (error.status === 401) {
    return { words: "The gateway needs an API key, and this one is missing or not valid.", label: "Enter the key", action: askForKey };
  }
  if (gone) {
    return {
      words: "This request is not known: its result has expired, or it belongs to someone else.",
      label: "Start anew",
      action: onForget,
    };
  }
  if (error.status === 429) return { words: said, ...again, wait: error.retryAfter ?? 1 };
  if (error.code === "empty") return { words: said };
  if (error.code === "unreachable") return { words: `${said} Is it running, and is there a network?`, ...again };
  if (error.passes) return { words: said, ...again, wait: error.retryAfter ?? 0 };
  if (error.param === "model" && !said.includes("served")) {
    return { words: "No model is served at the moment. Start a worker, then try again.", ...again };
  }
  if (error.code === "invalid_request" && /chat template/.test(said)) {
    return { words: `${said}. This model continues text: choose “Prompt”.` };
  }
  return { words: said };
}

function countDown(button, label, wait) {
  let left = Math.ceil(wait ?? 0);
  const show = () => {
    button.disabled = left > 0;
    setText(button, left > 0 ? `${label} in ${left} s` : (label ?? ""));
    if (left-- <= 0) clearInterval(countdown);
  };
  show();
  if (left >= 0) countdown = setInterval(show, 1000);
}
