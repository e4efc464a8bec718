/** What a backend uses: submit requests, follow them, cancel them. */

import { randomUUID } from "node:crypto";
import type { ConnectionOptions } from "node:tls";
import { Channels } from "./channels.js";
import { Connection } from "./connection.js";
import { EventLog } from "./eventLog.js";
import { follow } from "./follow.js";
import type { Delta, HeadraceEvent } from "./protocol/events.js";
import { Keys } from "./protocol/keys.js";
import { type CheckedRequest, checkRequest, type Prompt, type RequestFields } from "./protocol/request.js";
import { cancel, type RequestStatus, readStatus } from "./requestState.js";
import { completedText, type Result, resultOf, timingsOf } from "./result.js";
import { enqueue } from "./submission.js";
import { Transcript } from "./transcript.js";

export interface ClientOptions {
  /** Served name to submit to where a request names none. */
  model?: string | undefined;
  /** Prefix of all keys; that of the workers. Default: headrace. */
  namespace?: string | undefined;
  /** `submit` throws `QueueFull` when the model's queues hold as many requests; null for no limit. */
  queueLimit?: number | null | undefined;
  /** Milliseconds for one answer of Redis. Default: 5 s. */
  timeout?: number | undefined;
  /** Milliseconds that a call or a stream rides out an unreachable Redis. Default: 30 s. */
  patience?: number | undefined;
  /** For `rediss://`: what `tls.connect` takes, such as `ca`. */
  tls?: ConnectionOptions | undefined;
}

export interface FollowOptions {
  /** Gives up following, and throws its reason. The request itself goes on. */
  signal?: AbortSignal | undefined;
}

/**
 * Submits requests to workers, and follows them.
 *
 * It connects when first used, and keeps one connection for commands and one for all it follows (in a
 * cluster, to each node). While those are open the process does not end by itself: close the client.
 */
export class Client implements AsyncDisposable {
  readonly #model: string | undefined;
  readonly #queueLimit: number | null;
  readonly #keys: Keys;
  readonly #connection: Connection;
  readonly #channels: Channels;

  /** Throws a `TypeError` or `RangeError` for a URL or an option that cannot be used. */
  constructor(url = "redis://localhost:6379/0", options: ClientOptions = {}) {
    const { model, namespace, queueLimit = 10_000, timeout = 5000, patience = 30_000, tls } = options;
    this.#model = model;
    this.#queueLimit = queueLimit === null ? null : atLeast("queueLimit", 0, queueLimit);
    const limits = { timeout: atLeast("timeout", 1, timeout), patience: atLeast("patience", 0, patience) };
    this.#connection = new Connection(url, { ...limits, tls });
    this.#keys = new Keys(namespace, this.#connection.database);
    this.#channels = new Channels(this.#connection.servers);
  }

