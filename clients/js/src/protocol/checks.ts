/** What a request's fields may hold. Each check returns the value for the wire, or throws `RequestError`. */

import { countCodePoints } from "./codePoints.js";
import { described, isRecord, plain, wellFormed } from "./plainData.js";
import { RequestError } from "./requestError.js";

export type Check = (value: unknown, field: string) => unknown;

/** A whole number. Beyond 2^53 it has to be a bigint: a number would not be exact. */
export function whole(least: bigint | number, most: bigint | number): Check {
  return (value, field) => {
    if (typeof value !== "bigint" && !Number.isSafeInteger(value)) {
      const problem =
        typeof value === "number"
          ? "must be a whole number within 2^53, or a bigint"
          : "must be a whole number";
      throw new RequestError(field, `${problem}, got ${described(value)}`);
    }
    const number = value as bigint | number;
    if (number < least || number > most) {
      throw new RequestError(field, `must be from ${least} to ${most}, got ${described(number)}`);
    }
    return plain(number, field);
  };
}

export function numeric(least: number, most: number, options: { above?: boolean } = {}): Check {
  return (value, field) => {
    if (typeof value !== "number" || Number.isNaN(value)) {
      throw new RequestError(field, `must be a number, got ${described(value)}`);
    }
    if (value < least || value > most || (options.above && value === least)) {
      const range = options.above ? `above ${least} and at most ${most}` : `from ${least} to ${most}`;
      throw new RequestError(field, `must be ${range}, got ${described(value)}`);
    }
    return value;
  };
}

/** Text of so many code points. */
export function text(least: number, most: number): Check {
  return (value, field) => {
    const string = aString(value, field);
    if (string.length < least || countCodePoints(string) > most) {
      throw new RequestError(field, `must be ${least} to ${most} characters, got ${countCodePoints(string)}`);
    }
    return string;
  };
}

export function textOfBytes(most: number): Check {
  return (value, field) => {
    const string = aString(value, field);
    const size = Buffer.byteLength(string);
    if (size === 0) throw new RequestError(field, "must not be empty");
    if (size > most) throw new RequestError(field, `must be at most ${most} bytes of UTF-8, got ${size}`);
    return string;
  };
}

export function matching(pattern: RegExp, description: string): Check {
  return (value, field) => {
    if (!pattern.test(aString(value, field))) throw new RequestError(field, description);
    return value;
  };
}

export function oneOf(choices: readonly string[]): Check {
  return (value, field) => {
    if (typeof value !== "string" || !choices.includes(value)) {
      throw new RequestError(field, `must be one of ${choices.join(", ")}`);
    }
    return value;
  };
}

export function flag(value: unknown, field: string): boolean {
  if (typeof value !== "boolean")
    throw new RequestError(field, `must be true or false, got ${described(value)}`);
  return value;
}

export function listOf(item: Check, least: number, most: number): Check {
  return (value, field) => {
    if (!Array.isArray(value)) throw new RequestError(field, `must be an array, got ${described(value)}`);
    if (value.length < least || value.length > most) {
      throw new RequestError(field, `must have ${least} to ${most} items, got ${value.length}`);
    }
    return value.map((each, index) => item(each, `${field}.${index}`));
  };
}

/** A chat message. Further fields are handed to the model's chat template as they are. */
export function message(value: unknown, field: string): unknown {
  if (!isRecord(value)) throw new RequestError(field, `must be an object, got ${described(value)}`);
  text(1, 64)(value.role, `${field}.role`);
  if (value.content !== undefined && value.content !== null) aString(value.content, `${field}.content`);
  return plain(value, field);
}

function aString(value: unknown, field: string): string {
  if (typeof value !== "string") throw new RequestError(field, `must be a string, got ${described(value)}`);
  return wellFormed(value, field);
}
