// The JavaScript client at a test's command. One JSON object a line comes in, with a number `n`, and one with
// the same number goes out: `value`, or `error`. Commands run at the same time.
import { createInterface } from "node:readline";
import { Client, Unavailable } from "headrace";
import { decodeEvent } from "../../../clients/js/dist/protocol/events.js";
import { slotOf } from "../../../clients/js/dist/redis/slots.js";
import { checkRequest } from "../../../clients/js/dist/protocol/request.js";

const clients = new Map();
const handles = new Map();
const streams = new Map();

const commands = {
  open({ client, url, options }) {
    clients.set(client, new Client(url, options));
  },
  async close({ client }) {
    await clients.get(client).close();
  },
  async submit({ client, request }) {
    const handle = await clients.get(client).submit(request);
    handles.set(`${client}/${handle.id}`, handle);
    return handle.id;
  },
  async submitAll({ client, requests }) {
    const submitted = await clients.get(client).submitAll(requests);
    for (const handle of submitted) handles.set(`${client}/${handle.id}`, handle);
    return submitted.map((handle) => handle.id);
  },
  attach({ client, id, options }) {
    handles.set(`${client}/${id}`, clients.get(client).attach(id, options));
  },
  follow({ client, id, stream, options }) {
    streams.set(stream, handles.get(`${client}/${id}`).events(options));
  },
  async next({ stream }) {
    const { value, done } = await streams.get(stream).next();
    return done ? null : value;
  },
  async leave({ stream }) {
    await streams.get(stream).return();
  },
  result: ({ client, id, timeout }) =>
    handles.get(`${client}/${id}`).result(timeout ? { signal: AbortSignal.timeout(timeout) } : {}),
  text: ({ client, id }) => handles.get(`${client}/${id}`).text(),
  status: ({ client, id }) => handles.get(`${client}/${id}`).status(),
  cancel: ({ client, id }) => handles.get(`${client}/${id}`).cancel(),
  encode: ({ requests }) =>
    requests.map((request) => {
      try {
        return Buffer.from(checkRequest(request).data).toString("base64");
      } catch (error) {
        return { name: error.name, field: error.field, message: error.message };
      }
    }),
  decode: ({ events }) => events.map((event) => decodeEvent(Buffer.from(event, "base64")) ?? null),
  slots: ({ keys }) => keys.map(slotOf),
  async memory() {
    for (let round = 0; round < 3; round++) {
      await new Promise((resolve) => setTimeout(resolve, 10)); // buffers are given back between rounds
      globalThis.gc();
    }
    return process.memoryUsage().heapUsed + process.memoryUsage().external;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { n, do: name, ...rest } = JSON.parse(line, revive);
  Promise.resolve()
    .then(() => commands[name](rest))
    .then(
      (value) => say({ n, value }),
      (error) => {
        const unavailable = error instanceof Unavailable;
        say({ n, error: { ...error, name: error.name, message: error.message, unavailable } });
      },
    );
}

function say(answer) {
  process.stdout.write(`${JSON.stringify(answer, replace)}\n`);
}

// What JSON cannot say: {"$": kind, "is": text}.
function revive(_, value) {
  if (value?.$ === "bigint") return BigInt(value.is);
  if (value?.$ === "number") return Number(value.is);
  if (value?.$ === "bytes") return Uint8Array.from(Buffer.from(value.is, "base64"));
  return value;
}

function replace(name, value) {
  const bytes = this[name]; // before its own toJSON
  if (bytes instanceof Uint8Array) return { $: "bytes", is: Buffer.from(bytes).toString("base64") };
  return typeof value === "bigint" ? { $: "bigint", is: String(value) } : value;
}