  /**
   * Enqueues a request and returns a handle on it at once.
   *
   * Without an `id` one is made up. An id that is known already is not enqueued again: the handle is then on
   * the request that has it.
   *
   * Throws `RequestError` (names the field and its limit), `QueueFull` (nothing was enqueued) and
   * `Unavailable` (Redis was away for longer than `patience`; repeat with the same id).
   */
  async submit(request: Prompt & RequestFields): Promise<Handle> {
    return (await this.#enqueue([this.#checked(request)]))[0] as Handle;
  }

  /**
   * Enqueues requests of one model, all or none, and returns their handles in the same order.
   *
   * Ids that are known are passed over, as by `submit`. Throws as `submit`, and a `RangeError` for requests of
   * several models, or none.
   */
  async submitAll(requests: readonly (Prompt & RequestFields)[]): Promise<Handle[]> {
    return this.#enqueue(requests.map((request) => this.#checked(request)));
  }

  /**
   * A handle on a request that was submitted elsewhere or earlier. Costs nothing until it is used.
   *
   * An id that Redis does not know makes the handle throw `UnknownRequest`; `wait` gives it so many
   * milliseconds to appear: a request that was put on the queue bare is known once it is claimed.
   *
   * Throws a `TypeError`: this cannot be a request's id.
   */
  attach(id: string, options: { wait?: number | undefined } = {}): Handle {
    this.#keys.request(id);
    return this.#handle(id, this.#model, atLeast("wait", 0, options.wait ?? 0));
  }

  /** Closes all connections. Streams that still run throw `Unavailable`. */
  async close(): Promise<void> {
    this.#channels.close();
    this.#connection.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #checked(request: Prompt & RequestFields): CheckedRequest {
    const defaults = { id: randomUUID().replaceAll("-", ""), model: this.#model };
    return checkRequest({ ...defaults, ...withoutUndefined(request) });
  }

  async #enqueue(requests: readonly CheckedRequest[]): Promise<Handle[]> {
    await enqueue(this.#connection, this.#keys, requests, this.#queueLimit);
    return requests.map(({ id, model }) => this.#handle(id, model, 0));
  }

  #handle(id: string, model: string | undefined, wait: number): Handle {
    return new Handle(id, {
      model,
      wait,
      keys: this.#keys,
      connection: this.#connection,
      channels: this.#channels,
    });
  }
}

interface Means {
  readonly model: string | undefined;
  readonly wait: number;
  readonly keys: Keys;
  readonly connection: Connection;
  readonly channels: Channels;
}

/** One request. Any number of handles, here and in other processes, may follow it at the same time. */
export class Handle implements AsyncIterable<HeadraceEvent> {
  readonly id: string;
  readonly #means: Means;
  #result: Result | undefined;

  /** Made by `Client.submit` and `Client.attach`. */
  constructor(id: string, means: Means) {
    this.id = id;
    this.#means = means;
  }

  [Symbol.asyncIterator](): AsyncGenerator<HeadraceEvent, void> {
    return this.events();
  }

  /**
   * The request's events from its beginning: `delta` pieces, each only what is new, then `done`.
   *
   * To go on where an earlier stream stopped, give the number of tokens and of characters (code points) it
   * had. Leaving the stream does not cancel the request.
   *
   * Throws `UnknownRequest` (never submitted, or expired), `EventsLost` (it has ended and its log is damaged)
   * and `Unavailable` (Redis was away for longer than the client's patience).
   */
  events(options: FollowOptions & { seq?: number; pos?: number } = {}): AsyncGenerator<HeadraceEvent, void> {
    const seq = atLeast("seq", 0, options.seq ?? 0);
    const transcript = new Transcript(seq, atLeast("pos", 0, options.pos ?? 0));
    return this.#follow(this.#log(), transcript, options.signal);
  }

  /** Waits for the end, whichever it is. Throws as `events`. */
  async result(options: FollowOptions = {}): Promise<Result> {
    if (this.#result) return this.#result;
    const log = this.#log();
    const deltas: Delta[] = [];
    for await (const event of this.#follow(log, new Transcript(), options.signal)) {
      if (event.type === "delta") deltas.push(event);
      else this.#result = resultOf(this.id, deltas, event, timingsOf(log.state));
    }
    if (!this.#result) throw new Error("a stream ended without done");
    return this.#result;
  }

  /**
   * Waits for the whole text. Throws `RequestFailed` (it was cancelled, expired or failed; the error's `result`
   * has what there is), and as `events`.
   */
  async text(options: FollowOptions = {}): Promise<string> {
    return completedText(await this.result(options));
  }

  /** Where the request stands now. Throws `UnknownRequest` and `Unavailable`. */
  status(): Promise<RequestStatus> {
    return readStatus(this.#means.connection, this.#means.keys, this.id);
  }

  /**
   * Asks for the request's end; it comes as `done` with `cancelled` unless it ends otherwise before.
   *
   * Returns whether there was such a request and it had not ended. Throws `Unavailable`.
   */
  cancel(): Promise<boolean> {
    return cancel(this.#means.connection, this.#means.keys, this.id, this.#means.model);
  }

  #log(): EventLog {
    return new EventLog(this.#means.connection, this.#means.keys, this.id);
  }

  #follow(
    log: EventLog,
    transcript: Transcript,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<HeadraceEvent, void> {
    const { channels, keys, wait } = this.#means;
    return follow(log, channels, keys.channel(this.id), transcript, { wait, signal });
  }
}

function atLeast(name: string, least: number, value: number): number {
  if (typeof value !== "number" || !(value >= least)) {
    throw new RangeError(`${name}: must be a number of at least ${least}, got ${String(value).slice(0, 40)}`);
  }
  return value;
}

function withoutUndefined(fields: object): object {
  if (typeof fields !== "object" || fields === null) return fields;
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}
