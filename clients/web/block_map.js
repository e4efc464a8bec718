// The KV cache: a cell for each block, or for every so many, in the colour of the sequence that holds it.

import { colour, make, surface } from "./dom.js";
import { count, plural } from "./format.js";

const OWNERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const SMALLEST = 9;
const LARGEST = 18;

export class BlockMap {
  #canvas = make("canvas", { class: "blocks", role: "img" });
  #colours;
  #worker = null;
  #chosen = null;

  constructor(colours) {
    this.element = make("div", { class: "map" }, this.#canvas);
    this.#colours = colours;
    new ResizeObserver(() => this.#draw()).observe(this.element);
    document.addEventListener("themechange", () => this.#draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  show(worker) {
    this.#worker = worker;
    this.element.hidden = !worker.block_map;
    this.#canvas.setAttribute("aria-label", inWords(worker));
    this.#draw();
  }

  /** Lets the blocks of one sequence stand out; those of all again for null. */
  choose(id) {
    if (this.#chosen === id) return;
    this.#chosen = id;
    this.#draw();
  }

  #draw() {
    const cells = this.#worker?.block_map ?? "";
    const width = this.element.clientWidth;
    if (!cells || !width) return;
    const { cell, columns } = layout(cells.length, width);
    this.#canvas.style.setProperty("height", `${Math.ceil(cells.length / columns) * cell}px`);
    const { context } = surface(this.#canvas);
    const { sequences } = this.#worker;
    const paints = { ".": colour("--cell-free"), "-": colour("--cell-kept"), "=": colour("--cell-shared"), "*": colour("--cell-other") };
    sequences.forEach(({ id }, index) => (paints[OWNERS[index]] ??= colour(this.#colours.of(id))));
    const chosen = this.#chosen === null ? -1 : sequences.findIndex(({ id }) => id === this.#chosen);
    [...cells].forEach((letter, index) => {
      const [x, y] = [(index % columns) * cell, Math.floor(index / columns) * cell];
      context.globalAlpha = chosen < 0 || letter === OWNERS[chosen] ? 1 : 0.22;
      context.fillStyle = paints[letter] ?? paints["*"];
      context.fillRect(x, y, cell - 1.5, cell - 1.5);
      if (letter === "-" || letter === "=") drawMark(context, letter, x, y, cell - 1.5, colour("--cell-mark"));
    });
  }
}

/** What is kept or shared has a mark as well: colour alone would not tell everybody. */
function drawMark(context, letter, x, y, size, paint) {
  context.fillStyle = paint;
  const middle = y + size / 2;
  if (letter === "-") context.fillRect(x + size / 2 - 1, middle - 1, 2, 2);
  else {
    context.fillRect(x + size * 0.2, middle - 2, size * 0.6, 1.25);
    context.fillRect(x + size * 0.2, middle + 1, size * 0.6, 1.25);
  }
}

function layout(cells, width) {
  let cell = LARGEST;
  while (cell > SMALLEST && Math.ceil(cells / Math.floor(width / cell)) * cell > 130) cell -= 1;
  return { cell, columns: Math.max(1, Math.floor(width / cell)) };
}

function inWords({ block_map: map, block_stride: stride, blocks_total: total, blocks_free: free }) {
  const of = (letter) => [...map].filter((cell) => cell === letter).length;
  const sample = stride > 1 ? ` The map shows every ${stride}th block:` : "";
  return `${plural(total, "block")}, ${count(free)} free.${sample} ${count(of("="))} shared, ${count(of("-"))} free but kept for reuse.`;
}
