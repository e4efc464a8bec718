/** One pub/sub connection for all the channels a client follows; in a cluster, one to each node with some. */

import { Unavailable } from "./errors.js";
import { Mailbox } from "./mailbox.js";
import { Pauses, pause, within } from "./pauses.js";
import type { Server } from "./redis/server.js";
import type { Servers } from "./redis/servers.js";
import type { Session } from "./redis/session.js";

/** Milliseconds between questions whether the connection is alive; as many to answer. */
const PING_EVERY = 10_000;

/** All mailboxes by channel, and which channels are known to flow into them. */
class Boxes {
  readonly of = new Map<string, Set<Mailbox>>();
  readonly confirmed = new Set<string>();

  readonly deliver = (message: Buffer, channel: Buffer): void => {
    for (const box of this.of.get(channel.toString()) ?? []) box.put(message);
  };

  confirm(channel: string): void {
    this.confirmed.add(channel);
    for (const box of this.of.get(channel) ?? []) box.markMissed();
  }
}

/** A connection to one server for the channels that it has. It fails rather than restoring itself. */
class Link {
  readonly wanted = new Set<string>();
  readonly #boxes: Boxes;
  readonly #sharded: boolean;
  #ended = false;
  #changed = false;
  #wake: (() => void) | undefined;

  constructor(boxes: Boxes, sharded: boolean) {
    this.#boxes = boxes;
    this.#sharded = sharded;
  }

  want(channel: string): void {
    this.wanted.add(channel);
    this.#change();
  }

  leave(channel: string): void {
    this.wanted.delete(channel);
    this.#change();
  }

  /** Delivers until the connection fails or a channel moves, and throws what happened; or until it is ended. */
  async run(server: Server): Promise<void> {
    const session = await server.open();
    try {
      await Promise.race([session.failed, this.#keepSubscribed(session), this.#keepAsking(session)]);
    } finally {
      this.end();
      session.close();
    }
  }

  end(): void {
    this.#ended = true;
    this.#change();
  }

  #change(): void {
    this.#changed = true;
    this.#wake?.();
  }

  async #keepSubscribed(session: Session): Promise<void> {
    const asked = new Set<string>();
    while (!this.#ended) {
      this.#changed = false;
      const joined = [...this.wanted].filter((channel) => !asked.has(channel));
      const left = [...asked].filter((channel) => !this.wanted.has(channel));
      for (const channel of left) {
        asked.delete(channel);
        this.#boxes.confirmed.delete(channel);
      }
      for (const channel of joined) asked.add(channel);
      if (joined.length > 0) {
        await session.subscribe(joined, this.#boxes.deliver, this.#sharded);
        for (const channel of joined) this.#boxes.confirm(channel);
      }
      if (left.length > 0) await session.unsubscribe(left, this.#boxes.deliver, this.#sharded);
      if (!this.#changed) {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }

  async #keepAsking(session: Session): Promise<void> {
    while (!this.#ended) {
      await pauseUnlessEnded(PING_EVERY, session.failed);
      await within(PING_EVERY, session.send(["PING"]));
    }
  }
}

/** The channels that somebody follows now, over connections that are restored when they fail. */
export class Channels {
  readonly #servers: Servers;
  readonly #boxes = new Boxes();
  readonly #links = new Map<Server, Link>();
  readonly #placed = new Map<string, Link>();
  readonly #pauses = new Pauses();
  readonly #closing = new AbortController();
  #arranging = false;
  #again = false;

  constructor(servers: Servers) {
    this.#servers = servers;
  }

  /** A mailbox on `channel`; its first `receive` says "read the log" once messages flow into it. */
  open(channel: string): Mailbox {
    const box = new Mailbox();
    if (this.#closing.signal.aborted) {
      box.fail(new Unavailable("the client is closed"));
      return box;
    }
    const boxes = this.#boxes.of.get(channel) ?? new Set();
    this.#boxes.of.set(channel, boxes.add(box));
    if (this.#boxes.confirmed.has(channel)) box.markMissed();
    void this.#arrange();
    return box;
  }

  leave(channel: string, box: Mailbox): void {
    const boxes = this.#boxes.of.get(channel);
    boxes?.delete(box);
    if (boxes?.size === 0) this.#boxes.of.delete(channel);
    void this.#arrange();
  }

  close(): void {
    this.#closing.abort();
    for (const link of this.#links.values()) link.end();
    for (const boxes of this.#boxes.of.values()) {
      for (const box of boxes) box.fail(new Unavailable("the client is closed"));
    }
  }

  async #arrange(): Promise<void> {
    this.#again = true;
    if (this.#arranging) return;
    this.#arranging = true;
    while (this.#again && !this.#closing.signal.aborted) {
      this.#again = false;
      for (const [channel, link] of this.#placed) {
        if (!this.#boxes.of.has(channel)) {
          this.#placed.delete(channel);
          link.leave(channel);
        }
      }
      for (const channel of [...this.#boxes.of.keys()].filter((name) => !this.#placed.has(name))) {
        try {
          const server = await this.#servers.owner(channel);
          if (this.#boxes.of.has(channel) && !this.#closing.signal.aborted) this.#place(channel, server);
        } catch {
          await this.#rest();
          this.#again = true;
          break;
        }
      }
    }
    this.#arranging = false;
  }

  #place(channel: string, server: Server): void {
    let link = this.#links.get(server);
    if (link === undefined) {
      link = new Link(this.#boxes, this.#servers.sharded);
      this.#links.set(server, link);
      void this.#keep(link, server);
    }
    this.#placed.set(channel, link);
    link.want(channel);
  }

  async #keep(link: Link, server: Server): Promise<void> {
    // Why a connection was lost matters to nobody: the log is read in any case, and says if Redis is away.
    await link.run(server).catch(() => {});
    const channels = [...this.#placed].filter(([, other]) => other === link).map(([channel]) => channel);
    if (channels.some((channel) => this.#boxes.confirmed.has(channel))) this.#pauses.reset();
    for (const channel of link.wanted) this.#boxes.confirmed.delete(channel);
    await this.#rest();
    this.#links.delete(server);
    for (const [channel, other] of this.#placed) if (other === link) this.#placed.delete(channel);
    void this.#arrange();
  }

  async #rest(): Promise<void> {
    this.#servers.doubt();
    await pause(this.#pauses.next(), this.#closing.signal).catch(() => {});
  }
}

/** Waits so long, and throws at once what `failed` rejects with. */
async function pauseUnlessEnded(milliseconds: number, failed: Promise<never>): Promise<void> {
  const over = new AbortController();
  try {
    await Promise.race([pause(milliseconds, over.signal), failed]);
  } finally {
    over.abort();
  }
}
