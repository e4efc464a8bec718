// A colour for each sequence, for as long as it is seen; the same in its row and in the map of blocks.

export const COLOURS = 12;

export class SequenceColours {
  #of = new Map();

  /** Forgets those that are gone, and gives newcomers the colours that are used least. */
  assign(ids) {
    const present = new Set(ids);
    for (const id of this.#of.keys()) if (!present.has(id)) this.#of.delete(id);
    const uses = Array(COLOURS).fill(0);
    for (const colour of this.#of.values()) uses[colour] += 1;
    for (const id of ids) {
      if (this.#of.has(id)) continue;
      const colour = uses.indexOf(Math.min(...uses));
      uses[colour] += 1;
      this.#of.set(id, colour);
    }
  }

  /** The custom property that holds the colour. */
  of(id) {
    return `--s${this.#of.get(id) ?? 0}`;
  }
}
