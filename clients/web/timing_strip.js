// The strip: a bar for each token, as high as it took. Point at a bar, or walk with the arrow keys, to see which.

import { byId, colour, setText, surface } from "./dom.js";
import { milliseconds, quantile } from "./format.js";

const BAR = 3;
const GAP = 1;

export class TimingStrip {
  #canvas = byId("strip");
  #caption = byId("strip-caption");
  #timing = null;
  #textOf = () => "";
  #selected = null; // index of a mark
  #onSelect;
  #scheduled = false;

  /** `onSelect(mark)` is told of the mark that is looked at, null for none. */
  constructor(onSelect) {
    this.#onSelect = onSelect;
    this.#canvas.addEventListener("pointermove", (event) => this.#select(this.#markAt(event.offsetX)));
    this.#canvas.addEventListener("pointerleave", () => this.#select(null));
    this.#canvas.addEventListener("blur", () => this.#select(null));
    this.#canvas.addEventListener("keydown", (event) => this.#walk(event));
    new ResizeObserver(() => this.draw()).observe(this.#canvas);
    document.addEventListener("themechange", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Shows another request; `textOf(mark)` gives the text of a mark. */
  show(timing, textOf) {
    this.#timing = timing;
    this.#textOf = textOf;
    this.#select(null);
    this.draw();
  }

  draw() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => {
      this.#scheduled = false;
      this.#paint();
    });
  }

  #perBar(width) {
    return Math.max(1, Math.ceil((this.#timing.marks.length * (BAR + GAP)) / width));
  }

  #paint() {
    const { context, width, height } = surface(this.#canvas);
    const marks = this.#timing?.marks ?? [];
    const last = marks.length ? this.#timing.tokens : 0;
    this.#canvas.setAttribute("aria-valuemax", String(Math.max(1, last)));
    if (!marks.length || !width) return;
    const perBar = this.#perBar(width);
    const ceiling = ceilingOf(marks);
    const colours = {
      bar: colour("--bar"), first: colour("--bar-first"), replayed: colour("--bar-replayed"),
      chosen: colour("--accent-strong"), takeover: colour("--warn"),
    };
    for (let start = 0, bar = 0; start < marks.length; start += perBar, bar++) {
      const group = marks.slice(start, start + perBar);
      const longest = group.reduce((most, mark) => (mark.interval === null ? most : Math.max(most ?? 0, mark.interval)), null);
      const tall = longest === null ? 4 : Math.max(3, Math.min(1, Math.sqrt(longest / ceiling)) * (height - 6));
      const x = bar * (BAR + GAP);
      const chosen = this.#selected !== null && this.#selected >= start && this.#selected < start + perBar;
      context.fillStyle = chosen ? colours.chosen
        : longest === null ? colours.replayed
          : start === 0 ? colours.first : colours.bar;
      context.fillRect(x, height - tall, BAR, tall);
      if (group.some((mark) => mark.takenOver)) {
        context.fillStyle = colours.takeover;
        context.fillRect(x, 0, BAR, height - tall - 2);
      }
    }
  }

  #markAt(x) {
    if (!this.#timing?.marks.length) return null;
    const index = Math.floor(x / (BAR + GAP)) * this.#perBar(this.#canvas.clientWidth);
    return index >= 0 && index < this.#timing.marks.length ? index : null;
  }

  #walk(event) {
    const last = (this.#timing?.marks.length ?? 0) - 1;
    const from = this.#selected ?? -1;
    const page = 20;
    const to = {
      ArrowRight: from + 1, ArrowUp: from + 1, ArrowLeft: from - 1, ArrowDown: from - 1,
      PageUp: from + page, PageDown: from - page, Home: 0, End: last,
    }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#select(Math.min(last, Math.max(0, to)));
  }

  #select(index) {
    if (index === this.#selected && index !== null) return;
    this.#selected = index;
    const mark = index === null ? null : this.#timing.marks[index];
    const words = mark ? this.#timing.describe(mark, this.#textOf(mark)) : "";
    setText(this.#caption, words);
    this.#canvas.setAttribute("aria-valuenow", String(mark?.token ?? 0));
    this.#canvas.setAttribute("aria-valuetext", words || "no token chosen");
    this.#onSelect(mark);
    this.draw();
  }
}

/** The interval that a full bar stands for: outliers, the first token among them, are cut off there. */
function ceilingOf(marks) {
  const intervals = marks.filter((mark) => mark.interval !== null && !mark.first).map((mark) => mark.interval);
  if (!intervals.length) return Math.max(1, marks[0].interval ?? 1);
  const sorted = Float64Array.from(intervals.slice(-2000)).sort();
  return Math.max(1, quantile(sorted, 0.98) * 1.5);
}

/** What the strip's scale is, in words. */
export const scaleOf = (timing) => (timing.marks.length ? milliseconds(ceilingOf(timing.marks)) : "");
