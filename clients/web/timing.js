// When tokens arrived: the data behind the strip.

import { milliseconds, quantile, rate } from "./format.js";

/** One mark for each arrival. `start` and `end` are where its text lies in the output, in UTF-16 units. */
export class Timing {
  marks = [];
  tokens = 0;
  #sent;
  #last;
  #intervals = [];

  /** `sent`: when the request was sent, by `performance.now()`; null if it was before this page was loaded. */
  constructor(sent) {
    this.#sent = sent;
    this.#last = sent;
  }

  add({ count, text, epoch, replayed }, now = performance.now()) {
    const previous = this.marks.at(-1);
    const start = previous?.end ?? 0;
    const takenOver = previous !== undefined && previous.epoch !== epoch;
    const interval = replayed || this.#last === null ? null : now - this.#last;
    const first = this.tokens === 0;
    this.tokens += count;
    this.marks.push({ interval, count, first, takenOver, epoch, token: this.tokens, start, end: start + text.length });
    if (interval !== null && !first && count) this.#intervals.push(interval / count);
    this.#last = now;
  }

  /** Milliseconds from sending to the first token, if both were seen. */
  get firstToken() {
    const first = this.marks[0];
    return first?.interval ?? null;
  }

  /** `{count, p50, p95, longest}` of the milliseconds between tokens, null without any. */
  get gaps() {
    if (!this.#intervals.length) return null;
    const sorted = Float64Array.from(this.#intervals).sort();
    const total = sorted.reduce((sum, gap) => sum + gap, 0);
    return {
      mean: total / sorted.length,
      p50: quantile(sorted, 0.5),
      p95: quantile(sorted, 0.95),
      longest: sorted.at(-1),
    };
  }

  describe(mark, text) {
    const which = mark.count > 1 ? `tokens ${mark.token - mark.count + 1} to ${mark.token}` : `token ${mark.token}`;
    const when = mark.interval === null
      ? "arrived before this page was loaded"
      : mark.first
        ? `${milliseconds(mark.interval)} after sending`
        : `${milliseconds(mark.interval)} after the one before`;
    const what = text.trim() ? `“${text.replaceAll("\n", "⏎")}”` : "no visible text";
    return `${which}, ${when}${mark.takenOver ? ", from another worker" : ""}: ${what}`;
  }

  summary() {
    const gaps = this.gaps;
    return {
      firstToken: milliseconds(this.firstToken),
      rate: gaps ? rate(1000 / gaps.mean) : "–",
      p50: milliseconds(gaps?.p50),
      p95: milliseconds(gaps?.p95),
    };
  }
}
