// What has been received of one request: each token and each character once, whatever is sent again.

/** Something is missing between what is here and what came: it is to be asked for again. */
export class Gap extends Error {}

export class Transcript {
  tokens = 0;
  characters = 0; // code points, as the gateway counts

  get position() {
    return `${this.tokens}.${this.characters}`;
  }

  /** What a delta brings beyond what is here: `{count, text}`, or null if that is nothing. */
  take(delta) {
    if (delta.seq > this.tokens || delta.pos > this.characters) throw new Gap("an event was lost");
    const count = Math.max(0, delta.seq + delta.tokens.length - this.tokens);
    const letters = Array.from(delta.text);
    const text = letters.slice(this.characters - delta.pos).join("");
    if (!count && !text) return null;
    this.tokens += count;
    this.characters = Math.max(this.characters, delta.pos + letters.length);
    return { count, text };
  }
}
