/** A request that cannot be accepted: which field, and what it may be. */
export class RequestError extends Error {
  override readonly name = "RequestError";
  readonly field: string;

  constructor(field: string, problem: string) {
    super(`${field}: ${problem}`);
    this.field = field;
  }
}
