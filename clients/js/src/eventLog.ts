/** Reading a request's event log from where a subscriber stands. */

import type { Connection } from "./connection.js";
import { EventsLost, Unavailable, UnknownRequest } from "./errors.js";
import { notify } from "./notices.js";
import { decodeEvent, type HeadraceEvent } from "./protocol/events.js";
import type { Keys } from "./protocol/keys.js";
import type { Reply } from "./redis/session.js";
import { READ } from "./scripts/script.js";
import type { Transcript } from "./transcript.js";

/** Log entries read at a time: some 50 KB of a running request, less of them once it has ended. */
const PAGE = 500;
const BEGINNING = "0-0";

interface Entry {
  readonly id: string;
  readonly data: Buffer;
}

/** The log of one request, with a cursor. `state` is the request's state hash when it was last read. */
export class EventLog {
  state: ReadonlyMap<string, string> = new Map();
  readonly #connection: Connection;
  readonly id: string;
  readonly #names: Keys;
  readonly #keys: readonly [string, string];
  #cursor = BEGINNING;

  constructor(connection: Connection, keys: Keys, id: string) {
    this.#connection = connection;
    this.id = id;
    this.#names = keys;
    this.#keys = [keys.request(id), keys.events(id)];
  }

  /** Whether the state, when last read, said that the request is queued but has no queue entry. */
  get isNowhere(): boolean {
    return this.state.get("status") === "queued" && !this.state.get("entry");
  }

  /**
   * Have workers see whether the request's entry is on a queue still; the state will say if it is not.
   *
   * Nothing comes of it where no worker hears it, or Redis is away: ask again.
   */
  async askForEntry(): Promise<void> {
    const model = this.state.get("model");
    const status = this.state.get("status");
    if (!model || (status !== "queued" && status !== "running")) return;
    try {
      await notify(this.#connection, this.#names, model, { missing: this.id });
    } catch (error) {
      if (!(error instanceof Unavailable || error instanceof TypeError)) throw error;
    }
  }

  /**
   * What the log adds to `transcript`.
   *
   * The last entry of all is looked at each time, whatever the cursor says: a log that was rewritten may have
   * ids that lie behind the cursor. It then shows as a gap, and the log is read from its beginning.
   *
   * Throws `UnknownRequest` (there is neither state nor log), `EventsLost` (the request has ended, and the
   * log cannot say how), and as `Connection.call`.
   */
  async *readNew(transcript: Transcript, signal?: AbortSignal): AsyncGenerator<HeadraceEvent, void> {
    let reread = false;
    for (;;) {
      const { entries, last } = await this.#readPage(signal);
      if (this.state.size === 0 && last === undefined) throw new UnknownRequest(this.id);
      const full = entries.length === PAGE;
      let gap = false;
      for (const { id, data } of full || last === undefined ? entries : [...entries, last]) {
        const event = decodeEvent(data);
        if (event === undefined) continue;
        gap = transcript.lacksBefore(event);
        if (gap) break;
        const piece = transcript.take(event);
        if (isAfter(id, this.#cursor)) this.#cursor = id;
        if (piece !== undefined) yield piece;
      }
      if (transcript.done) return;
      if (gap && !reread) {
        reread = true;
        this.#cursor = BEGINNING;
      } else if (full && !gap) {
        this.#cursor = entries.at(-1)?.id ?? BEGINNING;
      } else if (this.state.get("status") === "finished") {
        throw last === undefined ? new UnknownRequest(this.id) : new EventsLost(this.id);
      } else {
        return;
      }
    }
  }

  async #readPage(signal: AbortSignal | undefined): Promise<{ entries: Entry[]; last: Entry | undefined }> {
    const reply = await this.#connection.call(
      (servers) => READ.run(servers, this.#keys, [this.#cursor, PAGE]),
      signal,
    );
    const [state, entries, last] = reply as [Reply[], Reply[], Reply[]];
    this.state = stateOf(state);
    return { entries: entries.map(entryOf), last: last[0] === undefined ? undefined : entryOf(last[0]) };
  }
}

/** A state hash from its fields and values in turn. */
export function stateOf(flat: readonly Reply[]): Map<string, string> {
  const state = new Map<string, string>();
  for (let at = 0; at + 1 < flat.length; at += 2) state.set(String(flat[at]), String(flat[at + 1]));
  return state;
}

function entryOf(reply: Reply): Entry {
  const [id, fields] = reply as [Buffer, Buffer[]];
  const at = fields.findIndex((field, index) => index % 2 === 0 && field.toString() === "e");
  return { id: id.toString(), data: (at < 0 ? undefined : fields[at + 1]) ?? Buffer.alloc(0) };
}

function isAfter(id: string, other: string): boolean {
  const [milliseconds, sequence] = positionOf(id);
  const [otherMilliseconds, otherSequence] = positionOf(other);
  return milliseconds === otherMilliseconds ? sequence > otherSequence : milliseconds > otherMilliseconds;
}

function positionOf(id: string): [bigint, bigint] {
  const [milliseconds = "0", sequence = "0"] = id.split("-");
  return [BigInt(milliseconds), BigInt(sequence)];
}
