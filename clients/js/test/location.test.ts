import assert from "node:assert/strict";
import { test } from "node:test";
import { parseLocation } from "../src/redis/location.js";

test("one server", () => {
  assert.deepEqual(parseLocation("redis://user:p%40ss%3Aword@[::1]:7000/3"), {
    kind: "single",
    nodes: [{ host: "::1", port: 7000 }],
    username: "user",
    password: "p@ss:word",
    database: 3,
  });
  assert.deepEqual(parseLocation("redis://"), {
    kind: "single",
    nodes: [{ host: "localhost", port: 6379 }],
    database: 0,
  });
  assert.deepEqual(parseLocation("redis://:secret@redis.example"), {
    kind: "single",
    nodes: [{ host: "redis.example", port: 6379 }],
    password: "secret",
    database: 0,
  });
  assert.deepEqual(parseLocation("unix:///run/redis.sock?db=2"), {
    kind: "single",
    nodes: [],
    path: "/run/redis.sock",
    database: 2,
  });
});

test("a cluster, with TLS", () => {
  assert.deepEqual(parseLocation("rediss+cluster://u:p@a:1,b", { ca: "own" }), {
    kind: "cluster",
    nodes: [
      { host: "a", port: 1 },
      { host: "b", port: 6379 },
    ],
    username: "u",
    password: "p",
    database: 0,
    tls: { ca: "own" },
  });
  assert.throws(() => parseLocation("redis://a", { ca: "own" }), /tls: only for URLs that begin with rediss/);
});

test("no error has the password", () => {
  for (const url of [
    "redis://u:s3cret@a/x",
    "http://u:s3cret@a",
    "redis://u:s3cret@a b",
    "redis+cluster://u:s3cret@a/1",
  ]) {
    assert.throws(
      () => parseLocation(url),
      (error: Error) => error instanceof TypeError && !error.message.includes("s3cret"),
    );
  }
});
