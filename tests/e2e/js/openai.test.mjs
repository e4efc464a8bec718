// The official openai package, unmodified, before a gateway and a worker on a tiny model. Addresses come from
// test_npm_packages.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { GATEWAY, SMALL_GATEWAY, GUARDED_GATEWAY, GATEWAY_KEY } = process.env;
const options = { baseURL: `${GATEWAY}/v1`, apiKey: "unused", maxRetries: 0, timeout: 60_000 };
const client = new OpenAI(options);
const messages = [
  { role: "system", content: "be brief" },
  { role: "user", content: "the mill and the stream 水 😀" },
];
const ask = { model: "tiny", messages, temperature: 0, max_tokens: 24 };

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks, index = 0) =>
  chunks
    .flatMap((chunk) => chunk.choices)
    .filter((choice) => choice.index === index)
    .map((choice) => choice.delta?.content ?? choice.text ?? "")
    .join("");

test("chat: whole, streamed and by the stream helper are the same", async () => {
  const whole = await client.chat.completions.create(ask);
  assert.equal(whole.object, "chat.completion");
  assert.equal(whole.model, "tiny");
  const [choice] = whole.choices;
  assert.equal(choice.message.role, "assistant");
  assert.ok(["length", "stop"].includes(choice.finish_reason));
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);
  assert.ok(whole.usage.completion_tokens > 0 && whole.usage.completion_tokens <= 24);
  assert.ok(whole._request_id);

  const chunks = await collect(
    await client.chat.completions.create({ ...ask, stream: true, stream_options: { include_usage: true } }),
  );
  assert.equal(textOf(chunks), choice.message.content);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(chunks.at(-2).choices[0].finish_reason, choice.finish_reason);

  const pieces = [];
  const helper = client.chat.completions.stream(ask).on("content", (piece) => pieces.push(piece));
  const final = await helper.finalChatCompletion();
  assert.equal(final.choices[0].message.content, choice.message.content);
  assert.equal(pieces.join(""), choice.message.content);
});

test("chat: without include_usage no chunk has any", async () => {
  const chunks = await collect(await client.chat.completions.create({ ...ask, stream: true }));
  assert.ok(chunks.length > 2);
  assert.ok(chunks.every((chunk) => !chunk.usage && chunk.choices.length === 1));
});

test("completions: whole and streamed, prompts and token ids", async () => {
  const asked = { model: "tiny", prompt: "the mill", temperature: 0, max_tokens: 12 };
  const whole = await client.completions.create(asked);
  assert.equal(whole.object, "text_completion");
  const chunks = await collect(await client.completions.create({ ...asked, stream: true }));
  assert.equal(textOf(chunks), whole.choices[0].text);
  assert.equal(chunks.at(-1).choices[0].finish_reason, whole.choices[0].finish_reason);
  const several = await client.completions.create({ ...asked, prompt: ["the mill", "the stream"] });
  assert.deepEqual(several.choices.map((choice) => choice.index), [0, 1]);
  assert.equal(several.choices[0].text, whole.choices[0].text);
  const tokens = await client.completions.create({ ...asked, prompt: [5, 6, 7] });
  assert.equal(tokens.usage.prompt_tokens, 3);
});

test("models: listed, retrieved, unknown", async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.deepEqual(ids, ["tiny"]);
  assert.equal((await client.models.retrieve("tiny")).id, "tiny");
  await assert.rejects(client.models.retrieve("gpt-4"), OpenAI.NotFoundError);
});

test("n choices, whole and streamed, are the same for the same seed", async () => {
  const asked = { ...ask, n: 3, temperature: 1, seed: 5 };
  const whole = await client.chat.completions.create(asked);
  assert.deepEqual(whole.choices.map((choice) => choice.index), [0, 1, 2]);
  assert.ok(new Set(whole.choices.map((choice) => choice.message.content)).size > 1);
  const chunks = await collect(await client.chat.completions.create({ ...asked, stream: true }));
  for (const choice of whole.choices) assert.equal(textOf(chunks, choice.index), choice.message.content);
});

test("logprobs name the tokens of the text", async () => {
  const asked = { ...ask, logprobs: true, top_logprobs: 3 };
  const whole = await client.chat.completions.create(asked);
  const { content } = whole.choices[0].logprobs;
  assert.equal(content.length, whole.usage.completion_tokens);
  for (const item of content) {
    assert.ok(item.logprob <= 0);
    assert.equal(item.top_logprobs.length, 3);
    assert.equal(item.top_logprobs[0].token, item.token);
  }
  const chunks = await collect(await client.chat.completions.create({ ...asked, stream: true }));
  const streamed = chunks.flatMap((chunk) => chunk.choices[0].logprobs?.content ?? []);
  assert.deepEqual(streamed.map((item) => item.token), content.map((item) => item.token));
  const completion = await client.completions.create({ model: "tiny", prompt: "a", max_tokens: 4, logprobs: 2 });
  assert.equal(completion.choices[0].logprobs.token_logprobs.length, completion.usage.completion_tokens);
});

test("stop ends the text before the first that appears", async () => {
  const whole = (await client.chat.completions.create(ask)).choices[0].message.content;
  const characters = [...whole];
  const stop = characters.slice(characters.length / 2, characters.length / 2 + 2).join("");
  const stopped = await client.chat.completions.create({ ...ask, stop: [stop, "never there"] });
  assert.equal(stopped.choices[0].message.content, whole.slice(0, whole.indexOf(stop)));
  assert.equal(stopped.choices[0].finish_reason, "stop");
  const chunks = await collect(await client.chat.completions.create({ ...ask, stop, stream: true }));
  assert.equal(textOf(chunks), stopped.choices[0].message.content);
});

