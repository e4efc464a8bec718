// A stream that goes on after any cut: with the gateway gone, the network gone, the laptop asleep.

import { Problem } from "./api.js";
import { eventsOf } from "./sse.js";
import { Gap } from "./transcript.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
const SILENCE = 40_000; // ms; the gateway gives a sign of life much more often

/**
 * What `read` makes of the events of what `open(signal)` opens, again and again until `signal` aborts; then
 * nothing more, even of what has come.
 *
 * Problems that pass, and gaps that `read` finds, are answered by opening anew; others are thrown.
 * `onConnection(up, pause)` is told when the connection comes and goes; `pause` is the number of milliseconds
 * until the next attempt.
 */
export async function* lasting(open, read, signal, onConnection) {
  let pause = FIRST_PAUSE;
  while (!signal.aborted) {
    let wait = null;
    const silence = new AbortController();
    const body = await open(AbortSignal.any([signal, silence.signal])).catch((error) => {
      wait = waitAfter(error, signal);
    });
    if (body) {
      onConnection(true);
      const heard = () => setTimeout(() => silence.abort(), SILENCE);
      let watchdog = heard();
      try {
        for await (const event of eventsOf(body)) {
          if (signal.aborted) return;
          clearTimeout(watchdog);
          watchdog = heard();
          if (event?.data) {
            const value = read(event);
            pause = FIRST_PAUSE;
            yield value;
          }
        }
      } catch (error) {
        wait = waitAfter(error, signal);
      } finally {
        clearTimeout(watchdog);
        silence.abort();
      }
    }
    if (signal.aborted) return;
    const next = Math.max(wait ?? 0, pause * (0.75 + Math.random() / 2));
    onConnection(false, next);
    await sleep(next, signal);
    pause = Math.min(2 * pause, LONGEST_PAUSE);
  }
}

/** Milliseconds to wait at least after an error that passes; throws any other. */
function waitAfter(error, signal) {
  if (signal.aborted || error instanceof Gap) return 0;
  if (error instanceof Problem) {
    if (error.passes) return 1000 * (error.retryAfter ?? 0);
    throw error;
  }
  // A body that breaks off: what reading it raises differs between browsers.
  if (error instanceof TypeError || error instanceof DOMException) return 0;
  throw error;
}

/** Resolves after `time` milliseconds, or at once when the network comes back or `signal` aborts. */
export function sleep(time, signal) {
  return new Promise((resolve) => {
    const finish = () => {
      clearTimeout(timer);
      removeEventListener("online", finish);
      signal?.removeEventListener("abort", finish);
      resolve();
    };
    const timer = setTimeout(finish, time);
    addEventListener("online", finish);
    signal?.addEventListener("abort", finish);
    if (signal?.aborted) finish();
  });
}
