/**
 * Names of the Redis keys and channels: the part of the wire contract that every participant shares.
 *
 * `{...}` in a name is a literal Redis Cluster hash tag, so all keys of one model, and all keys of one
 * request, live in one slot and can be touched by one script.
 */

import { crc32 } from "node:zlib";

export type Priority = "high" | "normal" | "low";

export const PRIORITIES: readonly Priority[] = ["high", "normal", "low"];
export const LANES = 16;

export const REQUEST_ID = /^[A-Za-z0-9_-]{1,128}$/;
export const MODEL_NAME = /^[A-Za-z0-9._:/@+-]{1,200}$/;
const NAMESPACE = /^[A-Za-z0-9._:/@+-]{1,100}$/;

/** The lane (0 to 15) that a tenant's requests queue in; 0 without a tenant. */
export function laneOf(tenant: string | undefined): number {
  return tenant ? crc32(tenant) % LANES : 0;
}

/**
 * Key and channel names under one namespace, in one database of the server. A server's channels know no
 * databases, so their names carry it, unless it is the first.
 *
 * Names that could escape their hash tag or pattern are refused with a `TypeError`: a request id or a model
 * name comes from outside.
 */
export class Keys {
  readonly #namespace: string;

  readonly #database: number;

  constructor(namespace = "headrace", database = 0) {
    this.#namespace = named("namespace", namespace, NAMESPACE);
    this.#database = database;
  }

  /** All queue streams of a model: by priority, then by lane. */
  queues(model: string): string[] {
    const prefix = this.#ofModel("queue", model);
    return PRIORITIES.flatMap((priority) =>
      Array.from({ length: LANES }, (_, lane) => `${prefix}:${priority}:${lane}`),
    );
  }

  /** Channel of notices to workers, msgpack `{"cancel": ID}` or `{"missing": ID}`. */
  control(model: string): string {
    return this.#channel(this.#ofModel("control", model));
  }

  /** Hash of one request's state. */
  request(id: string): string {
    return this.#ofRequest("request", id);
  }

  /** Stream of one request's events; entry field `e` holds a msgpack event. Authoritative. */
  events(id: string): string {
    return this.#ofRequest("events", id);
  }

  /** Channel on which the same event bytes are published as they are logged. */
  channel(id: string): string {
    return this.#channel(this.#ofRequest("channel", id));
  }

  #channel(name: string): string {
    return this.#database === 0 ? name : `${name}@${this.#database}`;
  }

  #ofModel(kind: string, model: string): string {
    return `${this.#namespace}:${kind}:{${named("model", model, MODEL_NAME)}}`;
  }

  #ofRequest(kind: string, id: string): string {
    return `${this.#namespace}:${kind}:{${named("id", id, REQUEST_ID)}}`;
  }
}

function named(field: string, value: string, pattern: RegExp): string {
  if (typeof value !== "string" || !pattern.test(value)) {
    const got = JSON.stringify(String(value).slice(0, 80));
    throw new TypeError(`${field}: must match ${pattern.source.slice(1, -1)}, got ${got}`);
  }
  return value;
}
