// The gateway, as the page talks to it.

const KEY = "headrace.key";

/** An answer that is an error, or no answer at all (`status` 0). */
export class Problem extends Error {
  constructor(status, { message, code = null, param = null } = {}, retryAfter = null) {
    super(message || `The gateway answered with status ${status}.`);
    this.status = status;
    this.code = code;
    this.param = param;
    this.retryAfter = retryAfter; // seconds
  }

  /** Whether the same call may succeed in a moment. */
  get passes() {
    return [0, 429, 502, 503, 504].includes(this.status) || this.code === "queue_unavailable";
  }
}

/** The key lies in this tab's session only: not in the address, not on disk once the tab is closed. */
export const apiKey = {
  get() {
    try {
      return sessionStorage.getItem(KEY) || "";
    } catch {
      return this.unstored || "";
    }
  },
  set(key) {
    try {
      if (key) sessionStorage.setItem(KEY, key);
      else sessionStorage.removeItem(KEY);
    } catch {
      this.unstored = key;
    }
  },
};

async function ask(method, path, { body, signal, headers = {} } = {}) {
  const key = apiKey.get();
  const options = { method, signal, headers: { ...headers }, cache: "no-store", credentials: "omit" };
  if (key) options.headers.authorization = `Bearer ${key}`;
  if (body !== undefined) {
    options.headers["content-type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, { message: "The gateway cannot be reached.", code: "unreachable" });
  }
  if (response.ok) return response;
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch {
    // Something between here and the gateway answered in its own way.
  }
  // Refused for a key that has been replaced since: what the new one may do is not known yet.
  if (response.status === 401 && apiKey.get() !== key) return ask(method, path, { body, signal, headers });
  throw new Problem(response.status, details, Number(response.headers.get("retry-after")) || null);
}

const request = (id) => `v1/requests/${encodeURIComponent(id)}`;

export const submit = async (body, signal) => (await ask("POST", "v1/requests", { body, signal })).json();
/** With `now`, by the clock that its timings are of. */
export async function state(id, signal) {
  const view = await (await ask("GET", request(id), { signal })).json();
  return { ...view, now: await now(signal) };
}

const FRESH = 60_000;
let clock = null;

/** Unix milliseconds by Redis's clock, which deadlines and timings are of: this machine's may be hours away. */
export async function now(signal) {
  if (clock === null || performance.now() - clock.asked > FRESH) {
    const answer = await (await ask("GET", "v1/time", { signal })).json();
    clock = { told: answer.now, asked: performance.now() };
  }
  return Math.round(clock.told + performance.now() - clock.asked);
}
export const cancel = async (id) => (await ask("DELETE", request(id))).json();
export const models = async () => (await (await ask("GET", "v1/models")).json()).data.map((model) => model.id);

/** The stream of a request's events after `position`. */
export const follow = async (id, position, signal) =>
  (await ask("GET", `${request(id)}/events`, { signal, headers: { "last-event-id": position } })).body;

/** The stream of the system's state. */
export const system = async (signal) => (await ask("GET", "v1/system/events?interval=1", { signal })).body;

/** The problem that an `error` event tells. */
export const told = (event) => new Problem(500, JSON.parse(event.data).error);
