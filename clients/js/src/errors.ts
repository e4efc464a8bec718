/** What can go wrong for a caller, apart from a request that is wrong itself (`RequestError`). */

import type { Result } from "./result.js";

/** Base of the errors below. */
export class HeadraceError extends Error {}

/**
 * Redis cannot be reached, or refuses: longer than the client's patience, or for good.
 *
 * The request itself is unharmed: attach to its id again, or submit it again under the same id.
 */
export class Unavailable extends HeadraceError {
  override readonly name: string = "Unavailable";
}

/** Redis has reached its memory limit and takes nothing more. */
export class ServerFull extends Unavailable {
  override readonly name = "ServerFull";
}

/**
 * The model's queue holds `depth` requests, running ones included, and has no room for `wanted` more.
 *
 * Nothing was enqueued.
 */
export class QueueFull extends HeadraceError {
  override readonly name = "QueueFull";
  readonly depth: number;
  readonly limit: number;
  readonly wanted: number;

  constructor(depth: number, limit: number, wanted = 1) {
    const more = wanted === 1 ? "" : `, ${wanted} more do not fit`;
    super(`the queue holds ${depth} requests, the limit is ${limit}${more}`);
    this.depth = depth;
    this.limit = limit;
    this.wanted = wanted;
  }
}

/** Redis has neither state nor events of this id: never submitted, expired, or lost with the data. */
export class UnknownRequest extends HeadraceError {
  override readonly name = "UnknownRequest";
  readonly id: string;

  constructor(id: string) {
    super(`request ${id} is unknown or has expired`);
    this.id = id;
  }
}

/** The request has ended and its log lacks events: somebody cut it, or Redis lost writes. */
export class EventsLost extends HeadraceError {
  override readonly name = "EventsLost";
  readonly id: string;

  constructor(id: string) {
    super(`request ${id} has ended and part of its event log is missing`);
    this.id = id;
  }
}

/** The request ended without completing: cancelled, expired, or with an error. `result` has it all. */
export class RequestFailed extends HeadraceError {
  override readonly name = "RequestFailed";
  readonly result: Result;

  constructor(result: Result) {
    const reason = result.error ? `${result.error.code}: ${result.error.message}` : result.finish_reason;
    super(`request ${result.id} ended early (${reason})`);
    this.result = result;
  }
}
