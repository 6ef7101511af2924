import { type Answer, type Decision, type Failure, type Sent, decide, isSafe } from './decide.js';
import { Expired, Mismatch, OutcomeUnknown, type Problem, SemelError, Unsettled, isMembers } from './errors.js';
import { bytesOf, isUnsent, isUntrusted } from './network.js';
import { now, sleep } from './time.js';

/** How patiently to retry. All times are milliseconds. */
export interface RetryOptions {
  /** For one request with all its retries; unless set, 60 s. */
  patience?: number;
  /** For one try; unless set, 30 s. */
  timeout?: number;
  /** The pause before the first retry is between nothing and this; it doubles up to `longestPause`. */
  firstPause?: number;
  longestPause?: number;
  keyHeader?: string;
  /** Can be shared by several. */
  budget?: Budget;
  fetch?: typeof fetch;
}

/**
 * Bounds retries: a part of the requests, a few a second, and a reserve. A retry that it has no room for
 * waits, so that many clients do not flood a service that is down.
 */
export class Budget {
  #left: number;
  #at = now();

  constructor(
    readonly ratio = 0.2,
    readonly perSecond = 1,
    readonly reserve = 10,
  ) {
    this.#left = reserve;
  }

  /** A request begins. */
  earn(): void {
    this.#left = this.#filled() + this.ratio;
  }

  /** For how many milliseconds the next retry has to wait. Nothing is spent where that is longer than `within`. */
  spend(within: number): number | undefined {
    const left = this.#filled() - 1;
    const wait = left < 0 ? (-left / this.perSecond) * 1000 : 0;
    if (wait > within || wait === Infinity) return undefined;
    this.#left = left;
    return wait;
  }

  #filled(): number {
    const at = now();
    this.#left = Math.min(this.#left + ((at - this.#at) / 1000) * this.perSecond, this.reserve);
    this.#at = at;
    return this.#left;
  }
}

// A longer one is handed on as the stream that it is.
const LONGEST_ANSWER = 1 << 20;

const REFUSALS: Record<string, [typeof Problem, string]> = {
  mismatch: [Mismatch, 'mismatch'],
  unknown: [OutcomeUnknown, 'outcome-unknown'],
  expired: [Expired, 'expired'],
};

/**
 * A `fetch` that sends a request again, with one key, until its answer is known. Bodies, and answers to
 * requests with a key, are held in memory.
 */
export function retryingFetch(options: RetryOptions = {}): typeof fetch {
  const { patience = 60_000, timeout = 30_000, firstPause = 500, longestPause = 20_000 } = options;
  const { keyHeader = 'Idempotency-Key', budget = new Budget(), fetch: send = (...sent) => fetch(...sent) } = options;

  return async (input, init) => {
    const request = new Request(input, init);
    const { method, signal } = request;
    if (!request.headers.has(keyHeader) && !isSafe(method)) {
      request.headers.set(keyHeader, crypto.randomUUID());
    }
    const key = request.headers.get(keyHeader);
    const body = request.body === null ? null : await request.arrayBuffer();
    const end = now() + patience;
    const sent: Sent = { method, key: key !== null, lost: false };
    budget.earn();
    for (let longest = firstPause; ; longest = Math.min(longest * 2, longestPause)) {
      const tried = await attempt(send, request, body, Math.max(Math.min(timeout, end - now()), 0), key !== null);
      // What the caller ends is ended.
      if ('error' in tried && signal.aborted) throw signal.reason;
      const decision = decide(sent, tried.came);
      if (decision.next !== 'retry-same-key') return conclude(decision, key, tried);
      sent.lost = decision.effect !== 'none';
      const pause = decision.after + Math.random() * longest;
      const left = end - now() - pause;
      const wait = left >= 0 ? budget.spend(left) : undefined;
      if (wait === undefined) return conclude(decision, key, tried);
      if ('response' in tried) tried.response.body?.cancel().catch(() => undefined);
      await sleep(pause + wait, signal);
    }
  };
}

type Tried = { came: Answer | Failure; response: Response } | { came: Failure; error: unknown };

async function attempt(
  send: typeof fetch,
  request: Request,
  body: ArrayBuffer | null,
  timeout: number,
  keyed: boolean,
): Promise<Tried> {
  let status = 0;
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(new DOMException('no answer in time', 'TimeoutError')), timeout);
  const signal = AbortSignal.any([request.signal, late.signal]);
  try {
    const response = await send(new Request(request, body === null ? { signal } : { body, signal }));
    status = response.status;
    const isRead = isWhole(response.headers) && (keyed || status >= 400);
    const bytes = isRead ? await bytesOf(response.clone(), LONGEST_ANSWER) : undefined;
    return { came: { status, headers: response.headers, body: bytes ?? new Uint8Array() }, response };
  } catch (error) {
    return { came: failure(error, status, request), error };
  } finally {
    // What is not read here may be a stream without an end.
    clearTimeout(timer);
  }
}

/** An answer that breaks off is asked for again. Those to GET and the like may be streams. */
function isWhole(headers: Headers): boolean {
  if (/^text\/event-stream/i.test(headers.get('content-type') ?? '')) return false;
  return !(Number(headers.get('content-length')) > LONGEST_ANSWER);
}

function failure(error: unknown, status: number, { url, redirect }: Request): Failure {
  if (!/^https?:/.test(url)) return { kind: 'invalid-request', sent: false };
  if (status) return { kind: 'broken-answer', sent: true, status };
  if (error instanceof DOMException && error.name === 'TimeoutError') return { kind: 'timeout', sent: true };
  // Where redirects are followed, it may be the target of one, after the request had its effect.
  const unsent = redirect !== 'follow';
  if (isUntrusted(error)) return { kind: 'invalid-request', sent: !unsent };
  return unsent && isUnsent(error) ? { kind: 'refused', sent: false } : { kind: 'reset', sent: true };
}

/** After the last try: its response or error, or what has to be known instead. */
function conclude(decision: Decision, key: string | null, tried: Tried): Response {
  const response = 'response' in tried ? tried.response : undefined;
  if (decision.next !== 'done' && decision.effect !== 'none' && key !== null) {
    throw refusal(decision, key, tried.came, response, 'error' in tried ? tried.error : undefined);
  }
  if ('error' in tried) throw tried.error;
  return tried.response;
}

function refusal(decision: Decision, key: string, came: Answer | Failure, response?: Response, cause?: unknown): SemelError {
  const kind = decision.next === 'stop' ? REFUSALS[decision.reason ?? ''] : undefined;
  if (kind && response && 'body' in came) {
    const [Kind, code] = kind;
    const refused = new Kind(response.status, code, membersOf(came.body));
    refused.response = response;
    return refused;
  }
  const what = decision.effect === 'happened' ? 'it happened' : 'it may have happened';
  const why = isUntrusted(cause)
    ? 'a certificate is not trusted: of the service, or of one that it redirects to'
    : 'its answer did not come in time';
  const unsettled = new Unsettled(`${what}, and ${why}`, { cause });
  unsettled.key = key;
  if (response) unsettled.response = response;
  return unsettled;
}

function membersOf(body: Uint8Array): Record<string, unknown> {
  try {
    const members: unknown = JSON.parse(new TextDecoder().decode(body));
    return isMembers(members) ? members : {};
  } catch {
    return {};
  }
}
