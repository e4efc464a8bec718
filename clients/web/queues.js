// The queues: three channels for each model, filled as far as requests wait in them.

import { make, reconcile, setText } from "./dom.js";
import { count, seconds } from "./format.js";

export function showQueues(parent, queues) {
  const models = [...new Set(queues.map((queue) => queue.model))];
  reconcile(parent, models, (model) => model, createTable, (table, model) => {
    const rows = queues.filter((queue) => queue.model === model);
    reconcile(table.tBodies[0], rows, (queue) => queue.priority, createRow, updateRow);
  });
}

function createTable(model) {
  const heads = ["Priority", "Waiting", "", "With a worker", "Longest wait"];
  return make("table", { class: "queues" },
    make("caption", {}, model),
    make("thead", {}, make("tr", {}, ...heads.map((head) =>
      head ? make("th", { scope: "col" }, head) : make("td", {}),
    ))),
    make("tbody"));
}

function createRow(queue) {
  return make("tr", { class: queue.priority },
    make("th", { scope: "row" }, queue.priority),
    make("td", { class: "number" }),
    make("td", { class: "channel", "aria-hidden": "true" }, make("div", { class: "water" })),
    make("td", { class: "number" }),
    make("td", { class: "number" }));
}

function updateRow(row, queue) {
  const [waiting, channel, taken, oldest] = [...row.cells].slice(1);
  setText(waiting, count(queue.waiting));
  setText(taken, count(queue.delivered));
  setText(oldest, seconds(queue.oldest_seconds));
  // Each doubling fills as much more of the channel: one request shows, ten thousand still fit.
  const fill = Math.min(1, Math.log2(1 + queue.waiting) / 13);
  channel.firstElementChild.style.setProperty("--fill", `${100 * fill}%`);
  row.classList.toggle("dry", queue.waiting === 0);
}
