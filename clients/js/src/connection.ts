/** Commands to Redis: timeouts, retries, which errors pass, and what callers see. */

import type { ConnectionOptions } from "node:tls";
import { ErrorReply } from "@redis/client";
import { ServerFull, Unavailable } from "./errors.js";
import { Pauses, pause } from "./pauses.js";
import { parseLocation } from "./redis/location.js";
import { openServers, type Servers } from "./redis/servers.js";

const PASSING =
  /^(BUSY|LOADING|MASTERDOWN|READONLY|TRYAGAIN|CLUSTERDOWN|MOVED|ASK|ERR max number of clients)/;

/**
 * Each command within `timeout` ms, retried for `patience` ms.
 *
 * Every operation given to `call` can be repeated without harm: that is a rule of this library, because a
 * reply that was lost says nothing about what was done.
 */
export class Connection {
  readonly database: number;
  readonly servers: Servers;
  readonly #patience: number;
  #closed = false;

  /** Throws a `TypeError` for a URL that cannot be used. */
  constructor(
    url: string,
    options: { timeout: number; patience: number; tls?: ConnectionOptions | undefined },
  ) {
    this.#patience = options.patience;
    const location = parseLocation(url, options.tls);
    this.servers = openServers(location, options.timeout);
    this.database = location.database;
  }

  /**
   * `operation`'s result. Throws `Unavailable`: transient failures went on for `patience`, or the failure is
   * not transient (`ServerFull`: for want of memory); and the signal's reason when it is aborted.
   */
  async call<T>(operation: (servers: Servers) => Promise<T>, signal?: AbortSignal): Promise<T> {
    const giveUp = performance.now() + this.#patience;
    const pauses = new Pauses();
    for (;;) {
      signal?.throwIfAborted();
      if (this.#closed) throw new Unavailable("the client is closed");
      let next: number;
      try {
        return await operation(this.servers);
      } catch (cause) {
        if (!isTransient(cause)) throw refusal(cause);
        next = pauses.next();
        if (this.#closed || performance.now() + next > giveUp) {
          throw new Unavailable(`Redis cannot be reached: ${messageOf(cause)}`, { cause });
        }
      }
      await pause(next, signal);
    }
  }

  close(): void {
    this.#closed = true;
    this.servers.close();
  }
}

/** Whether the same command may succeed in a moment: Redis is away, starting, failing over or busy. */
export function isTransient(error: unknown): boolean {
  if (error instanceof ErrorReply) return PASSING.test(error.message);
  return !(error instanceof TypeError) && error instanceof Error;
}

function refusal(cause: unknown): unknown {
  if (!(cause instanceof ErrorReply)) return cause;
  if (cause.message.startsWith("OOM")) return new ServerFull(`Redis is full: ${cause.message}`, { cause });
  return new Unavailable(`Redis refuses: ${cause.message}`, { cause });
}

function messageOf(error: unknown): string {
  // Where a name has several addresses, Node says why each failed and nothing else.
  const first = error instanceof AggregateError ? error.errors[0] : error;
  return first instanceof Error && first.message ? first.message : String(first);
}
