/** Lua scripts that clients run. All but SUBMIT touch keys of one hash tag only; time is taken from Redis. */

import { createHash } from "node:crypto";
import { ErrorReply } from "@redis/client";
import type { Servers } from "../redis/servers.js";
import type { Argument, Reply } from "../redis/session.js";
import { SOURCES } from "./sources.js";

/**
 * A script, run by its digest; sent in full to a server that does not know it yet.
 *
 * `EVAL` rather than `SCRIPT LOAD`, so that an account needs no right to manage scripts.
 */
export class Script {
  readonly #source: string;
  readonly #digest: string;

  constructor(name: keyof typeof SOURCES) {
    this.#source = SOURCES[name];
    this.#digest = createHash("sha1").update(this.#source).digest("hex");
  }

  async run(
    servers: Servers,
    keys: readonly [string, ...string[]],
    values: readonly (Uint8Array | number | string)[],
  ): Promise<Reply> {
    const rest = [String(keys.length), ...keys, ...values.map(argument)];
    try {
      return await servers.send(keys[0], ["EVALSHA", this.#digest, ...rest]);
    } catch (error) {
      if (!(error instanceof ErrorReply) || !error.message.startsWith("NOSCRIPT")) throw error;
      return await servers.send(keys[0], ["EVAL", this.#source, ...rest]);
    }
  }
}

/** Not for a cluster: a request and its queues. */
export const SUBMIT = new Script("submit");
export const RECORD = new Script("record");
export const WITHDRAW = new Script("withdraw");
export const ENQUEUE = new Script("enqueue");
export const CANCEL = new Script("cancel");
export const READ = new Script("read");

function argument(value: Uint8Array | number | string): Argument {
  return value instanceof Uint8Array
    ? Buffer.from(value.buffer, value.byteOffset, value.byteLength)
    : String(value);
}
