/**
 * How much of a request a subscriber has, and what an event adds to it.
 *
 * Events of one request reach a subscriber late, twice, out of order, from several attempts, or as one that
 * stands for many (a finished request's log is rewritten). All of that is one case: every event says where
 * its tokens and its text begin, so what lies beyond the subscriber's own counts is new, the rest is not.
 */

import { afterCodePoints, countCodePoints } from "./protocol/codePoints.js";
import type { HeadraceEvent } from "./protocol/events.js";

export class Transcript {
  #tokens: number;
  #characters: number;
  #done = false;

  /** Counts other than zero go on where an earlier subscriber stopped; characters are code points. */
  constructor(tokens = 0, characters = 0) {
    this.#tokens = tokens;
    this.#characters = characters;
  }

  get done(): boolean {
    return this.#done;
  }

  /** Whether something between what the subscriber has and this event is missing: a gap. */
  lacksBefore(event: HeadraceEvent): boolean {
    return event.seq > this.#tokens || (event.type === "delta" && event.pos > this.#characters);
  }

  /**
   * The part of `event` that is new, undefined if nothing is. Throws a `RangeError` after a gap.
   *
   * Tokens and text advance independently: text that was held back (it might have become a stop string)
   * comes later, in an event whose tokens the subscriber already has.
   */
  take(event: HeadraceEvent): HeadraceEvent | undefined {
    if (this.#done) return undefined;
    if (this.lacksBefore(event)) {
      throw new RangeError(`the event begins past token ${this.#tokens} or character ${this.#characters}`);
    }
    if (event.type === "done") {
      this.#done = true;
      return event;
    }
    const known = this.#tokens - event.seq;
    const tokens = event.tokens.slice(known);
    const text = afterCodePoints(event.text, this.#characters - event.pos);
    if (tokens.length === 0 && text === "") return undefined;
    const piece = { ...event, seq: this.#tokens, pos: this.#characters, tokens, text };
    this.#tokens += tokens.length;
    this.#characters += countCodePoints(text);
    return event.logprobs === undefined ? piece : { ...piece, logprobs: event.logprobs.slice(known) };
  }
}
