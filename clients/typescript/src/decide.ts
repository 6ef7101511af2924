/** What to do with what came back. `clients/retry-cases.json` is the table that this is tested by. */

export type Effect = 'none' | 'possible' | 'happened';
export type Next = 'done' | 'retry-same-key' | 'new-key-allowed' | 'stop';

/** What of a request decides whether it may be sent again. */
export interface Sent {
  method: string;
  key: boolean;
  /** An earlier try of the same intent may have had its effect. */
  lost: boolean;
}

/** An answer, read whole. */
export interface Answer {
  status: number;
  headers: Headers;
  body: Uint8Array;
}

/** No answer, or not the whole of it. `sent`: something of the request was written, or may have been. */
export interface Failure {
  kind: 'refused' | 'reset' | 'timeout' | 'broken-answer' | 'invalid-request';
  sent: boolean;
  status?: number;
}

/** What to do, why, and what is known of the effect if nothing more is sent. `after` is in milliseconds. */
export interface Decision {
  next: Next;
  effect: Effect;
  reason?: string;
  after: number;
  replayed: boolean;
}

// No problem is longer, and a longer body is not looked into.
const LONGEST_PROBLEM = 16 << 10;
// RFC 9111, section 1.2.2: what cannot be counted is this much.
const LONGEST_TIME = 2 ** 31 * 1000;
// RFC 9110, section 9.2.1: they need no key.
const SAFE = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);
// Section 9.2.2; of other methods the key makes it so.
const IDEMPOTENT = new Set([...SAFE, 'PUT', 'DELETE']);
// semel's and the draft's implementers', and Stripe's and ACP's.
const REPLAY_MARKS = ['idempotency-replayed', 'idempotent-replayed'];

export const isSafe = (method: string): boolean => SAFE.has(method);

export function decide(sent: Sent, came: Answer | Failure, now: number = Date.now()): Decision {
  return 'kind' in came ? afterFailure(sent, came) : afterAnswer(sent, came, now);
}

function afterFailure(sent: Sent, { kind, sent: written, status = 0 }: Failure): Decision {
  // Written: a redirect was followed to what cannot be reached.
  if (kind === 'invalid-request') return stop(sent, 'invalid', written ? 'possible' : 'none');
  if (kind === 'broken-answer' && status >= 200 && status < 300) {
    return isRepeatable(sent) ? again(sent, 'happened') : stop(sent, 'answer-lost', 'happened');
  }
  if (kind !== 'broken-answer' && !written) return again(sent, 'none');
  return isRepeatable(sent) ? again(sent, 'possible') : stop(sent, 'unknown', 'possible');
}

function afterAnswer(before: Sent, answer: Answer, now: number): Decision {
  const { status, headers } = answer;
  const replayed = REPLAY_MARKS.some((mark) => headers.get(mark) === 'true');
  const done: Decision = { next: 'done', effect: 'happened', after: 0, replayed };
  if (status >= 200 && status < 400) return done;
  // A service that could not keep the key would run the request again.
  const sent = { ...before, key: before.key && headers.get('idempotency-protected') !== 'false' };
  const problem = problemIn(answer);
  const meaning = meaningOf(status, problem);
  if (replayed && meaning !== 'precondition-failed') return done;
  // What is recorded under the key is what became of the lost try.
  if (replayed) sent.lost = false;
  const after = retryAfter(headers, problem, now);
  const decision = byMeaning(sent, meaning, after) ?? byStatus(sent, answer, after) ?? done;
  return { ...decision, replayed };
}

function byMeaning(sent: Sent, meaning: string | undefined, after: number): Decision | undefined {
  switch (meaning) {
    case 'unknown':
      return stop(sent, 'unknown', 'possible');
    // Without a key these are the service's own words.
    case 'mismatch':
      return sent.key ? stop(sent, 'mismatch', 'possible') : undefined;
    case 'expired':
      return sent.key ? stop(sent, 'expired', 'happened') : undefined;
    case 'in-flight':
      return sent.key ? again(sent, 'possible', after) : undefined;
    case 'outside-window':
      return stop(sent, 'expired', 'none');
    case 'invalid-key':
      return anew(sent, 'invalid-key');
    case 'precondition-failed':
      return anew(sent, 'precondition');
    case 'unauthorized':
    case 'invalid':
      return stop(sent, meaning, 'none');
    case 'nothing-ran':
      return isRepeatable(sent) ? again(sent, 'none', after) : stop(sent, 'busy', 'none');
    default:
      return undefined;
  }
}

function byStatus(sent: Sent, { status, headers }: Answer, after: number): Decision | undefined {
  const shouldRetry = headers.get('stripe-should-retry');
  if (shouldRetry === 'true' && isRepeatable(sent)) return again(sent, 'possible', after);
  if (shouldRetry === 'false' && !(status >= 400 && status <= 408)) return undefined;
  if (status === 409 && sent.key && headers.has('retry-after')) return again(sent, 'possible', after);
  if (status === 425 || status === 429) {
    return isRepeatable(sent) ? again(sent, 'none', after) : stop(sent, 'busy', 'none');
  }
  if ([401, 403, 407, 419].includes(status)) return stop(sent, 'unauthorized', 'none');
  if ([400, 405, 406, 411, 413, 414, 415, 417, 421, 426, 428, 431, 501, 505].includes(status)) {
    return stop(sent, 'invalid', 'none');
  }
  if (status === 408 || status >= 500) {
    return isRepeatable(sent) ? again(sent, 'possible', after) : stop(sent, 'unknown', 'possible');
  }
  return undefined;
}

