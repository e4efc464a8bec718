// What was said, as this tab remembers it: turns, of which the last may still be on its way.

const STORE = "headrace.turns";
const MOST = 200;

export class Conversation {
  turns = []; // {role: "prompt" | "system" | "user" | "assistant", text, request?}

  restore() {
    try {
      const stored = JSON.parse(sessionStorage.getItem(STORE));
      if (Array.isArray(stored)) this.turns = stored.slice(-MOST);
    } catch {
      // Nothing, or nothing that can be read.
    }
  }

  replace(turns) {
    this.turns = turns.slice(-MOST);
    this.keep();
  }

  keep() {
    try {
      sessionStorage.setItem(STORE, JSON.stringify(this.turns));
    } catch {
      // The gateway still has the answers.
    }
  }

  get isChat() {
    return this.turns.some((turn) => turn.role === "user");
  }

  /** The chat so far, as a request's `messages`. */
  get messages() {
    return this.turns.filter((turn) => turn.role !== "prompt" && turn.text).map(({ role, text }) => ({ role, content: text }));
  }
}
