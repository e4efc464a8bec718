/** A request's state as its clients see it, and cancelling. */

import type { Connection } from "./connection.js";
import { UnknownRequest } from "./errors.js";
import { stateOf } from "./eventLog.js";
import { notify } from "./notices.js";
import type { FinishReason } from "./protocol/events.js";
import type { Keys } from "./protocol/keys.js";
import type { Reply } from "./redis/session.js";
import { type Timings, timingsOf } from "./result.js";
import { CANCEL } from "./scripts/script.js";

/** Where a request stands. `attempts` above one: its worker was lost, and another went on. */
export interface RequestStatus {
  readonly id: string;
  readonly status: "queued" | "running" | "finished";
  readonly attempts: number;
  readonly worker: string | undefined;
  /** Whether cancelling was asked for; the request may still have ended otherwise. */
  readonly cancelled: boolean;
  readonly finish_reason: FinishReason | undefined;
  readonly timings: Timings;
}

/** Throws `UnknownRequest`, and as `Connection.call`. */
export async function readStatus(connection: Connection, keys: Keys, id: string): Promise<RequestStatus> {
  const key = keys.request(id);
  const reply = await connection.call((servers) => servers.send(key, ["HGETALL", key]));
  const state = stateOf(reply as Reply[]);
  const status = state.get("status");
  if (status !== "queued" && status !== "running" && status !== "finished") throw new UnknownRequest(id);
  return {
    id,
    status,
    attempts: Number(state.get("attempts") || 0),
    worker: state.get("worker") || undefined,
    cancelled: Boolean(state.get("cancel")),
    finish_reason: (state.get("finish_reason") || undefined) as FinishReason | undefined,
    timings: timingsOf(state),
  };
}

/**
 * Ask for a request's end; whether there was one that had not ended.
 *
 * The flag in its state reaches whoever claims it or serves it; the notice makes its worker look at once.
 * `model` is where to send the notice if the state does not say.
 */
export async function cancel(
  connection: Connection,
  keys: Keys,
  id: string,
  model: string | undefined,
): Promise<boolean> {
  const reply = await connection.call((servers) => CANCEL.run(servers, [keys.request(id)], []));
  const [status, recorded] = (reply as Reply[]).map(String);
  if (status === "finished") return false;
  const where = recorded || model;
  if (where) await notify(connection, keys, where, { cancel: id });
  return status !== "";
}
