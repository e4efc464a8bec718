// A panel for each worker: its blocks, and its sequences on their way through prefill and decode.

import { BlockMap } from "./block_map.js";
import { make, reconcile, setText } from "./dom.js";
import { count, plural, rate, seconds } from "./format.js";
import { SequenceColours } from "./sequence_colours.js";

const PRIORITIES = ["high", "normal", "low"];
const LONG_SILENCE = 8; // seconds without a word, of 15 after which others take over
const LEGEND = [
  ["--cell-free", "free"], ["--cell-kept", "free, kept for reuse"], ["--cell-shared", "shared"],
];

export class WorkerPanels {
  #parent;
  #ownRequest;
  #panels = new WeakMap();

  constructor(parent, ownRequest) {
    this.#parent = parent;
    this.#ownRequest = ownRequest;
  }

  show(workers) {
    const create = (worker) => {
      const panel = new WorkerPanel(worker, this.#ownRequest);
      this.#panels.set(panel.element, panel);
      return panel.element;
    };
    reconcile(this.#parent, workers, (worker) => `${worker.model}/${worker.name}`, create, (element, worker) =>
      this.#panels.get(element).show(worker));
  }
}

class WorkerPanel {
  #ownRequest;
  #colours = new SequenceColours();
  #facts = make("p", { class: "quiet worker-facts" });
  #foot = make("span");
  #body = make("tbody");
  #none = make("p", { class: "quiet" }, "Nothing runs.");
  #table;
  #map;
  #kept = null; // id of the sequence that was clicked

  constructor(worker, ownRequest) {
    this.#ownRequest = ownRequest;
    this.#map = new BlockMap(this.#colours);
    this.#table = make("table", { class: "sequences" },
      make("caption", { class: "hidden" }, `What ${worker.name} runs`),
      make("thead", { class: "hidden" }, make("tr", {},
        ...["Request", "State", "Progress", "Blocks"].map((head) => make("th", { scope: "col" }, head)))),
      this.#body);
    this.element = make("article", { class: "worker", "aria-label": `Worker ${worker.name}` },
      make("header", {}, make("h4", {}, worker.name), this.#facts),
      this.#map.element,
      make("p", { class: "quiet legend" }, this.#foot,
        ...LEGEND.map(([property, words]) => make("span", { class: "key" }, swatch(property), words))),
      this.#table, this.#none);
  }

  show(worker) {
    const silent = worker.age_seconds !== null && worker.age_seconds > LONG_SILENCE;
    setText(this.#facts, [
      worker.model, `${rate(worker.tokens_per_second)} tokens/s`, `${count(worker.running)} running`,
      ...(worker.waiting ? [`${count(worker.waiting)} waiting`] : []),
      ...(silent ? [`silent for ${seconds(worker.age_seconds)}`] : []), `version ${worker.version}`,
    ].join(" · "));
    this.#facts.classList.toggle("warn-text", silent);
    this.#colours.assign(worker.sequences.map(({ id }) => id));
    if (!worker.sequences.some(({ id }) => id === this.#kept)) this.#choose(null, true);
    const { block_size: size, block_stride: stride } = worker;
    setText(this.#foot, size ? `${stride > 1 ? `1 cell of ${stride} blocks, ` : ""}${plural(size, "token")} a block` : "");
    this.#map.show(worker);
    reconcile(this.#body, worker.sequences, ({ id }) => id, (item) => this.#createRow(item), (row, item) => this.#updateRow(row, item));
    this.#table.hidden = !worker.sequences.length;
    this.#none.hidden = worker.sequences.length > 0;
  }

  #choose(id, keep = false) {
    if (keep) this.#kept = id;
    this.#map.choose(id ?? this.#kept);
  }

  #createRow({ id }) {
    const button = make("button", {
      type: "button", class: "sequence", "aria-pressed": "false", title: `${id}: show its blocks`,
      click: () => this.#choose(this.#kept === id ? null : id, true),
      focus: () => this.#choose(id), blur: () => this.#choose(null),
    }, swatch(this.#colours.of(id)), make("code", {}, id.slice(-8)), make("span", { class: "own" }));
    return make("tr", { pointerenter: () => this.#choose(id), pointerleave: () => this.#choose(null) },
      make("th", { scope: "row" }, button),
      make("td", { class: "state" }),
      make("td", { class: "progress" },
        make("div", { class: "track", "aria-hidden": "true" },
          make("div", { class: "prompt" }, make("i", { class: "cached" }), make("i", { class: "computed" })),
          make("div", { class: "answer" }, make("i", { class: "computed" }))),
        make("span", { class: "quiet words" })),
      make("td", { class: "number" }));
  }

  #updateRow(row, sequence) {
    const { id, state, prompt, cached, computed, output, limit, blocks } = sequence;
    const property = this.#colours.of(id);
    row.style.setProperty("--own", `var(${property})`);
    row.dataset.state = state;
    row.querySelector("button").setAttribute("aria-pressed", String(this.#kept === id));
    const isOwn = id === this.#ownRequest();
    setText(row.querySelector(".own"), isOwn ? "yours" : sequence.priority === 1 ? "" : (PRIORITIES[sequence.priority] ?? ""));
    setText(row.cells[1], state);
    const read = Math.min(prompt, computed);
    // Both parts have room to be seen, however unequal they are.
    const share = Math.min(0.75, Math.max(0.2, prompt / (prompt + limit)));
    const track = row.querySelector(".track");
    track.style.setProperty("--prompt", `${100 * share}%`);
    track.style.setProperty("--cached", `${(100 * Math.min(cached, read)) / prompt}%`);
    track.style.setProperty("--read", `${(100 * read) / prompt}%`);
    track.style.setProperty("--said", `${limit ? (100 * output) / limit : 0}%`);
    const fromCache = cached ? ` (${count(cached)} cached)` : "";
    const words = state === "decode" || output
      ? `${count(output)} of ${count(limit)} after ${count(prompt)}${fromCache}`
      : `${count(read)} of ${count(prompt)}${fromCache}`;
    setText(row.querySelector(".words"), words);
    setText(row.cells[3], state === "waiting" ? "" : plural(blocks, "block"));
  }
}

function swatch(property) {
  const element = make("i", { class: "swatch", "aria-hidden": "true" });
  element.style.setProperty("--own", `var(${property})`);
  return element;
}
