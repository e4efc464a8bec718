/** A request's outcome, put together from its events and its state. */

import { RequestFailed } from "./errors.js";
import type { Delta, Done, ErrorInfo, FinishReason, TokenLogprobs, Usage } from "./protocol/events.js";

/** When things happened, in Unix milliseconds by Redis's clock; undefined where it was not recorded. */
export interface Timings {
  /** Submitted. */
  readonly created: number | undefined;
  /** Claimed by the worker that serves it, or served it last. */
  readonly started: number | undefined;
  readonly first_token: number | undefined;
  readonly finished: number | undefined;
}

/** A request that has ended, whichever way: see `finish_reason`. */
export interface Result {
  readonly id: string;
  readonly text: string;
  readonly tokens: readonly number[];
  readonly finish_reason: FinishReason;
  /** Whether the model came to an end: a stop, or `max_tokens`. */
  readonly completed: boolean;
  readonly usage: Usage;
  /** One item per token, when the request asked for it. */
  readonly logprobs?: readonly TokenLogprobs[];
  readonly metadata: unknown;
  readonly error?: ErrorInfo;
  readonly timings: Timings;
}

/** The result that successive, gapless `deltas` and `done` add up to. */
export function resultOf(id: string, deltas: readonly Delta[], done: Done, timings: Timings): Result {
  const asked = deltas.some((piece) => piece.logprobs !== undefined);
  return {
    id,
    text: deltas.map((piece) => piece.text).join(""),
    tokens: deltas.flatMap((piece) => piece.tokens),
    finish_reason: done.finish_reason,
    completed: done.finish_reason === "stop" || done.finish_reason === "length",
    usage: done.usage,
    ...(asked ? { logprobs: deltas.flatMap((piece) => piece.logprobs ?? []) } : {}),
    metadata: done.metadata,
    ...(done.error ? { error: done.error } : {}),
    timings,
  };
}

/** The text of a request that completed. Throws `RequestFailed` if it did not. */
export function completedText(result: Result): string {
  if (!result.completed) throw new RequestFailed(result);
  return result.text;
}

/** The timings in a request's state hash. */
export function timingsOf(state: ReadonlyMap<string, string>): Timings {
  return {
    created: milliseconds(state.get("created")),
    started: milliseconds(state.get("started")),
    first_token: milliseconds(state.get("first_token")),
    finished: milliseconds(state.get("finished")),
  };
}

function milliseconds(text: string | undefined): number | undefined {
  return text && /^\d+$/.test(text) ? Number(text) : undefined;
}
