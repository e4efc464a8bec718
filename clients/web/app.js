// Puts the page together.

import * as api from "./api.js";
import { byId, make } from "./dom.js";
import { installKeyDialog } from "./key_dialog.js";
import { installKeyboard } from "./keyboard.js";
import { LiveView } from "./live.js";
import { Playground } from "./playground.js";
import { showProblem } from "./problems.js";

const LOOK_FOR_MODELS = 15_000; // ms

const playground = new Playground();
const live = new LiveView({
  ownRequest: () => playground.request,
  onFleet: () => loadModels(),
});

let known = null;

function showModels(models) {
  const names = [...new Set(models)].sort();
  if (JSON.stringify(names) === known) return;
  known = JSON.stringify(names);
  const select = byId("model");
  const chosen = select.value;
  select.replaceChildren(
    ...(names.length
      ? names.map((name) => make("option", { value: name }, name))
      : [make("option", { value: "", disabled: true, selected: true }, "none is served")]),
  );
  if (names.includes(chosen)) select.value = chosen;
}

async function loadModels() {
  try {
    showModels(await api.models());
  } catch (error) {
    if (known === null) showModels([]);
    if (error.status === 401) showProblem(error, {});
  }
}

installKeyDialog(() => {
  byId("problem").hidden = true;
  known = null;
  loadModels();
  live.restart();
  playground.resume();
});
installKeyboard(playground);
await loadModels();
playground.resume();
live.start();
setInterval(() => {
  if (!document.hidden) loadModels();
}, LOOK_FOR_MODELS);