for (const [fields, param] of [
  [{ temperature: 5 }, "temperature"],
  [{ max_tokens: 0 }, "max_tokens"],
  [{ top_logprobs: 3 }, "top_logprobs"],
  [{ messages: [] }, "messages"],
  [{ messages: [{ role: "user", content: 7 }] }, "messages.0.content"],
  [{ tools: [{ type: "function", function: { name: "f" } }] }, "tools"],
  [{ response_format: { type: "json_object" } }, "response_format"],
]) {
  test(`400 names ${param}`, async () => {
    await assert.rejects(client.chat.completions.create({ ...ask, ...fields }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, param);
      assert.equal(error.type, "invalid_request_error");
      return true;
    });
  });
}

test("400 in a stream is thrown before its first chunk", async () => {
  const stream = client.chat.completions.create({ ...ask, stream: true, temperature: 5 });
  await assert.rejects(stream, OpenAI.BadRequestError);
});

test("401 without a key and with a wrong one; the right one is let in", async () => {
  for (const apiKey of ["wrong", `${GATEWAY_KEY}x`]) {
    const guarded = new OpenAI({ ...options, baseURL: `${GUARDED_GATEWAY}/v1`, apiKey });
    await assert.rejects(guarded.chat.completions.create(ask), (error) => {
      assert.ok(error instanceof OpenAI.AuthenticationError);
      assert.equal(error.code, "invalid_api_key");
      return true;
    });
  }
  const guarded = new OpenAI({ ...options, baseURL: `${GUARDED_GATEWAY}/v1`, apiKey: GATEWAY_KEY });
  assert.ok((await guarded.chat.completions.create(ask)).choices[0].message.content);
});

test("404 for an unknown model", async () => {
  await assert.rejects(client.chat.completions.create({ ...ask, model: "gpt-4" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
});

test("429 for a full queue, and the package's retries come through once there is room", async () => {
  const small = new OpenAI({ ...options, baseURL: `${SMALL_GATEWAY}/v1` });
  // So that the gateway knows how fast requests leave the queue.
  await small.chat.completions.create({ ...ask, max_tokens: 1 });
  const endless = { ...ask, max_tokens: 400, ignore_eos: true, stream: true };
  const { data: stream, response } = await small.chat.completions.create(endless).withResponse();
  const id = response.headers.get("x-headrace-request");
  const refusals = [];
  await assert.rejects(small.chat.completions.create(ask), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.code, "queue_full");
    assert.ok(Number(error.headers.get("retry-after")) >= 1);
    return true;
  });
  const retrying = new OpenAI({
    ...options,
    baseURL: `${SMALL_GATEWAY}/v1`,
    maxRetries: 5,
    async fetch(...request) {
      const answer = await fetch(...request);
      if (answer.status === 429) {
        refusals.push(answer.status);
        await fetch(`${SMALL_GATEWAY}/v1/requests/${id}`, { method: "DELETE" });
      }
      return answer;
    },
  });
  assert.ok((await retrying.chat.completions.create(ask)).choices[0].message.content);
  assert.ok(refusals.length >= 1);
  await assert.rejects(collect(stream), { code: "request_cancelled" });
});

test("a retry after a lost answer is the same request", async () => {
  const ids = [];
  const flaky = new OpenAI({
    ...options,
    maxRetries: 2,
    async fetch(...request) {
      const answer = await fetch(...request);
      ids.push(answer.headers.get("x-headrace-request"));
      if (ids.length === 1) throw new TypeError("the connection was lost");
      return answer;
    },
  });
  const answer = await flaky.chat.completions.create(ask, {
    headers: { "Idempotency-Key": `retry-${process.pid}` },
  });
  assert.deepEqual([answer.id, ids[0]], [ids[1], ids[1]]);
});

test("abort ends the stream here, and the request there if it asked for that", async () => {
  const asked = { ...ask, max_tokens: 400, ignore_eos: true, stream: true, cancel_on_disconnect: true };
  const { data: stream, response } = await client.chat.completions.create(asked).withResponse();
  for await (const chunk of stream) if (chunk.choices[0].delta.content) break; // breaking aborts
  assert.ok(stream.controller.signal.aborted);
  const address = `${GATEWAY}/v1/requests/${response.headers.get("x-headrace-request")}`;
  for (;;) {
    const { status, result } = await (await fetch(address)).json();
    if (status !== "finished") continue;
    assert.equal(result.finish_reason, "cancelled");
    return;
  }
});

test("abort by signal throws the package's own error", async () => {
  const asked = { ...ask, max_tokens: 400, ignore_eos: true, cancel_on_disconnect: true };
  const signal = AbortSignal.timeout(50);
  await assert.rejects(client.chat.completions.create(asked, { signal }), OpenAI.APIUserAbortError);
});

test("streams side by side", async () => {
  const texts = await Promise.all(
    Array.from({ length: 6 }, async (_, n) => {
      const asked = { ...ask, messages: [{ role: "user", content: `number ${n}` }] };
      const [whole, chunks] = await Promise.all([
        client.chat.completions.create(asked),
        client.chat.completions.create({ ...asked, stream: true }).then(collect),
      ]);
      return [whole.choices[0].message.content, textOf(chunks)];
    }),
  );
  for (const [whole, streamed] of texts) assert.equal(streamed, whole);
});
