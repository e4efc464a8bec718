// The live view: the state of the system once a second, as long as somebody can see it.

import * as api from "./api.js";
import { byId, setText } from "./dom.js";
import { count, percent, milliseconds, plural, rate, seconds } from "./format.js";
import { showQueues } from "./queues.js";
import { RateHistory } from "./rate_history.js";
import { lasting } from "./stream.js";
import { WorkerPanels } from "./workers.js";

export class LiveView {
  #history = new RateHistory(byId("rate-history"));
  #panels;
  #onFleet;
  #watching = null; // AbortController
  #paused = false;
  #fleet = null;

  /** `ownRequest()` is the id of the playground's request; `onFleet()` is told that other models are served. */
  constructor({ ownRequest, onFleet }) {
    this.#panels = new WorkerPanels(byId("workers"), ownRequest);
    this.#onFleet = onFleet;
    byId("pause").addEventListener("click", () => this.#pause(!this.#paused));
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#stop() : this.start()));
  }

  async start() {
    if (this.#watching || this.#paused || document.hidden) return;
    const watching = (this.#watching = new AbortController());
    const read = (event) => {
      if (event.type === "error") throw api.told(event);
      return JSON.parse(event.data);
    };
    const connection = (up, pause) => {
      if (!up && !watching.signal.aborted) {
        this.#lost(`The gateway, or its queue, does not answer. Trying again in ${seconds(pause / 1000)}.`);
      }
    };
    try {
      for await (const system of lasting(api.system, read, watching.signal, connection)) this.#show(system);
    } catch (error) {
      this.#refused(error);
    } finally {
      if (this.#watching === watching) this.#watching = null;
    }
  }

  restart() {
    this.#stop();
    this.start();
  }

  #stop() {
    this.#watching?.abort();
    this.#watching = null;
  }

  #pause(paused) {
    this.#paused = paused;
    byId("pause").setAttribute("aria-pressed", String(paused));
    setText(byId("pause"), paused ? "Go on" : "Pause");
    if (paused) {
      this.#stop();
      this.#state("Paused", "");
    } else this.start();
  }

  #state(words, kind) {
    setText(byId("live-state"), words);
    byId("live-state").dataset.kind = kind;
  }

  #lost(words) {
    this.#state("Not current", "failed");
    byId("live-body").classList.add("stale");
    setText(byId("live-problem"), words);
    byId("live-problem").hidden = false;
  }

  #refused(error) {
    if (!(error instanceof api.Problem)) throw error;
    this.#lost(
      error.status === 401 ? "The live view appears once the gateway has got a valid API key."
        : error.status === 403 ? "This API key may not see the system: that takes one with admin = true."
          : error.message,
    );
    this.#state("Closed", "");
    byId("live-body").hidden = true;
  }

  #show(system) {
    this.#state(system.complete ? "Live" : "Still looking", "live");
    byId("live-problem").hidden = true;
    byId("live-body").hidden = false;
    byId("live-body").classList.remove("stale");
    this.#showFigures(system);
    showQueues(byId("queues"), system.queues);
    byId("no-worker").hidden = system.workers.length > 0;
    this.#panels.show(system.workers);
    this.#history.add(system.tokens_per_second);
    const fleet = JSON.stringify([...new Set(system.workers.map((worker) => worker.model))].sort());
    if (this.#fleet !== null && this.#fleet !== fleet) this.#onFleet();
    this.#fleet = fleet;
  }

  #showFigures(system) {
    const first = system.time_to_first_token;
    const inMilliseconds = (value) => (value === null ? "–" : milliseconds(1000 * value));
    setText(byId("live-rate"), rate(system.tokens_per_second));
    setText(byId("live-first"), inMilliseconds(first.p50));
    setText(byId("live-first-90"), inMilliseconds(first.p90));
    setText(byId("live-first-99"), inMilliseconds(first.p99));
    setText(byId("live-first-count"), count(first.count));
    const total = (field) => system.workers.reduce((sum, worker) => sum + worker[field], 0);
    setText(byId("live-running"), count(total("running")));
    setText(byId("live-waiting"), `${count(total("waiting"))} waiting for a place`);
    const used = system.blocks_total - system.blocks_free;
    setText(byId("live-cache"), system.blocks_total ? percent(used / system.blocks_total) : "–");
    setText(byId("live-blocks"), `${count(used)} of ${plural(system.blocks_total, "block")}`);
  }
}
