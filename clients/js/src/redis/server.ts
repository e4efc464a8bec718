/** One Redis server: commands over one connection, which is opened when needed and again when it was lost. */

import { ErrorReply } from "@redis/client";
import { within } from "../pauses.js";
import type { Address, Location } from "./location.js";
import { type Argument, type Reply, Session } from "./session.js";

export class Server {
  readonly #location: Location;
  readonly #address: Address | undefined;
  readonly #timeout: number;
  #session: Promise<Session> | undefined;

  /** `address` is undefined for a Unix socket. */
  constructor(location: Location, address: Address | undefined, timeout: number) {
    this.#location = location;
    this.#address = address;
    this.#timeout = timeout;
  }

  /** A connection of the caller's own. */
  open(): Promise<Session> {
    return Session.open(this.#location, this.#address, this.#timeout);
  }

  /**
   * The reply to the last of `commands`, which are sent together.
   *
   * Throws `ErrorReply`, or what broke the connection: then whether they were executed is unknown.
   */
  async send(...commands: readonly (readonly Argument[])[]): Promise<Reply> {
    this.#session ??= this.open();
    const opening = this.#session;
    try {
      const session = await opening;
      const replies = await within(
        this.#timeout,
        Promise.all(commands.map((command) => session.send(command))),
      );
      return replies.at(-1) ?? null;
    } catch (error) {
      // A connection that did not answer in time may be dead without knowing it.
      if (!(error instanceof ErrorReply) || !(await isOpen(opening))) this.#forget(opening);
      throw error;
    }
  }

  close(): void {
    if (this.#session) this.#forget(this.#session);
  }

  #forget(opening: Promise<Session>): void {
    if (this.#session === opening) this.#session = undefined;
    opening.then(
      (session) => session.close(),
      () => {},
    );
  }
}

async function isOpen(opening: Promise<Session>): Promise<boolean> {
  try {
    await opening;
    return true;
  } catch {
    return false;
  }
}
