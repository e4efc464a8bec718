// Vercel's AI SDK, unmodified, before a gateway and a worker on a tiny model, with the route handlers of
// docs/javascript.md; useChat in React, in a simulated browser. Addresses come from test_npm_packages.py.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { DefaultChatTransport, generateText, streamText } from "ai";
import { JSDOM } from "jsdom";

const { GATEWAY, EXAMPLES } = process.env;
const provider = createOpenAICompatible({
  name: "headrace",
  baseURL: `${GATEWAY}/v1`,
  apiKey: "unused",
  includeUsage: true,
});
const model = provider.chatModel("tiny");
const ask = { model, prompt: "the mill 水 😀", temperature: 0, maxOutputTokens: 24, maxRetries: 0 };

test("generateText and streamText give the same", async () => {
  const whole = await generateText(ask);
  assert.ok(whole.text.length > 0);
  assert.ok(["length", "stop"].includes(whole.finishReason));
  assert.ok(whole.usage.inputTokens > 0 && whole.usage.outputTokens > 0);
  const streamed = streamText(ask);
  const pieces = [];
  for await (const piece of streamed.textStream) pieces.push(piece);
  assert.ok(pieces.length > 1);
  assert.equal(pieces.join(""), whole.text);
  assert.equal(await streamed.finishReason, whole.finishReason);
  assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
});

test("completion models, system prompts, seeds and stop sequences", async () => {
  const completion = await generateText({ ...ask, model: provider.completionModel("tiny") });
  assert.ok(completion.text.length > 0);
  const seeded = { ...ask, temperature: 1, seed: 3, instructions: "be brief" };
  const [first, again] = [await generateText(seeded), await generateText(seeded)];
  assert.equal(first.text, again.text);
  const stop = [...first.text].slice(4, 6).join("");
  const stopped = await generateText({ ...seeded, stopSequences: [stop] });
  assert.equal(stopped.text, first.text.slice(0, first.text.indexOf(stop)));
  assert.equal(stopped.finishReason, "stop");
});

test("errors say what the gateway says", async () => {
  await assert.rejects(generateText({ ...ask, temperature: 5 }), (error) => {
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /temperature/);
    assert.equal(error.isRetryable, false);
    return true;
  });
  await assert.rejects(generateText({ ...ask, model: provider.chatModel("gpt-4") }), { statusCode: 404 });
});

test("abort ends a stream", async () => {
  const abort = new AbortController();
  const streamed = streamText({ ...ask, maxOutputTokens: 400, abortSignal: abort.signal, onError() {} });
  let pieces = 0;
  for await (const part of streamed.stream) {
    if (part.type === "text-delta" && ++pieces === 2) abort.abort();
    if (part.type === "abort") return;
  }
  assert.fail("the stream did not say that it was aborted");
});

// useChat -----------------------------------------------------------------------------------------------

let site;
let react;
const routes = {};

before(async () => {
  const { window } = new JSDOM("<!doctype html><main></main>", { url: "http://localhost/" });
  Object.assign(globalThis, { window, document: window.document, IS_REACT_ACT_ENVIRONMENT: false });
  react = {
    ...(await import("react")),
    ...(await import("react-dom/client")),
    ...(await import("@ai-sdk/react")),
  };
  routes.chat = await import(`${EXAMPLES}/app/api/chat/route.js`);
  routes.resumable = await import(`${EXAMPLES}/app/api/resumable/route.js`);
  // What a framework does around route handlers.
  const server = createServer(async (incoming, outgoing) => {
    const [, , name, id] = incoming.url.split("/");
    const left = new AbortController();
    outgoing.on("close", () => left.abort(new Error("the browser has gone")));
    const chunks = [];
    for await (const chunk of incoming) chunks.push(chunk);
    const request = new Request(`http://localhost${incoming.url}`, {
      method: incoming.method,
      signal: left.signal,
      ...(incoming.method === "POST" ? { body: Buffer.concat(chunks) } : {}),
    });
    const answer = await routes[name][incoming.method](request, { params: Promise.resolve({ id }) });
    outgoing.writeHead(answer.status, Object.fromEntries(answer.headers));
    try {
      for await (const chunk of answer.body ?? []) outgoing.write(chunk);
      outgoing.end();
    } catch {
      outgoing.destroy();
    }
  });
  site = await new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () => resolve({ server, url: `http://127.0.0.1:${server.address().port}` }));
  });
});

