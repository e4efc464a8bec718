/** Waiting: with growing pauses, and not for ever. */

import { setTimeout as sleep } from "node:timers/promises";

const FIRST = 50;
const LONGEST = 2000;

/** Milliseconds to wait after the first, second, ... failure: doubling, with jitter, up to two seconds. */
export class Pauses {
  #next = FIRST;

  next(): number {
    const pause = this.#next * (0.5 + Math.random() / 2);
    this.#next = Math.min(2 * this.#next, LONGEST);
    return pause;
  }

  reset(): void {
    this.#next = FIRST;
  }
}

/** Throws the signal's own reason when it is aborted. */
export async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  try {
    await sleep(milliseconds, undefined, signal ? { signal } : {});
  } catch (error) {
    signal?.throwIfAborted();
    throw error;
  }
}

/** What did not come in time. */
export class TimedOut extends Error {
  override readonly name = "TimedOut";
}

/** `promise`, unless so many milliseconds pass before it settles: then `TimedOut`. */
export async function within<T>(milliseconds: number, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new TimedOut(`no answer within ${milliseconds} ms`)), milliseconds);
  });
  try {
    return await Promise.race([promise, timeout]);
  } finally {
    clearTimeout(timer);
    promise.catch(() => {});
  }
}