const isRepeatable = (sent: Sent): boolean => sent.key || IDEMPOTENT.has(sent.method);

const known = (sent: Sent, effect: Effect): Effect => (sent.lost && effect === 'none' ? 'possible' : effect);

const again = (sent: Sent, effect: Effect, after = 0): Decision => ({
  next: 'retry-same-key',
  effect: known(sent, effect),
  after,
  replayed: false,
});

const stop = (sent: Sent, reason: string, effect: Effect): Decision => ({
  next: 'stop',
  effect: known(sent, effect),
  reason,
  after: 0,
  replayed: false,
});

// With another key, if no earlier try may have had its effect under this one.
const anew = (sent: Sent, reason: string): Decision =>
  sent.lost
    ? stop(sent, reason, 'possible')
    : { next: 'new-key-allowed', effect: 'none', reason, after: 0, replayed: false };

// Codes count with the statuses that they come with (first and last): a service may use the same words for
// its own purposes.
const MEANINGS: readonly [number, number, string, string][] = [
  [400, 599, 'unknown', 'outcome-unknown idempotency-outcome-unknown commit-state-unknown-exception'],
  [400, 499, 'mismatch', 'mismatch idempotency-mismatch idempotency-conflict idempotency-key-reused'],
  [409, 409, 'expired', 'expired'],
  [400, 499, 'expired', 'idempotency-expired'],
  [412, 412, 'outside-window', 'outside-window'],
  [
    409,
    409,
    'in-flight',
    'in-flight in-progress idempotency-in-flight idempotency-in-progress idempotency-key-in-use ' +
      'request-in-progress operation-in-progress previous-request-in-progress concurrent-request',
  ],
  [400, 400, 'invalid-key', 'invalid-key idempotency-key-invalid'],
  [412, 412, 'precondition-failed', 'precondition-failed'],
  [400, 400, 'unauthorized', 'missing-principal auth-missing'],
  [404, 404, 'invalid', 'no-route'],
  [503, 503, 'nothing-ran', 'overloaded capacity contended auth-unavailable'],
  [429, 429, 'nothing-ran', 'limit'],
  [502, 502, 'nothing-ran', 'upstream-unreachable'],
  [400, 400, 'nothing-ran', 'incomplete-body'],
];

function meaningOf(status: number, problem: unknown): string | undefined {
  const code = codeOf(problem);
  for (const [first, last, meaning, codes] of MEANINGS) {
    if (status >= first && status <= last && code !== undefined && codes.split(' ').includes(code)) return meaning;
  }
  // Stripe's own answers have a type, and not always a code.
  if (at(problem, 'error', 'type') === 'idempotency_error') {
    if (status === 409) return 'in-flight';
    if (status === 400) return 'mismatch';
  }
  return undefined;
}

function problemIn({ headers, body }: Answer): unknown {
  const mediaType = (headers.get('content-type') ?? '').split(';')[0]!.trim().toLowerCase();
  const isJson = mediaType === 'application/json' || mediaType.endsWith('+json');
  if (!isJson || body.length > LONGEST_PROBLEM) return undefined;
  try {
    return JSON.parse(new TextDecoder().decode(body));
  } catch {
    return undefined;
  }
}

/** At the top (RFC 9457's extension), in `error`, in the first of `errors`; Iceberg's is a `type`. */
function codeOf(problem: unknown): string | undefined {
  const places: (string | number)[][] = [
    ['code'],
    ['error', 'code'],
    ['error', 'type'],
    ['error'],
    ['errors', 0, 'code'],
    ['adcp_error', 'code'],
  ];
  for (const place of places) {
    const code = at(problem, ...place);
    if (typeof code === 'string') {
      return code
        .replace(/(?<=[a-z])(?=[A-Z])/g, '-')
        .replace(/[_. ]/g, '-')
        .toLowerCase();
    }
  }
  return undefined;
}

function at(value: unknown, ...place: (string | number)[]): unknown {
  for (const step of place) {
    const isPlace = typeof step === 'number' ? Array.isArray(value) : typeof value === 'object' && value !== null;
    value = isPlace && Object.hasOwn(value as object, step) ? (value as Record<string | number, unknown>)[step] : undefined;
  }
  return value;
}

/** How long the service asks to wait: the field, else AdCP's member. */
function retryAfter(headers: Headers, problem: unknown, now: number): number {
  const field = headers.get('retry-after');
  if (field !== null) return timeIn(field.trim(), headers.get('date'), now);
  for (const place of [['error'], ['adcp_error'], ['errors', 0]]) {
    const seconds = at(problem, ...place, 'retry_after');
    if (typeof seconds === 'number' && seconds >= 0) return Math.min(seconds * 1000, LONGEST_TIME);
  }
  return 0;
}

function timeIn(field: string, date: string | null, now: number): number {
  if (/^\d+$/.test(field)) return Math.min(Number(field) * 1000, LONGEST_TIME);
  const until = httpDate(field);
  // The service's own clock, where it says what that is: this process's may be wrong.
  const from = (date === null ? undefined : httpDate(date)) ?? now;
  return until === undefined ? 0 : Math.max(until - from, 0);
}

/** The three forms of RFC 9110, section 5.6.7; the last of them says no zone. */
function httpDate(text: string): number | undefined {
  if (!/^[A-Z][a-z]{2,8},? /.test(text)) return undefined;
  const time = Date.parse(text.endsWith('GMT') ? text : `${text} GMT`);
  return Number.isNaN(time) ? undefined : time;
}
