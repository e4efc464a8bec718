/** Redis URLs: one server, or the first nodes of a Cluster to ask. */

import { readFileSync } from "node:fs";
import type { ConnectionOptions } from "node:tls";

export interface Address {
  readonly host: string;
  readonly port: number;
}

/** Where Redis is, and how to be let in. */
export interface Location {
  readonly kind: "single" | "cluster";
  readonly nodes: readonly Address[];
  /** Path of a Unix socket, in place of `nodes`. */
  readonly path?: string;
  readonly username?: string;
  readonly password?: string;
  readonly database: number;
  /** Undefined is without TLS. */
  readonly tls?: ConnectionOptions;
}

const SCHEMES = ["redis", "rediss", "unix", "redis+cluster", "rediss+cluster"];
const TLS_FILES = { ssl_ca_certs: "ca", ssl_certfile: "cert", ssl_keyfile: "key" } as const;

/**
 * `redis://user:password@host:6379/0`, `rediss://` (TLS), `unix:///path/to.sock?db=0`, or
 * `redis+cluster://user:password@host:6379,host2:6379` and its `rediss+cluster://`. With TLS, the files
 * `ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile` may be named after `?`, as for the Python client.
 *
 * Throws a `TypeError`, without the password.
 */
export function parseLocation(url: string, tls?: ConnectionOptions): Location {
  const [, scheme, credentials, hosts, path, query] =
    /^([a-z+]+):\/\/(?:([^/?#]*)@)?([^/?#]*)([^?#]*)(?:\?([^#]*))?$/.exec(url) ?? [];
  if (scheme === undefined || !SCHEMES.includes(scheme)) {
    throw new TypeError(`redis: the URL's scheme must be one of ${SCHEMES.join(", ")}`);
  }
  const [name, secret] = splitOnce(credentials ?? "", ":").map(decodeURIComponent);
  const options = new URLSearchParams(query);
  const secure = scheme.startsWith("rediss");
  const access = {
    ...(name ? { username: name } : {}),
    ...(secret ? { password: secret } : {}),
    ...(secure ? { tls: { ...filesNamedIn(options), ...tls } } : {}),
  };
  if (tls && !secure) throw new TypeError("tls: only for URLs that begin with rediss");
  const known = secure ? Object.keys(TLS_FILES) : scheme === "unix" ? ["db"] : [];
  for (const option of options.keys()) {
    if (!known.includes(option))
      throw new TypeError(`redis: this client has no URL option ${option.slice(0, 80)}`);
  }
  if (scheme === "unix") {
    return {
      kind: "single",
      nodes: [],
      path: decodeURIComponent(path ?? ""),
      database: databaseOf(options.get("db")),
      ...access,
    };
  }
  if (scheme.endsWith("+cluster")) {
    if (path && path !== "/")
      throw new TypeError("redis: a cluster has no databases: the URL must end after its hosts");
    return { kind: "cluster", nodes: (hosts ?? "").split(",").map(addressOf), database: 0, ...access };
  }
  return {
    kind: "single",
    nodes: [addressOf(hosts || "localhost")],
    database: databaseOf(path?.slice(1)),
    ...access,
  };
}

export function addressOf(text: string): Address {
  const [, host, port] = /^(\[[0-9a-fA-F:.]+\]|[^:[\]\s]+)(?::(\d{1,5}))?$/.exec(text) ?? [];
  if (host === undefined)
    throw new TypeError(`redis: not HOST or HOST:PORT in the URL: ${text.slice(0, 80)}`);
  return { host: host.replace(/^\[|\]$/g, ""), port: Number(port ?? 6379) };
}

function databaseOf(text: string | null | undefined): number {
  if (text && !/^\d{1,9}$/.test(text)) throw new TypeError("redis: the URL's database must be a number");
  return Number(text || 0);
}

function filesNamedIn(options: URLSearchParams): ConnectionOptions {
  const found: Record<string, Buffer> = {};
  for (const [option, name] of Object.entries(TLS_FILES)) {
    const file = options.get(option);
    if (file !== null) found[name] = readFileSync(file);
  }
  return found;
}

function splitOnce(text: string, separator: string): [string, string] {
  const at = text.indexOf(separator);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}
