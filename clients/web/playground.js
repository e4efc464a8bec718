// The playground: a form, an answer as it comes, and what became of it.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { byId, make, setText } from "./dom.js";
import { count, milliseconds, plural, seconds } from "./format.js";
import { Announcer, OutputText } from "./output.js";
import { clearMarks, keepForm, parametersOf, patienceOf, pointAt, write } from "./parameters.js";
import { showProblem, hideProblem } from "./problems.js";
import { followRun } from "./run.js";
import { Timing } from "./timing.js";
import { TimingStrip, scaleOf } from "./timing_strip.js";

const ENDS = {
  stop: "Ended by itself",
  length: "Reached the limit of tokens",
  cancelled: "Stopped",
  expired: "Given up: its time was over",
  error: "Failed",
};
const ROLES = { prompt: "Prompt", system: "System", user: "You", assistant: "Model" };

export class Playground {
  #form = byId("form");
  #conversation = new Conversation();
  #strip = new TimingStrip((mark) => this.#output?.highlight(mark?.start ?? null, mark?.end));
  #announcer = new Announcer(byId("spoken"));
  #output = null;
  #timing = null;
  #request = null; // id of the request that is shown
  #following = null; // AbortController while it runs
  #epoch = null;
  #complete = false; // the end of the request that is shown has come

