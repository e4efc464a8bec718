/**
 * Events: what a worker says about a request, in the log and on the channel, in msgpack.
 *
 * `seq` counts output tokens and `pos` characters (code points) of text before the event, so a reader that
 * knows how much it has can take from any event exactly what it lacks; see `Transcript`.
 */

import { isRecord, unpack } from "./plainData.js";

export type FinishReason = "stop" | "length" | "cancelled" | "expired" | "error";

const FINISH_REASONS: readonly unknown[] = ["stop", "length", "cancelled", "expired", "error"];

/** One token's own log-probability, and the most likely tokens with theirs. */
export type TokenLogprobs = readonly [
  own: number,
  top: ReadonlyArray<readonly [token: number, logprob: number]>,
];

/** Tokens produced since the previous event. `text` may be empty while a character is incomplete. */
export interface Delta {
  readonly type: "delta";
  readonly seq: number;
  readonly pos: number;
  readonly epoch: number;
  readonly tokens: readonly number[];
  readonly text: string;
  /** One item per token, when the request asked for it. */
  readonly logprobs?: readonly TokenLogprobs[];
}

/** Token counts of a finished request. `cached_tokens` of the prompt were not computed again. */
export interface Usage {
  readonly prompt_tokens: number;
  readonly completion_tokens: number;
  readonly cached_tokens: number;
}

/** Why a request ended with `error`: a stable code, and a sentence for people. */
export interface ErrorInfo {
  readonly code: string;
  readonly message: string;
}

/** The last event of a request, exactly one. `seq` is the number of output tokens in all. */
export interface Done {
  readonly type: "done";
  readonly seq: number;
  readonly epoch: number;
  readonly finish_reason: FinishReason;
  readonly usage: Usage;
  readonly metadata: unknown;
  readonly error?: ErrorInfo;
}

export type HeadraceEvent = Delta | Done;

/** The event in these bytes; undefined for what this version does not know or cannot read. */
export function decodeEvent(data: Uint8Array): HeadraceEvent | undefined {
  try {
    const body = record(unpack(data));
    if (body.type === "delta") return delta(body);
    if (body.type === "done") return done(body);
  } catch (error) {
    if (!(error instanceof Error)) throw error;
  }
  return undefined;
}

function delta(body: Record<string, unknown>): Delta {
  const event: Delta = {
    type: "delta",
    seq: count(body.seq),
    pos: count(body.pos),
    epoch: count(body.epoch),
    tokens: list(body.tokens).map(count),
    text: string(body.text),
  };
  if (body.logprobs === undefined || body.logprobs === null) return event;
  return { ...event, logprobs: list(body.logprobs).map(tokenLogprobs) };
}

function done(body: Record<string, unknown>): Done {
  if (!FINISH_REASONS.includes(body.finish_reason)) throw new TypeError("a finish_reason of another version");
  const usage = record(body.usage);
  const event: Done = {
    type: "done",
    seq: count(body.seq),
    epoch: count(body.epoch),
    finish_reason: body.finish_reason as FinishReason,
    usage: {
      prompt_tokens: count(usage.prompt_tokens ?? 0),
      completion_tokens: count(usage.completion_tokens ?? 0),
      cached_tokens: count(usage.cached_tokens ?? 0),
    },
    metadata: body.metadata ?? null,
  };
  if (body.error === undefined || body.error === null) return event;
  const error = record(body.error);
  return { ...event, error: { code: string(error.code), message: string(error.message) } };
}

function tokenLogprobs(item: unknown): TokenLogprobs {
  const [own, top] = list(item);
  return [
    number(own),
    list(top).map((pair) => {
      const [token, logprob] = list(pair);
      return [count(token), number(logprob)] as const;
    }),
  ];
}

function record(value: unknown): Record<string, unknown> {
  if (!isRecord(value)) throw new TypeError("a map was expected");
  return value;
}

function list(value: unknown): unknown[] {
  if (!Array.isArray(value)) throw new TypeError("a list was expected");
  return value;
}

function string(value: unknown): string {
  if (typeof value !== "string") throw new TypeError("text was expected");
  return value;
}

function number(value: unknown): number {
  if (typeof value !== "number") throw new TypeError("a number was expected");
  return value;
}

function count(value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0) throw new TypeError("a count was expected");
  return value as number;
}
