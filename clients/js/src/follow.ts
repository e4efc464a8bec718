/** Following one request: its channel for speed, its log for truth. */

import type { Channels } from "./channels.js";
import { UnknownRequest } from "./errors.js";
import type { EventLog } from "./eventLog.js";
import { pause } from "./pauses.js";
import { decodeEvent, type HeadraceEvent } from "./protocol/events.js";
import type { Transcript } from "./transcript.js";

/**
 * Milliseconds without a message after which the log is looked at anyway; doubled while nothing comes. After the
 * longest, workers are asked whether the request has an entry on a queue still.
 */
const FIRST_SILENCE = 1000;
const LONGEST_SILENCE = 15_000;
const APPEARANCE_PAUSE = 100;
/**
 * Milliseconds from a request's state to its queue entry, after which there will be none: its client died between
 * the two, the server came back from a loss of power with the one and not the other, or somebody deleted it.
 */
const ENQUEUED_WITHIN = 5000;

/**
 * All that lies beyond `transcript`, each token and character once, in order; `done` is the last.
 *
 * A message that fits is passed on as it comes. Everything else is answered by reading the log: the confirmed
 * subscription, a gap, a full mailbox, silence. So is `done`: it tells how many tokens there are, but not how
 * much text, and no message that was missed may cost any.
 *
 * `wait`: milliseconds that an unknown request is given to appear. Throws as `EventLog.readNew`, and
 * `UnknownRequest` also where only the state of a submission came about, or is left: submitting again completes it.
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
  let nowhereSince: number | undefined;
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
        if (!log.isNowhere) {
          nowhereSince = undefined;
          if (silence === LONGEST_SILENCE) await log.askForEntry();
        } else {
          silence = FIRST_SILENCE;
          nowhereSince ??= performance.now();
          if (performance.now() - nowhereSince > ENQUEUED_WITHIN) unknown = new UnknownRequest(log.id);
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