  constructor() {
    keepForm(this.#form);
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.#form.addEventListener("change", () => this.#showMode());
    byId("stop-request").addEventListener("click", () => this.stop());
    byId("new").addEventListener("click", () => this.clear());
    byId("copy").addEventListener("click", () => this.#copy());
    addEventListener("hashchange", () => this.resume());
    this.#showMode();
  }

  get request() {
    return this.#request;
  }

  get busy() {
    return this.#following !== null;
  }

  /** Shows the request that the address names, if it names one: it may be running or have ended. */
  resume() {
    const id = new URLSearchParams(location.hash.slice(1)).get("request");
    if (!id || (id === this.#request && (this.busy || this.#complete))) return;
    this.#following?.abort();
    this.#conversation.restore();
    if (this.#conversation.turns.at(-1)?.request !== id) {
      this.#conversation.turns = [{ role: "assistant", text: "", request: id }];
    }
    this.#conversation.turns.at(-1).text = "";
    this.#follow(id, { fresh: false, sent: null });
  }

  async send() {
    if (this.busy) return;
    hideProblem();
    clearMarks(this.#form);
    const text = this.#form.elements.prompt.value;
    if (!text) {
      this.#failed(new api.Problem(0, { message: "Write something first.", code: "empty", param: "prompt" }));
      return;
    }
    const isChat = this.#form.elements.mode.value === "chat";
    const before = isChat && this.#conversation.isChat ? this.#conversation.turns : [];
    const body = parametersOf(this.#form);
    if (isChat) body.messages = this.#messages(before, text);
    else body.prompt = text;
    this.#following = new AbortController();
    this.#showStatus("Sending", "busy");
    const sent = performance.now();
    let id;
    try {
      const patience = patienceOf(this.#form);
      if (patience) body.deadline = (await api.now(this.#following.signal)) + patience;
      ({ id } = await api.submit(body, this.#following.signal));
    } catch (error) {
      this.#following = null;
      if (error.name === "AbortError") this.#showStatus("Stopped", "ended");
      else this.#failed(error);
      return;
    }
    const asked = { role: isChat ? "user" : "prompt", text };
    this.#conversation.replace([...before, asked, { role: "assistant", text: "", request: id }]);
    if (isChat) this.#form.elements.prompt.value = "";
    write(this.#form);
    this.#request = id;
    history.pushState(null, "", `#request=${id}`);
    this.#follow(id, { fresh: true, sent });
  }

  async stop() {
    if (!this.busy) return;
    if (this.#request === null || byId("status").textContent === "Sending") {
      this.#following.abort();
      return;
    }
    this.#showStatus("Stopping", "busy");
    const following = this.#following;
    try {
      const { status } = await api.cancel(this.#request);
      if (status === "queued" && following === this.#following) {
        // Whichever worker comes to it drops it; until one does there is nothing to follow.
        following.abort();
        this.#complete = true;
        this.#showStatus("Stopped before it began", "ended");
      }
    } catch (error) {
      showProblem(error, { onRetry: () => this.stop() });
    }
  }

  /** Empties the page for another prompt; a request that runs is left to itself. */
  clear() {
    this.#following?.abort();
    this.#following = null;
    this.#request = null;
    this.#conversation.replace([]);
    this.#announcer.reset();
    hideProblem();
    this.#connected(true);
    history.pushState(null, "", location.pathname + location.search);
    byId("turns").replaceChildren();
    byId("empty").hidden = false;
    byId("timing").hidden = true;
    this.#showStatus("Ready", "");
    byId("prompt").focus();
  }

  #messages(before, text) {
    const system = this.#form.elements.system.value;
    const turns = new Conversation();
    turns.turns = [...before, { role: "user", text }];
    return [...(system ? [{ role: "system", content: system }] : []), ...turns.messages];
  }

  async #follow(id, { fresh, sent }) {
    const following = (this.#following = new AbortController());
    this.#request = id;
    this.#epoch = null;
    this.#complete = false;
    this.#timing = new Timing(sent);
    this.#announcer.reset();
    hideProblem();
    this.#showTurns();
    this.#showAddress(id);
    this.#strip.show(this.#timing, (mark) => this.#output.text.slice(mark.start, mark.end));
    this.#showFacts();
    this.#showStatus(fresh ? "Queued" : "Catching up", "busy");
    const observer = {
      connection: (up, pause) => this.#connected(up, pause),
      state: (view) => this.#waiting(view),
      piece: (piece) => this.#take(piece),
    };
    try {
      const done = await followRun(id, { fresh, signal: following.signal, observer });
      if (done) await this.#ended(id, done);
    } catch (error) {
      if (!following.signal.aborted) this.#failed(error);
    } finally {
      if (this.#following === following) {
        this.#following = null;
        this.#showButtons();
      }
    }
  }

  #take(piece) {
    this.#timing.add(piece);
    this.#output.append(piece.text);
    this.#announcer.add(piece.text);
    if (this.#epoch !== null && piece.epoch !== this.#epoch) {
      this.#announcer.add(" Another worker goes on. ");
    }
    this.#epoch = piece.epoch;
    if (byId("status").textContent !== "Stopping") {
      this.#showStatus(piece.epoch > 1 ? `Running, attempt ${piece.epoch}` : "Running", "busy");
    }
    this.#showFacts();
    this.#strip.draw();
  }

  #waiting(view) {
    if (view.status === "queued") {
      const waited = view.timings.created ? (view.now - view.timings.created) / 1000 : 0;
      this.#showStatus(`Queued for ${seconds(Math.max(0, waited))}`, "busy");
    } else if (view.status === "running") {
      this.#showStatus("Reading the prompt", "busy");
    }
  }

  async #ended(id, done) {
    this.#complete = true;
    this.#output.flush();
    this.#conversation.turns.at(-1).text = this.#output.text;
    this.#conversation.keep();
    const { finish_reason: reason, usage, error } = done;
    const words = ENDS[reason] ?? reason;
    this.#showStatus(words, reason === "error" || reason === "expired" ? "failed" : "ended");
    const cached = usage.cached_tokens ? ` (${count(usage.cached_tokens)} cached)` : "";
    setText(byId("fact-prompt"), `${count(usage.prompt_tokens)}${cached}`);
    setText(byId("fact-tokens"), count(usage.completion_tokens));
    this.#announcer.finish(`${words}, after ${plural(usage.completion_tokens, "token")}.`);
    if (error) showProblem(new api.Problem(400, error), {});
    try {
      const { timings } = await api.state(id);
      if (this.#request !== id || timings.created === null) return;
      if (timings.started !== null) setText(byId("fact-queue"), milliseconds(timings.started - timings.created));
      if (timings.first_token !== null && this.#timing.firstToken === null) {
        setText(byId("fact-first"), milliseconds(timings.first_token - timings.created));
      }
    } catch {
      // The answer is complete; only two figures are missing.
    }
  }

  #failed(error) {
    this.#connected(true);
    this.#showStatus("Failed", "failed");
    const gone = error.status === 404 && error.param === null && this.#request !== null;
    showProblem(error, { gone, onRetry: () => this.send(), onForget: () => this.clear() });
    if (error.param) pointAt(this.#form, error.param);
  }

  #connected(up, pause) {
    const notice = byId("connection");
    notice.hidden = up;
    if (!up) setText(notice, `The connection is lost. Trying again in ${seconds(pause / 1000)}; no token is lost.`);
  }

  #showTurns() {
    const { turns } = this.#conversation;
    const list = byId("turns");
    list.className = this.#conversation.isChat ? "chat" : "completion";
    list.replaceChildren(
      ...turns.map(({ role, text }) =>
        make("li", { class: role }, make("span", { class: "role" }, ROLES[role]), make("span", { class: "text" }, text)),
      ),
    );
    byId("empty").hidden = true;
    const last = list.lastElementChild.querySelector(".text");
    this.#output = new OutputText(last, byId("output"));
    byId("output").scrollTop = byId("output").scrollHeight;
  }

  #showFacts() {
    const { firstToken, rate, p50, p95 } = this.#timing.summary();
    byId("timing").hidden = false;
    setText(byId("fact-tokens"), count(this.#timing.tokens));
    setText(byId("fact-first"), firstToken);
    setText(byId("fact-rate"), rate);
    setText(byId("fact-p50"), p50);
    setText(byId("fact-p95"), p95);
    const scale = scaleOf(this.#timing);
    setText(byId("strip-scale"), scale && `full height: ${scale}`);
    if (!this.#timing.tokens) for (const fact of ["fact-queue", "fact-prompt"]) setText(byId(fact), "–");
  }

  #showAddress(id) {
    setText(byId("request-id"), id);
    setText(byId("copied"), "");
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(location.href);
      setText(byId("copied"), "copied");
    } catch {
      setText(byId("copied"), "The browser does not allow it; the address bar has the link.");
    }
  }

  #showMode() {
    const isChat = this.#form.elements.mode.value === "chat";
    byId("system-field").hidden = !isChat;
    setText(byId("prompt-label"), isChat ? "Message" : "Prompt");
    byId("prompt").placeholder = isChat ? "How does a water wheel work?" : "The water from the mill stream";
  }

  #showStatus(words, kind) {
    const status = byId("status");
    setText(status, words);
    status.dataset.kind = kind;
    this.#showButtons();
  }

  #showButtons() {
    const { busy } = this;
    byId("send").disabled = busy;
    byId("stop-request").disabled = !busy;
    byId("output").setAttribute("aria-busy", String(busy));
  }
}
