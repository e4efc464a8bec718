/** Requests: what a client asks for, validated before Redis hears of it, with the limits of the workers. */

import {
  type Check,
  flag,
  listOf,
  matching,
  message,
  numeric,
  oneOf,
  text,
  textOfBytes,
  whole,
} from "./checks.js";
import { MODEL_NAME, PRIORITIES, type Priority, REQUEST_ID } from "./keys.js";
import { described, isRecord, pack, plain } from "./plainData.js";
import { RequestError } from "./requestError.js";

const VERSION = 1;
const MAX_BYTES = 8 * 2 ** 20;
const MAX_PROMPT_BYTES = 4 * 2 ** 20;
const MAX_TOKENS_IN_PROMPT = 2 ** 20;
const MAX_METADATA_BYTES = 16 * 2 ** 10;

const INT64 = 2n ** 63n;
const TOKEN = whole(0, 2 ** 31 - 1);

export interface Message {
  role: string;
  content?: string | null;
  /** Further fields are handed to the model's chat template as they are. */
  [field: string]: unknown;
}

/** What is asked for: exactly one of the three. */
export type Prompt =
  | { prompt: string; messages?: undefined; tokens?: undefined }
  | { messages: Message[]; prompt?: undefined; tokens?: undefined }
  | { tokens: number[]; prompt?: undefined; messages?: undefined };

/** What a request may say beside its prompt. The names are those of the wire. */
export interface RequestFields {
  /** 1 to 128 of `A-Z a-z 0-9 _ -`; made up if left out. The same id again is the same request. */
  id?: string | undefined;
  /** Served name; the client's if left out. */
  model?: string | undefined;
  /** Most output tokens, 256 if left out. */
  max_tokens?: number | undefined;
  /** 0, the default, picks the likeliest token. */
  temperature?: number | undefined;
  top_p?: number | undefined;
  top_k?: number | undefined;
  min_p?: number | undefined;
  repetition_penalty?: number | undefined;
  presence_penalty?: number | undefined;
  frequency_penalty?: number | undefined;
  /** 64 bits; beyond 2^53 as a bigint. Without one, the id decides. */
  seed?: number | bigint | null | undefined;
  /** Up to 16 texts that end the output and are not part of it. */
  stop?: string[] | undefined;
  stop_tokens?: number[] | undefined;
  ignore_eos?: boolean | undefined;
  /** 0 to 20: how many of the likeliest tokens to report beside each token's own. */
  logprobs?: number | null | undefined;
  priority?: Priority | undefined;
  /** Unix time in milliseconds, by Redis's clock, after which nobody wants the answer. */
  deadline?: number | null | undefined;
  /** Tenants share the workers fairly. */
  tenant?: string | null | undefined;
  /** Up to 16 KiB of plain data, echoed in `done`. */
  metadata?: unknown;
  /** W3C traceparent. */
  trace?: string | null | undefined;
}

/** A request whose every field was checked. */
export interface CheckedRequest {
  readonly id: string;
  readonly model: string;
  readonly priority: Priority;
  readonly tenant: string | undefined;
  /** The bytes for a queue entry's `r` field. */
  readonly data: Uint8Array;
}

const CHECKS: Record<string, Check> = {
  id: matching(REQUEST_ID, "must be 1 to 128 of the characters A-Z a-z 0-9 _ -"),
  model: matching(MODEL_NAME, "must be 1 to 200 of the characters A-Z a-z 0-9 . _ : / @ + -"),
  prompt: textOfBytes(MAX_PROMPT_BYTES),
  messages: listOf(message, 1, 10_000),
  tokens: listOf(TOKEN, 1, MAX_TOKENS_IN_PROMPT),
  max_tokens: whole(1, MAX_TOKENS_IN_PROMPT),
  temperature: numeric(0, 100),
  top_p: numeric(0, 1, { above: true }),
  top_k: whole(0, 2 ** 31),
  min_p: numeric(0, 1),
  repetition_penalty: numeric(0, 10, { above: true }),
  presence_penalty: numeric(-2, 2),
  frequency_penalty: numeric(-2, 2),
  seed: whole(-INT64, INT64 - 1n),
  stop: listOf(text(1, 256), 0, 16),
  stop_tokens: listOf(TOKEN, 0, 256),
  ignore_eos: flag,
  logprobs: whole(0, 20),
  priority: oneOf(PRIORITIES),
  deadline: whole(0, INT64 - 1n),
  tenant: text(1, 256),
  metadata: metadataOfBytes(MAX_METADATA_BYTES),
  trace: text(0, 256),
};
const MAY_BE_NULL = new Set([
  "prompt",
  "messages",
  "tokens",
  "seed",
  "logprobs",
  "deadline",
  "tenant",
  "metadata",
  "trace",
]);

/** Throws `RequestError`, which names the first field that is wrong and its limit. */
export function checkRequest(fields: unknown): CheckedRequest {
  if (!isRecord(fields)) throw new RequestError("request", `must be an object, got ${described(fields)}`);
  const unknown = Object.keys(fields).find((name) => !Object.hasOwn(CHECKS, name));
  if (unknown !== undefined) throw new RequestError(unknown.slice(0, 80), "is not a field of a request");
  for (const name of ["id", "model"]) {
    if (fields[name] === undefined) throw new RequestError(name, "is needed");
  }
  const wire: Record<string, unknown> = { v: VERSION };
  for (const [name, check] of Object.entries(CHECKS)) {
    const value = fields[name];
    if (value === undefined || (value === null && MAY_BE_NULL.has(name))) continue;
    wire[name] = check(value, name);
  }
  const given = ["prompt", "messages", "tokens"].filter((name) => name in wire);
  if (given.length !== 1) {
    const got = given.join(", ") || "none";
    throw new RequestError("request", `exactly one of prompt, messages and tokens is needed, got ${got}`);
  }
  const data = pack(wire);
  if (data.length > MAX_BYTES) {
    throw new RequestError("request", `must be at most ${MAX_BYTES} bytes, got ${data.length}`);
  }
  return {
    id: wire.id as string,
    model: wire.model as string,
    priority: (wire.priority ?? "normal") as Priority,
    tenant: wire.tenant as string | undefined,
    data,
  };
}

function metadataOfBytes(most: number): Check {
  return (value, field) => {
    const data = plain(value, field);
    const size = pack(data).length;
    if (size > most) throw new RequestError(field, `must be at most ${most} bytes of msgpack, got ${size}`);
    return data;
  };
}
