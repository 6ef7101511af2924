/** Everything that this package throws for reasons outside of the program. */
export class SemelError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The members of a problem answer. */
export type Members = Readonly<Record<string, unknown>>;

/** An answer that is not the one that was hoped for. `code` is the stable word for it (docs/clients.md). */
export class Problem extends SemelError {
  readonly detail: string;
  /** The answer of a retried request; its body has been read. */
  response?: Response;

  constructor(
    readonly status: number,
    readonly code: string,
    readonly members: Members = {},
  ) {
    const detail = typeof members['detail'] === 'string' ? members['detail'] : '';
    super(detail ? `${code} (${status}): ${detail}` : `${code} (${status})`);
    this.detail = detail;
  }

  /** The operation's name, where the claim API says it. */
  get id(): string | undefined {
    const id = this.members['id'];
    return typeof id === 'string' ? id : undefined;
  }
}

/** Another attempt holds the claim. Ask again after `retryAfter` milliseconds. */
export class InFlight extends Problem {
  retryAfter = 0;
}

/** It may have happened, and nobody has recorded it. It does not run until that is resolved. */
export class OutcomeUnknown extends Problem {
  /** The fence of the attempt that was lost. */
  get fence(): number | undefined {
    const fence = this.members['fence'];
    return typeof fence === 'number' ? fence : undefined;
  }
}

/** It happened, and its result is no longer kept. */
export class Expired extends Problem {}

/** The key was used for something else. Nothing was changed. */
export class Mismatch extends Problem {}

/** The claim is no longer this attempt's. Nothing was changed. */
export class Stale extends Problem {
  /** `superseded`, `completed`, `released`, `unknown` or `missing`. */
  get reason(): string | undefined {
    const reason = this.members['reason'];
    return typeof reason === 'string' ? reason : undefined;
  }
}

/** A step of this name is kept with another result. */
export class StepConflict extends Problem {}

/** Everything else: the request has to be corrected, or its sender lacks a right. It changed nothing. */
export class Refused extends Problem {}

/**
 * There was no answer in time, and it may have happened. The same again, later, finds out: with the same
 * `key`, and the same `nonce` if it was a claim.
 */
export class Unsettled extends SemelError {
  /** The key of a retried request. */
  declare key?: string;
  /** Of a claim that may be held: claim again with it, to have it and not to wait for it. */
  declare nonce?: string;
  response?: Response;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    // They belong in no log, and what is enumerable is printed.
    for (const name of ['key', 'nonce']) Object.defineProperty(this, name, { writable: true, value: undefined });
  }
}

/** The work ran, and the gateway refused to record it (`cause`). Its outcome counts as unknown. */
export class NotRecorded extends SemelError {}

/**
 * The certificate of the gateway is not trusted: another authority, another name, or out of date. Nothing was
 * sent.
 */
export class Untrusted extends SemelError {}

/** A lasting failure: recorded as the result when the work throws it, thrown again by every replay. */
export class Failed extends SemelError {
  constructor(readonly result?: unknown) {
    super('a lasting failure');
  }
}

/** The steps are not those of an earlier attempt. Nothing was run. */
export class StepsChanged extends SemelError {}

/**
 * The step ran, and its `result` does not fit into the record: all steps have 64 KiB. Another attempt runs it
 * again, under the same key. Keep less of it: an id, say, under the same name.
 */
export class StepTooLarge extends SemelError {
  constructor(
    readonly step: string,
    readonly result: unknown,
    options?: ErrorOptions,
  ) {
    super(`step '${step}' ran, and its result is too large to keep`, options);
  }
}

/** It is done, and its result was too large to keep. */
export class ResultOmitted extends SemelError {}

const KINDS: Record<string, typeof Problem> = {
  'in-flight': InFlight,
  'outcome-unknown': OutcomeUnknown,
  expired: Expired,
  mismatch: Mismatch,
  stale: Stale,
  'step-conflict': StepConflict,
};

/** The error for an answer of the claim API. */
export function problem(status: number, body: unknown): Problem {
  const members = isMembers(body) ? body : {};
  const code = typeof members['code'] === 'string' ? members['code'] : 'no-problem';
  const Kind = Object.hasOwn(KINDS, code) ? KINDS[code]! : Refused;
  return new Kind(status, code, members);
}

export function isMembers(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
