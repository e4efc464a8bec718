/**
 * Commands to a Redis Cluster, sent to the nodes that own their slots.
 *
 * A cluster is asked for its layout when first used and when a node did not answer, and is believed when it
 * redirects a command.
 */

import { ErrorReply } from "@redis/client";
import { type Address, addressOf, type Location } from "./location.js";
import { Server } from "./server.js";
import type { Servers } from "./servers.js";
import type { Argument, Reply } from "./session.js";
import { slotOf } from "./slots.js";

const REDIRECTIONS = 5;

interface Range {
  readonly first: number;
  readonly last: number;
  readonly owner: Address;
}

export class Cluster implements Servers {
  readonly sharded = true;
  readonly #location: Location;
  readonly #timeout: number;
  readonly #nodes = new Map<string, Server>();
  readonly #moved = new Map<number, Address>();
  #ranges: readonly Range[] = [];
  #known: Promise<void> | undefined;

  constructor(location: Location, timeout: number) {
    this.#location = location;
    this.#timeout = timeout;
  }

  doubt(): void {
    this.#known = undefined;
  }

  async owner(key: string): Promise<Server> {
    await this.#know();
    return this.#node(this.#addressOf(slotOf(key)));
  }

  async send(key: string, command: readonly Argument[]): Promise<Reply> {
    let server = await this.owner(key);
    let asking = false;
    for (let redirections = 0; ; redirections++) {
      try {
        return await (asking ? server.send(["ASKING"], command) : server.send(command));
      } catch (error) {
        if (!(error instanceof ErrorReply)) {
          this.doubt();
          throw error;
        }
        const [kind, slot, where] = error.message.split(" ");
        if ((kind !== "MOVED" && kind !== "ASK") || where === undefined || redirections === REDIRECTIONS)
          throw error;
        const address = addressOf(where);
        asking = kind === "ASK";
        if (!asking) {
          this.doubt();
          this.#moved.set(Number(slot), address);
        }
        server = this.#node(address);
      }
    }
  }

  close(): void {
    for (const node of this.#nodes.values()) node.close();
  }

  #know(): Promise<void> {
    if (this.#known === undefined) {
      const asking = this.#ask();
      this.#known = asking;
      asking.catch(() => {
        if (this.#known === asking) this.#known = undefined;
      });
    }
    return this.#known;
  }

  async #ask(): Promise<void> {
    let failure: unknown = new Error("no node of the cluster answers");
    const candidates = new Map(this.#location.nodes.map((address) => [nameOf(address), address]));
    for (const { owner } of this.#ranges) candidates.set(nameOf(owner), owner);
    for (const address of candidates.values()) {
      try {
        this.#learn(address, await this.#node(address).send(["CLUSTER", "SLOTS"]));
        return;
      } catch (error) {
        failure = error;
      }
    }
    throw failure;
  }

  #learn(asked: Address, layout: Reply): void {
    // A node that does not know its own address leaves it empty: it is the one that was asked.
    this.#ranges = (layout as [number, number, [Buffer | null, number]][]).map(
      ([first, last, [host, port]]) => ({
        first,
        last,
        owner: { host: host?.toString() || asked.host, port },
      }),
    );
    this.#moved.clear();
    for (const [name, node] of this.#nodes) {
      if (!this.#ranges.some(({ owner }) => nameOf(owner) === name)) {
        node.close();
        this.#nodes.delete(name);
      }
    }
  }

  #addressOf(slot: number): Address {
    const address =
      this.#moved.get(slot) ?? this.#ranges.find(({ first, last }) => first <= slot && slot <= last)?.owner;
    if (address === undefined) {
      this.doubt();
      throw new Error(`no node owns slot ${slot}`);
    }
    return address;
  }

  #node(address: Address): Server {
    let node = this.#nodes.get(nameOf(address));
    if (node === undefined) {
      node = new Server(this.#location, address, this.#timeout);
      this.#nodes.set(nameOf(address), node);
    }
    return node;
  }
}

function nameOf(address: Address): string {
  return `${address.host} ${address.port}`;
}
