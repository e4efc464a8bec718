// The text of an answer as it comes: painted once a frame, read out in sentences.

const LONGEST_UNSAID = 400; // characters
const PAUSE = 2500; // ms between announcements

/** Appends to one text node, so that an answer of any length costs what is new of it. */
export class OutputText {
  #node;
  #pending = "";
  #scheduled = false;
  #scroller;

  constructor(element, scroller) {
    this.#node = document.createTextNode("");
    element.append(this.#node);
    this.#scroller = scroller;
  }

  get text() {
    return this.#node.data + this.#pending;
  }

  append(text) {
    this.#pending += text;
    if (this.#scheduled) return;
    this.#scheduled = true;
    const later = document.hidden ? (paint) => setTimeout(paint, 250) : requestAnimationFrame;
    later(() => this.flush());
  }

  flush() {
    this.#scheduled = false;
    const scroller = this.#scroller;
    const follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
    this.#node.appendData(this.#pending);
    this.#pending = "";
    if (follows) scroller.scrollTop = scroller.scrollHeight;
  }

  /** Marks a part of the text, where the browser can do that without changing the document. */
  highlight(start, end) {
    if (!globalThis.CSS?.highlights) return;
    if (start === null) {
      CSS.highlights.delete("token");
      return;
    }
    this.flush();
    const range = new Range();
    range.setStart(this.#node, Math.min(start, this.#node.length));
    range.setEnd(this.#node, Math.min(end, this.#node.length));
    CSS.highlights.set("token", new Highlight(range));
  }
}

/** Tells a live region what is new, a sentence or more at a time, and never faster than it can be followed. */
export class Announcer {
  #region;
  #unsaid = "";
  #timer = null;

  constructor(region) {
    this.#region = region;
  }

  add(text) {
    this.#unsaid += text;
    this.#timer ??= setTimeout(() => this.#say(false), PAUSE);
  }

  /** Says what is left, then `words`. */
  finish(words) {
    this.#unsaid += ` ${words}`;
    this.#say(true);
  }

  reset() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#unsaid = "";
    this.#region.textContent = "";
  }

  #say(all) {
    clearTimeout(this.#timer);
    this.#timer = null;
    const ends = [...this.#unsaid.matchAll(/[.!?…。！？\n]\s*/gu)];
    let cut = ends.length ? ends.at(-1).index + ends.at(-1)[0].length : 0;
    if (all || (!cut && this.#unsaid.length > LONGEST_UNSAID)) cut = this.#unsaid.length;
    if (cut) this.#region.textContent = this.#unsaid.slice(0, cut).trim();
    this.#unsaid = this.#unsaid.slice(cut);
    if (this.#unsaid) this.#timer = setTimeout(() => this.#say(false), PAUSE);
  }
}
