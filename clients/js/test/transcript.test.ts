import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { afterCodePoints, countCodePoints } from "../src/protocol/codePoints.js";
import type { Delta, HeadraceEvent } from "../src/protocol/events.js";
import { Transcript } from "../src/transcript.js";

const text = fc.string({ unit: "binary" });

test("code points are those of the language", () => {
  fc.assert(
    fc.property(text, fc.nat(20), (value, count) => {
      assert.equal(countCodePoints(value), [...value].length);
      assert.equal(afterCodePoints(value, count), [...value].slice(count).join(""));
    }),
  );
});

const output = fc.array(fc.record({ tokens: fc.array(fc.nat(100), { minLength: 1 }), text }), {
  minLength: 1,
});

/** One event for the pieces from `first` to `last`, as a log or a channel may have it. */
function eventOf(pieces: { tokens: number[]; text: string }[], first: number, last: number): Delta {
  const before = pieces.slice(0, first);
  const own = pieces.slice(first, last + 1);
  const tokens = own.flatMap((piece) => piece.tokens);
  return {
    type: "delta",
    seq: before.flatMap((piece) => piece.tokens).length,
    pos: [...before.map((piece) => piece.text).join("")].length,
    epoch: 1,
    tokens,
    text: own.map((piece) => piece.text).join(""),
    logprobs: tokens.map((token) => [-token, []]),
  };
}

test("late, twice, out of order or rewritten: each token and character once, in order", () => {
  fc.assert(
    fc.property(output, fc.infiniteStream(fc.nat()), (pieces, numbers) => {
      const transcript = new Transcript();
      const taken: Delta[] = [];
      const take = (event: HeadraceEvent) => {
        if (transcript.lacksBefore(event)) {
          assert.throws(() => transcript.take(event), RangeError);
          return;
        }
        const piece = transcript.take(event);
        if (piece?.type === "delta") taken.push(piece);
      };
      const next = (limit: number) => (numbers.next().value ?? 0) % limit;
      for (let round = 0; round < 2 * pieces.length; round++) {
        const first = next(pieces.length);
        take(eventOf(pieces, first, first + next(pieces.length - first)));
      }
      take(eventOf(pieces, 0, pieces.length - 1));
      const all = eventOf(pieces, 0, pieces.length - 1);
      assert.deepEqual(
        taken.flatMap((piece) => piece.tokens),
        all.tokens,
      );
      assert.equal(taken.map((piece) => piece.text).join(""), all.text);
      assert.deepEqual(
        taken.flatMap((piece) => piece.logprobs ?? []),
        all.logprobs,
      );
    }),
  );
});
