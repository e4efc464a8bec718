/** Data that msgpack can carry to a reader in any language, and back. */

import { Decoder, Encoder } from "@msgpack/msgpack";
import { RequestError } from "./requestError.js";

/** Of lists and maps in one another. */
const MAX_DEPTH = 64;
const INT64_MIN = -(2n ** 63n);
const UINT64_MAX = 2n ** 64n - 1n;

const encoder = new Encoder({ useBigInt64: true, maxDepth: MAX_DEPTH + 10 });
const decoder = new Decoder({ useBigInt64: true });

export function pack(value: unknown): Uint8Array {
  return encoder.encode(value);
}

/** Whole numbers come as `number`, and as `bigint` where that would not be exact. Throws what it cannot read. */
export function unpack(data: Uint8Array): unknown {
  return narrowed(decoder.decode(data));
}

/**
 * `value` as it is packed: whole numbers stay whole, properties that are undefined are left out.
 *
 * Throws `RequestError`, which names the place in it (`metadata.tags.0`), for what has no form on the wire:
 * text without UTF-8, integers beyond 64 bits, functions, dates and class instances, and for what is nested
 * too deep.
 */
export function plain(value: unknown, field: string): unknown {
  return plainAt(value, field, field, MAX_DEPTH);
}

/** `root` is the field that `field` lies in, and `room` how many lists and maps may still be in one another. */
function plainAt(value: unknown, field: string, root: string, room: number): unknown {
  switch (typeof value) {
    case "boolean":
      return value;
    case "string":
      return wellFormed(value, field);
    case "number":
      // The encoder makes floats of whole numbers beyond 32 bits, unless they are bigints.
      return Number.isSafeInteger(value) && !isSmall(value) ? BigInt(value) : value;
    case "bigint":
      if (value < INT64_MIN || value > UINT64_MAX) {
        throw new RequestError(field, "must be an integer of at most 64 bits");
      }
      return value;
    case "object":
      if (value === null || value instanceof Uint8Array) return value;
      if (room === 0) throw new RequestError(root, `must be nested at most ${MAX_DEPTH} deep`);
      if (Array.isArray(value)) {
        return value.map((item, index) => plainAt(item ?? null, `${field}.${index}`, root, room - 1));
      }
      if (isRecord(value)) {
        const entries = Object.entries(value).filter(([, item]) => item !== undefined);
        if (!entries.every(([name]) => name.isWellFormed())) {
          throw new RequestError(field, "must have names of valid Unicode, without lone surrogates");
        }
        return Object.fromEntries(
          entries.map(([name, item]) => [name, plainAt(item, `${field}.${name}`, root, room - 1)]),
        );
      }
  }
  throw new RequestError(field, `must be plain data, got ${described(value)}`);
}

export function wellFormed(text: string, field: string): string {
  if (!text.isWellFormed()) throw new RequestError(field, "must be valid Unicode, without lone surrogates");
  return text;
}

/** Numbers only: text is the user's, and errors are logged. */
export function described(value: unknown): string {
  if (typeof value === "number" || typeof value === "bigint") return String(value).slice(0, 40);
  if (value === null) return "null";
  return Array.isArray(value) ? "array" : typeof value;
}

/** Whether it is an object made by `{}` or from JSON. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || prototype === Object.prototype || isForeignObject(prototype);
}

/** `Object.prototype` of another realm, such as a test runner's sandbox. */
function isForeignObject(prototype: unknown): boolean {
  return (
    typeof prototype === "object" &&
    prototype !== null &&
    Object.getPrototypeOf(prototype) === null &&
    Object.hasOwn(prototype, "hasOwnProperty")
  );
}

function isSmall(value: number): boolean {
  return value >= -(2 ** 31) && value < 2 ** 32;
}

function narrowed(value: unknown): unknown {
  if (typeof value === "bigint") {
    const number = Number(value);
    return Number.isSafeInteger(number) ? number : value;
  }
  if (Array.isArray(value)) return value.map(narrowed);
  if (isRecord(value)) {
    for (const name of Object.keys(value)) value[name] = narrowed(value[name]);
  }
  return value;
}
