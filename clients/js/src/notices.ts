/** What clients tell workers at once; none of it is needed for a request to end well. */

import type { Connection } from "./connection.js";
import type { Keys } from "./protocol/keys.js";
import { pack } from "./protocol/plainData.js";

/** Publish on the control channel of `model`. Throws as `Connection.call`. */
export async function notify(
  connection: Connection,
  keys: Keys,
  model: string,
  notice: { cancel: string } | { missing: string },
): Promise<void> {
  const channel = keys.control(model);
  const data = Buffer.from(pack(notice));
  await connection.call((servers) =>
    servers.send(channel, [servers.sharded ? "SPUBLISH" : "PUBLISH", channel, data]),
  );
}
