import assert from "node:assert/strict";
import { test } from "node:test";
import { Mailbox } from "../src/mailbox.js";

const LONG = 60_000;
const message = (text: string) => Buffer.from(text);

test("messages come in order, at once and as they arrive", async () => {
  const box = new Mailbox();
  box.put(message("a"));
  assert.equal(String(await box.receive(LONG)), "a");
  const waiting = box.receive(LONG);
  box.put(message("b"));
  box.put(message("c"));
  assert.equal(String(await waiting), "b");
  assert.equal(String(await box.receive(LONG)), "c");
});

test("silence, and what was missed, say that the log is to be read", async () => {
  const box = new Mailbox();
  assert.equal(await box.receive(1), undefined);
  box.put(message("a"));
  box.markMissed();
  assert.equal(await box.receive(LONG), undefined);
  box.put(message("b"));
  assert.equal(String(await box.receive(LONG)), "b");
});

test("a full box is emptied: what it had is in the log", async () => {
  for (const [size, count] of [
    [1, 1025],
    [2 ** 18, 5],
  ] as const) {
    const box = new Mailbox();
    for (let number = 0; number < count; number++) box.put(Buffer.alloc(size));
    assert.equal(await box.receive(LONG), undefined);
    assert.equal((await box.receive(LONG))?.length, size);
    assert.equal(await box.receive(1), undefined);
  }
});

test("an aborted signal and a failure are thrown", async () => {
  const box = new Mailbox();
  const abort = new AbortController();
  const waiting = box.receive(LONG, abort.signal);
  abort.abort(new Error("enough"));
  await assert.rejects(waiting, /enough/);
  await assert.rejects(box.receive(LONG, abort.signal), /enough/);
  const failing = box.receive(LONG);
  box.fail(new Error("closed"));
  await assert.rejects(failing, /closed/);
});
