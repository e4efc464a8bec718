/**
 * Putting a request on its queue: once, bounded, and so that a client's crash half-way heals.
 *
 * On one server that is one script. A request's state and its model's queues lie in different slots of a Redis
 * Cluster, so there it takes several, and state without an `entry` means that nobody knows of a queue entry
 * yet: submitting again adds one. So it does where the last was added a while ago and the request has not ended:
 * somebody may have trimmed the stream. Should there be two after all, the second does nothing, since claiming
 * passes over an entry whose request has another on the queue, or has ended.
 */

import type { Connection } from "./connection.js";
import { QueueFull } from "./errors.js";
import { type Keys, LANES, laneOf, PRIORITIES } from "./protocol/keys.js";
import type { CheckedRequest } from "./protocol/request.js";
import { ENQUEUE, RECORD, SUBMIT, WITHDRAW } from "./scripts/script.js";

/** Milliseconds that the state of a queued request is kept; a worker's claim sets its own. */
const PENDING_TTL = 24 * 3600 * 1000;
/** Milliseconds from a request's last entry until submitting it again adds another. */
const ENQUEUE_AGAIN_AFTER = 15_000;
const UNLIMITED = 2 ** 53;

/**
 * Enqueue `request`, unless its id is known: then nothing happens, or it is enqueued again if that was long ago
 * and there is room.
 *
 * Throws `QueueFull`, and as `Connection.call`: whether it was enqueued is then unknown; repeat to be sure.
 */
export async function enqueue(
  connection: Connection,
  keys: Keys,
  request: CheckedRequest,
  limit: number | null,
): Promise<void> {
  const state = keys.request(request.id);
  const queues = keys.queues(request.model) as [string, ...string[]];
  const queue = PRIORITIES.indexOf(request.priority) * LANES + laneOf(request.tenant);
  const most = limit ?? UNLIMITED;
  const chosen = [queue + 1, request.data];
  let depth: number | undefined;
  if (connection.servers.sharded) {
    depth = await inCluster(connection, state, queues, request.model, [most, ...chosen]);
  } else {
    const reply = await connection.call((servers) =>
      SUBMIT.run(
        servers,
        [state, ...queues],
        [most, request.model, PENDING_TTL, ENQUEUE_AGAIN_AFTER, ...chosen],
      ),
    );
    const [before, enqueued] = reply as [number, number];
    if (enqueued < 0) depth = before;
  }
  if (depth !== undefined) throw new QueueFull(depth, limit ?? 0);
}

/** The queues' depth where there is no room for the request. */
async function inCluster(
  connection: Connection,
  state: string,
  queues: [string, ...string[]],
  model: string,
  chosen: (Uint8Array | number)[],
): Promise<number | undefined> {
  const record = async (entry: string) => {
    const reply = await connection.call((servers) =>
      RECORD.run(servers, [state], [model, PENDING_TTL, entry, ENQUEUE_AGAIN_AFTER]),
    );
    const [created, due] = reply as [number, Buffer];
    return { created: created === 1, due: due.toString() };
  };

  const before = await record("");
  if (before.due === "") return undefined;
  const reply = await connection.call((servers) => ENQUEUE.run(servers, queues, chosen));
  const [depth, entry] = reply as [number, Buffer?];
  if (entry) {
    await record(entry.toString());
    return undefined;
  }
  if (before.created) await connection.call((servers) => WITHDRAW.run(servers, [state], []));
  return before.due === "again" ? undefined : depth;
}
