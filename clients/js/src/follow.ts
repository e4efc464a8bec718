/** Following one request: its channel for speed, its log for truth. */

import type { Channels } from "./channels.js";
import { UnknownRequest } from "./errors.js";
import type { EventLog } from "./eventLog.js";
import { pause } from "./pauses.js";
import { decodeEvent, type HeadraceEvent } from "./protocol/events.js";
import type { Transcript } from "./transcript.js";

/** Milliseconds without a message after which the log is looked at anyway; doubled while nothing comes. */
const FIRST_SILENCE = 1000;
const LONGEST_SILENCE = 15_000;
const APPEARANCE_PAUSE = 100;

/**
 * All that lies beyond `transcript`, each token and character once, in order; `done` is the last.
 *
 * A message that fits is passed on as it comes. Everything else is answered by reading the log: the confirmed
 * subscription, a gap, a full mailbox, silence. So is `done`: it tells how many tokens there are, but not how
 * much text, and no message that was missed may cost any.
 *
 * `wait`: milliseconds that an unknown request is given to appear. Throws as `EventLog.readNew`.
 */
export async function* follow(
  log: EventLog,
  channels: Channels,
  channel: string,
  transcript: Transcript,
  options: { wait: number; signal: AbortSignal | undefined },
): AsyncGenerator<HeadraceEvent, void> {
  const { wait, signal } = options;
  const appearUntil = performance.now() + wait;
  let silence = FIRST_SILENCE;
  const mailbox = channels.open(channel);
  try {
    for (;;) {
      const message = await mailbox.receive(silence * (0.8 + Math.random() / 5), signal);
      const event = message && decodeEvent(message);
      if (message && !event) continue;
      if (event?.type === "delta" && !transcript.lacksBefore(event)) {
        const piece = transcript.take(event);
        if (piece) {
          silence = FIRST_SILENCE;
          yield piece;
        }
        continue;
      }
      silence = Math.min(2 * silence, LONGEST_SILENCE);
      let unknown: UnknownRequest | undefined;
      try {
        for await (const piece of log.readNew(transcript, signal)) {
          silence = FIRST_SILENCE;
          yield piece;
        }
      } catch (error) {
        if (!(error instanceof UnknownRequest)) throw error;
        unknown = error;
      }
      if (event && !transcript.lacksBefore(event)) {
        const piece = transcript.take(event);
        if (piece) yield piece;
      }
      if (transcript.done) return;
      if (unknown) {
        if (performance.now() >= appearUntil) throw unknown;
        await pause(APPEARANCE_PAUSE, signal);
        mailbox.markMissed();
      }
    }
  } finally {
    channels.leave(channel, mailbox);
  }
}
