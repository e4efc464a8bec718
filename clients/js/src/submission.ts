/**
 * Putting a request on its queue: once, bounded, and so that a client's crash half-way heals.
 *
 * On one server that is one script. A request's state and its model's queues lie in different slots of a Redis
 * Cluster, so there it takes several, and state without an `entry` means that nobody knows of a queue entry
 * yet: submitting again adds one. Should there be two after all, the second does nothing, since claiming passes
 * over an entry whose request runs or has ended.
 */

import type { Connection } from "./connection.js";
import { QueueFull } from "./errors.js";
import { type Keys, LANES, laneOf, PRIORITIES } from "./protocol/keys.js";
import type { CheckedRequest } from "./protocol/request.js";
import { ENQUEUE, RECORD, SUBMIT, WITHDRAW } from "./scripts/script.js";

/** Milliseconds that the state of a queued request is kept; a worker's claim sets its own. */
const PENDING_TTL = 24 * 3600 * 1000;
const UNLIMITED = 2 ** 53;

/** A queue's depth before, and the entry's id; empty when it was full. */
type Outcome = [depth: number, entry: Buffer];

/**
 * Enqueue `request`, unless its id is known: then nothing happens.
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
  const chosen = [queue + 1, limit ?? UNLIMITED, request.data];
  let outcome: Outcome | [];
  if (connection.servers.sharded) {
    outcome = await inCluster(connection, state, queues, request.model, chosen);
  } else {
    const reply = await connection.call((servers) =>
      SUBMIT.run(servers, [state, ...queues], [...chosen, request.model, PENDING_TTL]),
    );
    outcome = reply as Outcome | [];
  }
  const [depth, entry] = outcome;
  if (entry?.length === 0) throw new QueueFull(depth ?? 0, limit ?? 0);
}

/** Nothing where the request is known already. */
async function inCluster(
  connection: Connection,
  state: string,
  queues: [string, ...string[]],
  model: string,
  chosen: (Uint8Array | number)[],
): Promise<Outcome | []> {
  const record = async (entry: string) => {
    const reply = await connection.call((servers) =>
      RECORD.run(servers, [state], [model, PENDING_TTL, entry]),
    );
    const [created, status, earlierEntry] = reply as [number, Buffer, Buffer];
    return { created: created === 1, status: status.toString(), enqueued: earlierEntry.length > 0 };
  };

  const before = await record("");
  if (!before.created && (before.enqueued || before.status !== "queued")) return [];
  const reply = await connection.call((servers) => ENQUEUE.run(servers, queues, chosen));
  const [depth, entry] = reply as Outcome;
  if (entry.length > 0) await record(entry.toString());
  else if (before.created) await connection.call((servers) => WITHDRAW.run(servers, [state], []));
  return [depth, entry];
}
