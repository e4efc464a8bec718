/**
 * One connection to one server. It fails rather than restoring itself: what uses it knows what has to be
 * done again, and reads the log where messages may have been missed.
 */

import { createClient, RESP_TYPES } from "@redis/client";
import { within } from "../pauses.js";
import type { Address, Location } from "./location.js";

export type Argument = string | Buffer;
/** A reply with its strings as bytes. */
export type Reply = Buffer | number | string | null | Reply[];

const BYTES = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } };

type Listener = (message: Buffer, channel: Buffer) => void;

export class Session {
  /** Rejects when the connection is lost, or closed. */
  readonly failed: Promise<never>;
  readonly #client: ReturnType<typeof rawClient>;
  readonly #fail: (error: Error) => void;

  private constructor(client: ReturnType<typeof rawClient>) {
    this.#client = client;
    let fail: (error: Error) => void = () => {};
    this.failed = new Promise<never>((_, reject) => {
      fail = reject;
    });
    this.#fail = fail;
    this.failed.catch(() => {});
    client.on("error", fail);
    client.on("terminated", (cause: unknown) =>
      fail(cause instanceof Error ? cause : new Error("terminated")),
    );
    client.on("end", () => fail(new Error("the connection was closed")));
    client.on("sharded-channel-moved", () => fail(new Error("a channel has moved to another node")));
  }

  /** Throws what the server or the network says, or `TimedOut`. */
  static async open(location: Location, address: Address | undefined, timeout: number): Promise<Session> {
    const client = rawClient(location, address, timeout);
    const session = new Session(client);
    try {
      await within(timeout, Promise.race([client.connect(), session.failed]));
    } catch (error) {
      session.close();
      throw error;
    }
    return session;
  }

  send(command: readonly Argument[]): Promise<Reply> {
    return this.#client.sendCommand<Reply>(command as Argument[], BYTES);
  }

  /** Resolves once messages flow, all of which go to `listener`; always the same one. */
  async subscribe(channels: readonly string[], listener: Listener, sharded: boolean): Promise<void> {
    if (!sharded) await this.#client.subscribe([...channels], listener, true);
    else for (const channel of channels) await this.#client.sSubscribe(channel, listener, true); // one slot a command
  }

  async unsubscribe(channels: readonly string[], listener: Listener, sharded: boolean): Promise<void> {
    if (!sharded) await this.#client.unsubscribe([...channels], listener, true);
    else for (const channel of channels) await this.#client.sUnsubscribe(channel, listener, true);
  }

  close(): void {
    this.#fail(new Error("the connection was closed"));
    this.#client.destroy();
  }
}

function rawClient(location: Location, address: Address | undefined, timeout: number) {
  const common = { connectTimeout: timeout, reconnectStrategy: false as const };
  const { username, password } = location;
  return createClient({
    // Only with RESP2 do replies have one form over all versions of servers.
    RESP: 2,
    database: location.database,
    disableClientInfo: true, // an account may lack the right to say which library it uses
    disableOfflineQueue: true,
    maintNotifications: "disabled",
    ...(username ? { username } : {}),
    ...(password ? { password } : {}),
    socket:
      location.path !== undefined
        ? { ...common, path: location.path, tls: false as const }
        : { ...common, ...address, ...(location.tls ? { ...location.tls, tls: true as const } : {}) },
  });
}
