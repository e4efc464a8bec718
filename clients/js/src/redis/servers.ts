/** Commands by key, whether one server has all keys or the nodes of a cluster share them. */

import { Cluster } from "./cluster.js";
import type { Location } from "./location.js";
import { Server } from "./server.js";
import type { Argument, Reply } from "./session.js";

export interface Servers {
  /** Whether a channel belongs to the server of its slot. */
  readonly sharded: boolean;
  /** The reply to a command all of whose keys are where `key` is. Throws as `Server.send`. */
  send(key: string, command: readonly Argument[]): Promise<Reply>;
  /** The server that has `key`; one and the same object for all keys of one server. */
  owner(key: string): Promise<Server>;
  /** A server did not have what it should have: ask again where things are. */
  doubt(): void;
  close(): void;
}

export function openServers(location: Location, timeout: number): Servers {
  if (location.kind === "cluster") return new Cluster(location, timeout);
  const server = new Server(location, location.nodes[0], timeout);
  return {
    sharded: false,
    send: (_, command) => server.send(command),
    owner: () => Promise.resolve(server),
    doubt: () => {},
    close: () => server.close(),
  };
}
