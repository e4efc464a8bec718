// One request, followed from any point to its end.

import * as api from "./api.js";
import { lasting, sleep } from "./stream.js";
import { Transcript } from "./transcript.js";

const REPLAY = 60; // ms after the first event in which what was said earlier comes

/**
 * Follows the request `id` to its end and returns its `done` event.
 *
 * `observer` has `connection(up, pause)`, `piece({count, text, epoch, replayed})` and `state(view)`; the last
 * is called each second while the request waits for its first token. Throws `Problem`; returns null when
 * `signal` aborts.
 */
export async function followRun(id, { fresh, signal, observer }) {
  const transcript = new Transcript();
  const waiting = new AbortController();
  watchQueue(id, AbortSignal.any([signal, waiting.signal]), observer);
  let catchingUp = !fresh; // what was said before this connection says nothing about time
  let since = null;
  const connection = (up, pause) => {
    if (!up) [catchingUp, since] = [true, null];
    observer.connection(up, pause);
  };
  const read = (event) => {
    if (event.type === "error") throw api.told(event);
    const body = JSON.parse(event.data);
    return event.type === "done" ? { done: body } : { epoch: body.epoch, ...transcript.take(body) };
  };
  try {
    const open = (stop) => api.follow(id, transcript.position, stop);
    for await (const { done, ...piece } of lasting(open, read, signal, connection)) {
      waiting.abort();
      if (done) return done;
      since ??= performance.now();
      if (performance.now() - since > REPLAY) catchingUp = false;
      if (piece.count !== undefined) observer.piece({ ...piece, replayed: catchingUp });
    }
    return null;
  } finally {
    waiting.abort();
  }
}

async function watchQueue(id, signal, observer) {
  while (!signal.aborted) {
    await sleep(1000, signal);
    if (signal.aborted) return;
    try {
      observer.state(await api.state(id, signal));
    } catch {
      // The stream tells what is wrong.
    }
  }
}
