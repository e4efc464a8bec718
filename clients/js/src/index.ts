/** Submit requests to Headrace workers, and follow their tokens: each once, in order. */

export { Client, type ClientOptions, type FollowOptions, Handle } from "./client.js";
export {
  EventsLost,
  HeadraceError,
  QueueFull,
  RequestFailed,
  ServerFull,
  Unavailable,
  UnknownRequest,
} from "./errors.js";
export type {
  Delta,
  Done,
  ErrorInfo,
  FinishReason,
  HeadraceEvent,
  TokenLogprobs,
  Usage,
} from "./protocol/events.js";
export type { Priority } from "./protocol/keys.js";
export type { Message, Prompt, RequestFields } from "./protocol/request.js";
export { RequestError } from "./protocol/requestError.js";
export type { RequestStatus } from "./requestState.js";
export type { Result, Timings } from "./result.js";