after(() => {
  site.server.closeAllConnections();
  site.server.close();
});

/** A page with a chat; `now` is what its component was last given, `seen` all the texts it showed. */
function openPage(options) {
  const page = { now: undefined, seen: [] };
  function Chat() {
    page.now = react.useChat(options);
    page.seen.push(textOf(page.now.messages));
    return react.createElement("p", null, textOf(page.now.messages));
  }
  const place = document.body.appendChild(document.createElement("div"));
  const root = react.createRoot(place);
  root.render(react.createElement(Chat));
  return Object.assign(page, { place, close: () => root.unmount() });
}

const transport = (name) => new DefaultChatTransport({ api: `${site.url}/api/${name}` });
const textOf = (messages) =>
  messages
    .filter((message) => message.role === "assistant")
    .flatMap((message) => message.parts.map((part) => (part.type === "text" ? part.text : "")))
    .join("");

async function until(condition) {
  for (const giveUp = Date.now() + 60_000; Date.now() < giveUp; ) {
    if (condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.fail(`${condition} stayed false`);
}

test("useChat streams through the gateway, turn after turn", async () => {
  const page = openPage({ transport: transport("chat") });
  await until(() => page.now);
  for (const turn of [1, 2]) {
    page.now.sendMessage({ text: `turn ${turn}` });
    await until(() => page.now.status === "ready" && page.now.messages.length === 2 * turn);
    assert.equal(page.now.messages.at(-1).role, "assistant");
    assert.ok(textOf(page.now.messages.slice(-1)).length > 0);
  }
  assert.ok(new Set(page.seen).size > 4, "it came in pieces");
  assert.equal(page.place.textContent, textOf(page.now.messages));
  page.close();
});

test("useChat: stop", async () => {
  const page = openPage({ transport: transport("chat") });
  await until(() => page.now);
  page.now.sendMessage({ text: "a long story" });
  await until(() => textOf(page.now.messages).length > 3);
  await page.now.stop();
  await until(() => page.now.status === "ready");
  page.close();
});

test("useChat: a reload in mid-stream loses nothing and repeats nothing", async () => {
  const id = `chat-${process.pid}`;
  const first = openPage({ id, transport: transport("resumable") });
  await until(() => first.now);
  first.now.sendMessage({ text: "the mill" });
  await until(() => textOf(first.now.messages).length > 3);
  const before = textOf(first.now.messages);
  first.close();
  const messages = first.now.messages.filter((message) => message.role === "user"); // what the site has saved
  const second = openPage({ id, messages, resume: true, transport: transport("resumable") });
  await until(() => second.now?.status === "streaming");
  await until(() => second.now.status === "ready");
  const text = textOf(second.now.messages);
  assert.ok(text.startsWith(before) && text.length > before.length);
  const third = openPage({ id, messages, resume: true, transport: transport("resumable") }); // after its end
  await until(() => third.now?.messages.length === 2 && third.now.status === "ready");
  assert.equal(textOf(third.now.messages), text);
  for (const page of [second, third]) page.close();
});

test("useChat: cancelled by the route, the chat ends early", async () => {
  const id = `cancelled-${process.pid}`;
  const page = openPage({ id, transport: transport("resumable") });
  await until(() => page.now);
  page.now.sendMessage({ text: "a long story" });
  await until(() => textOf(page.now.messages).length > 3);
  await fetch(`${site.url}/api/resumable/${id}/stream`, { method: "DELETE" });
  await until(() => page.now.status === "ready");
  page.close();
});

test("useChat: nothing to resume is no error", async () => {
  const page = openPage({ id: "never-was", resume: true, transport: transport("resumable") });
  await until(() => page.now?.status === "ready");
  assert.equal(page.now.error, undefined);
  page.close();
});
