/** What arrived on one channel and was not looked at yet, bounded. */

const MAX_MESSAGES = 1024;
const MAX_BYTES = 2 ** 20;

/**
 * It also knows when messages may have been missed: before the subscription was confirmed, while the
 * connection was away, or because the box was full: a reader slower than that reads the log instead.
 */
export class Mailbox {
  #messages: Uint8Array[] = [];
  #bytes = 0;
  #missed = false;
  #failure: Error | undefined;
  #wake: (() => void) | undefined;

  put(message: Uint8Array): void {
    if (this.#messages.length >= MAX_MESSAGES || this.#bytes + message.length > MAX_BYTES) this.markMissed();
    this.#messages.push(message);
    this.#bytes += message.length;
    this.#wake?.();
  }

  /** Messages may have been missed; those in the box, earlier ones, are in the log as well. */
  markMissed(): void {
    this.#messages = [];
    this.#bytes = 0;
    this.#missed = true;
    this.#wake?.();
  }

  /** Nothing will come any more: `receive` throws `error`. */
  fail(error: Error): void {
    this.#failure = error;
    this.#wake?.();
  }

  /**
   * The next message, or undefined for "read the log": some were missed, or so many milliseconds passed.
   * Throws the signal's reason when it is aborted.
   */
  async receive(milliseconds: number, signal?: AbortSignal): Promise<Uint8Array | undefined> {
    signal?.throwIfAborted();
    if (!this.#missed && this.#messages.length === 0 && !this.#failure) {
      await this.#filled(milliseconds, signal);
      signal?.throwIfAborted();
    }
    if (this.#failure) throw this.#failure;
    if (this.#missed) {
      this.#missed = false;
      return undefined;
    }
    const message = this.#messages.shift();
    this.#bytes -= message?.length ?? 0;
    return message;
  }

  async #filled(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
    const { promise, resolve } = withResolvers();
    const timer = setTimeout(resolve, milliseconds);
    signal?.addEventListener("abort", resolve, { once: true });
    this.#wake = resolve;
    await promise;
    this.#wake = undefined;
    signal?.removeEventListener("abort", resolve);
    clearTimeout(timer);
  }
}

function withResolvers(): { promise: Promise<void>; resolve: () => void } {
  let resolve = () => {};
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
