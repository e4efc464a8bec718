/**
 * Putting requests on their queue: once, bounded, all or none, and so that a client's crash half-way heals.
 *
 * On one server that is one script. A request's state and its model's queues lie in different slots of a Redis
 * Cluster, so there it takes several, and state without an `entry` means that nobody knows of a queue entry
 * yet: submitting again adds one. So it does where the last was added a while ago and the request has not ended:
 * somebody may have trimmed the stream. Should there be two after all, the second does nothing, since claiming
 * passes over an entry whose request has another on the queue, or has ended.
 */

import type { Connection } from "./connection.js";
import { QueueFull } from "./errors.js";
import { within } from "./pauses.js";
import { type Keys, LANES, laneOf, PRIORITIES } from "./protocol/keys.js";
import type { CheckedRequest } from "./protocol/request.js";
import { ENQUEUE, RECORD, SUBMIT, WITHDRAW } from "./scripts/script.js";

/** Milliseconds that the state of a queued request is kept; a worker's claim sets its own. */
const PENDING_TTL = 24 * 3600 * 1000;
/** Milliseconds from a request's last entry until submitting it again adds another. */
const ENQUEUE_AGAIN_AFTER = 15_000;
const UNLIMITED = 2 ** 53;
/** Milliseconds for taking back what was begun, while Redis does not answer everywhere. */
const TIME_TO_WITHDRAW = 2000;

/** `entries` are the number of a queue (from 1) and what to add to it, one for each of `states`. */
interface Submission {
  readonly model: string;
  readonly states: readonly [string, ...string[]];
  readonly entries: readonly (readonly [number, Uint8Array])[];
  readonly queues: readonly [string, ...string[]];
  readonly limit: number;
}

/**
 * Enqueue `requests`, which are of one model: all or none. One whose id is known is passed over, or enqueued again if
 * that was long ago and there is room.
 *
 * Throws `QueueFull`, a `RangeError` (there are none, or of several models), and as `Connection.call`: whether they
 * were enqueued is then unknown; repeat to be sure.
 */
export async function enqueue(
  connection: Connection,
  keys: Keys,
  requests: readonly CheckedRequest[],
  limit: number | null,
): Promise<void> {
  const models = new Set(requests.map((request) => request.model));
  const [model] = models;
  if (model === undefined || models.size > 1) {
    throw new RangeError(`requests: must be of 1 model, got ${models.size}`);
  }
  const submission: Submission = {
    model,
    states: requests.map((request) => keys.request(request.id)) as [string, ...string[]],
    entries: requests.map((request) => [queueNumber(request), request.data] as const),
    queues: keys.queues(model) as [string, ...string[]],
    limit: limit ?? UNLIMITED,
  };
  const depth = await (connection.servers.sharded ? inCluster : onOneServer)(connection, submission);
  if (depth !== undefined) throw new QueueFull(depth, limit ?? 0, requests.length);
}

function queueNumber(request: CheckedRequest): number {
  return 1 + PRIORITIES.indexOf(request.priority) * LANES + laneOf(request.tenant);
}

/** The queues' depth where there is no room; undefined where the requests are enqueued. */
async function onOneServer(connection: Connection, submission: Submission): Promise<number | undefined> {
  const { model, states, entries, queues, limit } = submission;
  const reply = await connection.call((servers) =>
    SUBMIT.run(
      servers,
      [...states, ...queues],
      [limit, model, PENDING_TTL, ENQUEUE_AGAIN_AFTER, ...entries.flat()],
    ),
  );
  const [depth, enqueued] = reply as [number, number];
  return enqueued < 0 ? depth : undefined;
}

/** As `onOneServer`. All queues of a model lie in one slot, so one script adds the entries. */
async function inCluster(connection: Connection, submission: Submission): Promise<number | undefined> {
  const { model, states, entries, queues, limit } = submission;
  const record = async (state: string, entry: string) => {
    const reply = await connection.call((servers) =>
      RECORD.run(servers, [state], [model, PENDING_TTL, entry, ENQUEUE_AGAIN_AFTER]),
    );
    const [created, due] = reply as [number, Buffer];
    return { created: created === 1, due: due.toString() };
  };
  type Entry = { state: string; entry: readonly [number, Uint8Array] };
  const created: string[] = [];
  const fresh: Entry[] = [];
  const again: Entry[] = [];
  const add = async (some: readonly Entry[]): Promise<number | undefined> => {
    const reply = await connection.call((servers) =>
      ENQUEUE.run(servers, queues, [limit, ...some.flatMap(({ entry }) => entry)]),
    );
    const [depth, ...added] = reply as [number, ...Buffer[]];
    if (added.length === 0) return depth;
    for (const [index, { state }] of some.entries()) await record(state, String(added[index]));
    return undefined;
  };
  const withdraw = async () => {
    for (const state of created) {
      await connection.call((servers) => WITHDRAW.run(servers, [state], []));
    }
  };

  try {
    for (const [index, entry] of entries.entries()) {
      const state = states[index] as string;
      const before = await record(state, "");
      if (before.created) created.push(state);
      if (before.due !== "") (before.due === "again" ? again : fresh).push({ state, entry });
    }
  } catch (error) {
    // A state without an entry is never served and expires; until then it must not read as queued.
    await within(TIME_TO_WITHDRAW, withdraw()).catch(() => {});
    throw error;
  }
  if (fresh.length > 0) {
    const depth = await add(fresh);
    if (depth !== undefined) {
      await withdraw();
      return depth;
    }
  }
  if (again.length > 0) await add(again); // a second entry needs no room to be made for it
  return undefined;
}
