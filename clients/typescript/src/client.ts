import {
  Failed,
  InFlight,
  NotRecorded,
  Problem,
  ResultOmitted,
  SemelError,
  Stale,
  StepTooLarge,
  StepsChanged,
  Unsettled,
  Untrusted,
  isMembers,
  problem,
} from './errors.js';
import { bytesOf, isUnsent, isUntrusted } from './network.js';
import { later, now, sleep, within } from './time.js';

/** Milliseconds, or as the gateway writes durations: `'30s'`, `'7d'`, `'payment'`. */
export type Duration = number | string;
export type OnError = 'unknown' | 'abandon';

/** How to claim. The README says what each means. */
export interface ClaimOptions {
  payload?: unknown;
  wait?: number;
  lease?: Duration;
  ttl?: Duration;
  onLost?: 'hold' | 'retry';
  inSteps?: boolean;
  onError?: OnError | ((error: unknown) => OnError);
  scope?: readonly string[];
  service?: string;
  tombstone?: Duration;
  /** Random, and the same when a claim is asked for again that may be held already. */
  nonce?: string;
  signal?: AbortSignal;
}

export interface ClientOptions {
  /** Sent as a bearer token. */
  token?: string;
  /** For how many milliseconds a call is sent again while the gateway does not answer it. */
  patience?: number;
  fetch?: typeof fetch;
}

/** What is recorded. `value` is JSON, text, bytes or nothing. */
export interface Outcome {
  readonly kind: 'success' | 'failure' | 'omitted';
  readonly value?: unknown;
  readonly code?: number;
  readonly contentType?: string;
}

export interface CompleteOptions {
  /** A lasting failure. */
  failed?: boolean;
  code?: number;
  ttl?: Duration;
}

interface WireOutcome {
  kind: Outcome['kind'];
  code?: number;
  content_type?: string;
  json?: unknown;
  text?: string;
  base64?: string;
}

interface CallOptions {
  timeout?: number;
  /** What waits at the gateway waits until then, however often it is sent. */
  waitUntil?: number;
  signal?: AbortSignal | undefined;
}

interface Acquired {
  id: string;
  token: string;
  fence: number;
  attempt: number;
  since: number;
  lease_ms: number;
  steps: { name: string; result: WireOutcome }[];
}

type Claimed = Acquired | { id: string; outcome: WireOutcome };

interface Held {
  readonly acquired: Acquired;
  readonly lease: number;
  /** By this process's clock, counted from before the request: never later than the store's. */
  until: number;
}

// What the API allows for one call.
const LONGEST_WAIT = 600_000;
// Beyond what a call waits at the gateway.
const TIMEOUT = 10_000;
const FIRST_PAUSE = 50;
const LONGEST_PAUSE = 5_000;
// For how long a claim that nobody waits for any more is sent again to be given back.
const GIVE_BACK = 5_000;
// The API takes no more. Refusing a longer one it closes the connection, and the refusal may be lost with it.
const LONGEST_REQUEST = 2 << 20;
// No store keeps an outcome of more than 32 MiB; as JSON it is longer.
const LONGEST_ANSWER = 64 << 20;

/** Talks to the claim API at `url`, the gateway's operators' listener. */
export class Client {
  readonly patience: number;
  readonly #url: string;
  readonly #headers: Record<string, string>;
  readonly #fetch: typeof fetch;

  constructor(url: string | URL, options: ClientOptions = {}) {
    const parsed = new URL(url);
    if (!/^https?:$/.test(parsed.protocol) || parsed.username || parsed.password) {
      throw new TypeError('url: it has to be http:// or https:// without user and password; there is `token`');
    }
    this.#url = parsed.href.replace(/\/+$/, '');
    this.patience = options.patience ?? 60_000;
    this.#fetch = options.fetch ?? ((...sent) => fetch(...sent));
    this.#headers = { 'content-type': 'application/json' };
    if (options.token !== undefined) {
      // A file with a token ends with a newline.
      const token = options.token.trim();
      if (!/^[!-~]+$/.test(token)) throw new TypeError('token: only visible ASCII characters are allowed');
      this.#headers['authorization'] = `Bearer ${token}`;
    }
  }

  /** Claims a key, or throws a `Problem` that says why not, or `Unsettled`. */
  async claim(operation: string, key: string, options: ClaimOptions = {}): Promise<Attempt> {
    // Once for all tries: a claim whose answer was lost is found again by it.
    const nonce = options.nonce ?? hex(crypto.getRandomValues(new Uint8Array(16)));
    const body: Record<string, unknown> = {
      operation,
      key,
      service: options.service ?? 'default',
      scope: options.scope ?? [],
      nonce,
      lease: duration(options.lease ?? 30_000),
      ttl: duration(options.ttl ?? '24h'),
      tombstone: duration(options.tombstone ?? 0),
      on_lost: options.inSteps ? 'retry' : (options.onLost ?? 'hold'),
    };
    const { payload, signal } = options;
    signal?.throwIfAborted();
    if (payload instanceof Uint8Array) body['payload_base64'] = toBase64(payload);
    else if (payload !== undefined) body['payload'] = payload;

    const waitedOut = now() + (options.wait ?? 0);
    for (;;) {
      const sent = now();
      const wait = Math.min(Math.max(waitedOut - sent, 0), LONGEST_WAIT);
      const how = { waitUntil: sent + wait, signal };
      try {
        const claimed = (await this.call('/v1/claims', body, wait + this.patience, how)) as Claimed;
        return new Attempt(this, claimed, sent, options);
      } catch (error) {
        if (error instanceof Unsettled) error.nonce = nonce;
        // Its answer may have been on its way. Under a nonce of the caller's, work may have begun before.
        if (signal?.aborted && error === signal.reason && options.nonce === undefined) {
          void this.#giveBack(body, options).catch(() => undefined);
        }
        const left = waitedOut - now();
        if (!(error instanceof InFlight) || left <= 0) throw error;
        // Its wait was cut short: the gateway stops, or has too many that wait.
        await sleep(Math.min(left, error.retryAfter || FIRST_PAUSE), signal);
      }
    }
  }

  /** After a claim that nobody waits for any more: if it was made, it is found by its nonce, and ended. */
  async #giveBack(body: object, { inSteps, onLost }: ClaimOptions): Promise<void> {
    // `hold`: no attempt that was lost is taken over for this.
    const claimed = (await this.call('/v1/claims', { ...body, on_lost: 'hold' }, GIVE_BACK)) as Claimed;
    if ('outcome' in claimed) return;
    // It may have taken over a lost one, whose effect nobody knows, or follow one that was abandoned, which is
    // no case for operators. It is left to its lease: then the next claim takes it over.
    if (claimed.attempt > 1 && onLost === 'retry' && !inSteps) return;
    await this.call(`/v1/claims/${claimed.id}/abandon`, { token: claimed.token, ...release(inSteps) }, GIVE_BACK);
  }

  /** Runs `work` unless it has run before. Gives the result that is recorded. */
  async run<R>(
    operation: string,
    key: string,
    options: ClaimOptions,
    work: (attempt: Attempt) => R | Promise<R>,
  ): Promise<R> {
    const attempt = await this.claim(operation, key, options);
    if (!attempt.outcome) {
      try {
        await attempt.complete(await work(attempt));
      } catch (error) {
        await attempt.end(error);
        throw error;
      }
    }
    return attempt.result() as R;
  }

  /**
   * Sends the same until there is an answer, or patience is over: every call is safe to send again.
   * @internal
   */
  async call(
    path: string,
    body: object,
    patience: number,
    { timeout = TIMEOUT, waitUntil, signal }: CallOptions = {},
  ): Promise<Record<string, unknown>> {
    const end = now() + patience;
    // An earlier try may have been carried out.
    let lost = false;
    for (let longest = FIRST_PAUSE; ; longest = Math.min(longest * 2, LONGEST_PAUSE)) {
      let pause = Math.random() * longest;
      let cause: unknown;
      const wait = waitUntil && Math.max(waitUntil - now(), 0);
      const sent = JSON.stringify({ ...body, wait: wait === undefined ? undefined : duration(wait) });
      if (new TextEncoder().encode(sent).length > LONGEST_REQUEST) {
        throw problem(413, { code: 'too-large', detail: `a request has ${LONGEST_REQUEST} bytes at most` });
      }
      try {
        const response = await this.#fetch(this.#url + path, {
          method: 'POST',
          headers: this.#headers,
          body: sent,
          // What answers there is not the claim API.
          redirect: 'manual',
          signal: within(timeout + (wait ?? 0), signal),
        });
        // A body that breaks off is asked for again, whatever its status.
        const bytes = await bytesOf(response, LONGEST_ANSWER);
        if (!bytes) throw new Unsettled(`${path}: an answer of more than ${LONGEST_ANSWER >> 20} MiB`);
        const answer = parsed(new TextDecoder().decode(bytes));
        if ([200, 201].includes(response.status) && isMembers(answer)) return answer;
        const refusal = problem(response.status, answer);
        const after = /^\d+$/.exec(response.headers.get('retry-after') ?? '');
        const asked = after ? Number(after[0]) * 1000 : 0;
        if (refusal instanceof InFlight) refusal.retryAfter = asked;
        if (!isTemporary(refusal)) throw refusal;
        pause += asked;
        lost = true;
        cause = refusal;
      } catch (error) {
        if (error instanceof SemelError) throw error;
        signal?.throwIfAborted();
        if (isUntrusted(error)) {
          const Kind = lost ? Unsettled : Untrusted;
          throw new Kind('the certificate of the gateway is not trusted', { cause: error });
        }
        lost ||= !isUnsent(error);
        cause = error;
      }
      if (now() + pause > end) throw new Unsettled(`${path}: no answer within ${patience} ms`, { cause });
      await sleep(pause, signal);
    }
  }
}

/** A claim. `outcome` is what an earlier attempt recorded; while it is missing the claim is ours. */
export class Attempt implements AsyncDisposable {
  /** The operation's name: the same in every attempt, different for every other key. */
  readonly id: string;
  /** What is recorded: of an earlier attempt, or of this one once it is complete. */
  outcome: Outcome | undefined;
  readonly #client: Client;
  readonly #options: ClaimOptions;
  readonly #held: Held | undefined;
  readonly #lost = new AbortController();
  readonly #steps: { name: string; result: Outcome }[] = [];
  #place = 0;
  #stepping = false;
  // Somebody was told how it ended, or is being told: leaving the block changes nothing.
  #ended: boolean;
  #stopped = false;
  // There is a result.
  #worked = false;

  /** @internal */
  constructor(client: Client, claimed: Claimed, sent: number, options: ClaimOptions) {
    this.id = claimed.id;
    this.#client = client;
    this.#options = options;
    this.#ended = 'outcome' in claimed;
    if ('outcome' in claimed) {
      this.outcome = fromWire(claimed.outcome);
      return;
    }
    this.#held = { acquired: claimed, lease: claimed.lease_ms, until: sent + claimed.lease_ms };
    this.#steps = claimed.steps.map(({ name, result }) => ({ name, result: fromWire(result) }));
    renewInBackground(new WeakRef(this), this.#held);
  }

  /** A number that grows with every attempt. Let the service with the effect refuse a lower one. */
  get fence(): number {
    return this.#mine().acquired.fence;
  }

  /** 1, or more where an earlier attempt was abandoned, lost or resolved. */
  get attempt(): number {
    return this.#mine().acquired.attempt;
  }

  /** Aborted when another attempt has taken over. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** Whether no other attempt can be running, as far as this process knows. */
  stillHeld(): boolean {
    return !this.lost.aborted && now() < this.#mine().until;
  }

  /** The value of `outcome`, if it is a success; throws `Failed`, or `ResultOmitted`. */
  result(): unknown {
    if (!this.outcome) throw new Error('it is not complete');
    return valueOf(this.outcome);
  }

  /** Runs `work` with the step's key, unless an earlier attempt has finished it. Gives its result. */
  async step<R>(name: string, work: (key: string) => R | Promise<R>): Promise<R> {
    const { acquired } = this.#mine();
    if (!this.#options.inSteps) {
      throw new Error('to run steps, claim with inSteps: then a lost attempt runs again');
    }
    // An attempt that takes over goes by their order.
    if (this.#stepping) throw new Error(`step '${name}' has to wait until the step before it has ended`);
    this.#stepping = true;
    try {
      return (await this.#step(acquired, name, work)) as R;
    } finally {
      this.#stepping = false;
    }
  }

  async #step(acquired: Acquired, name: string, work: (key: string) => unknown): Promise<unknown> {
    const kept = this.#steps[this.#place];
    if (kept && kept.name !== name) {
      throw new StepsChanged(
        `step ${this.#place} was '${kept.name}' in an earlier attempt, and is '${name}' now`,
      );
    }
    let result = kept?.result;
    if (!result) {
      const key = await stepKey(acquired, this.#place, name);
      if (!this.stillHeld()) await this.renew(this.#client.patience);
      const value = await work(key);
      result = asKept({ kind: 'success', value });
      await this.#tell('steps', { name, result: toWire(result) }).catch((refused: unknown) => {
        throw isTooLarge(refused) ? new StepTooLarge(name, value, { cause: refused }) : refused;
      });
      this.#steps.push({ name, result });
    }
    this.#place += 1;
    return valueOf(result);
  }

  /** Records the result, for everybody. */
  async complete(value?: unknown, { failed = false, code = 0, ttl }: CompleteOptions = {}): Promise<void> {
    this.#worked = true;
    const kept = asKept({ kind: failed ? 'failure' : 'success', value, code });
    const how = { ttl: ttl === undefined ? undefined : duration(ttl) };
    this.outcome = await this.#end(() => this.#record(kept, how));
  }

  /** Gives the outcome back as every replay will show it. */
  async #record(kept: Outcome, how: object): Promise<Outcome> {
    const omitted: Outcome = { kind: 'omitted', code: kept.code ?? 0 };
    try {
      const answer = await this.#tell('complete', { outcome: toWire(kept), ...how }).catch((refused: unknown) => {
        // Also for a proxy in front of the gateway.
        if (!isTooLarge(refused)) throw refused;
        return this.#tell('complete', { outcome: toWire(omitted), ...how });
      });
      return answer['omitted'] ? omitted : kept;
    } catch (refused) {
      const isRefusal = refused instanceof Problem || refused instanceof Untrusted;
      if (!isRefusal || refused instanceof Stale) throw refused;
      await this.#tell('unknown', {}, 0).catch(() => undefined);
      throw new NotRecorded(`the work ran, and recording it was refused: ${refused.message}`, { cause: refused });
    }
  }

  /** Gives the key back: nothing happened, beyond the finished steps. */
  async abandon(): Promise<void> {
    await this.#settle('abandon', release(this.#options.inSteps));
  }

  /** Says that it may have happened, and that nobody will record it. */
  async markUnknown(): Promise<void> {
    await this.#settle('unknown', {});
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end(undefined);
  }

  /**
   * After work that threw `error`, or did not say how it ended.
   * @internal
   */
  async end(error: unknown): Promise<void> {
    if (this.#ended) return;
    try {
      if (error instanceof Failed) await this.complete(error.result, { failed: true });
      else if (this.#verdict(error) === 'abandon') await this.abandon();
      // Once: that nobody renews the lease any more says the same.
      else await this.#settle('unknown', {}, 0);
    } catch (unsaid) {
      // A result that is not JSON, or an `onError` that throws.
      if (!this.#ended) await this.#settle('unknown', {}, 0).catch(() => undefined);
      // The error of the work counts.
      if (error instanceof Failed || !(unsaid instanceof SemelError)) throw unsaid;
      console.warn(`semel: the end of attempt ${this.id} could not be recorded: ${unsaid.message}`);
    }
  }

  #verdict(error: unknown): OnError {
    const { inSteps, onError = inSteps ? 'abandon' : 'unknown' } = this.#options;
    // Where the work is over, the effect is there. Not so with steps: their keys protect them.
    if (error === undefined || (this.#worked && !inSteps)) return 'unknown';
    return typeof onError === 'function' ? onError(error) : onError;
  }

  /** @internal */
  async renew(patience: number): Promise<void> {
    const held = this.#mine();
    const sent = now();
    const answer = await this.#tell('renew', {}, patience, held.lease / 3);
    held.until = Math.max(held.until, sent + Number(answer['lease_ms']));
  }

  /** @internal */
  get stopped(): boolean {
    return this.#stopped || this.lost.aborted;
  }

  async #settle(verb: string, body: object, patience?: number): Promise<void> {
    await this.#end(() => this.#tell(verb, body, patience));
  }

  async #end<T>(tell: () => Promise<T>): Promise<T> {
    this.#mine();
    this.#ended = true;
    try {
      return await tell();
    } finally {
      this.#stopped = true;
    }
  }

  async #tell(
    verb: string,
    body: object,
    patience = this.#client.patience,
    timeout = TIMEOUT,
  ): Promise<Record<string, unknown>> {
    const { id, token } = this.#mine().acquired;
    try {
      return await this.#client.call(`/v1/claims/${id}/${verb}`, { token, ...body }, patience, { timeout });
    } catch (error) {
      // Not where it ended meanwhile, by this attempt itself.
      if (error instanceof Stale && !(verb === 'renew' && this.#ended)) {
        this.#ended = true;
        this.#lost.abort(error);
      }
      throw error;
    }
  }

  #mine(): Held {
    if (!this.#held) throw new Error('it was done before: there is an `outcome`, and no claim');
    return this.#held;
  }
}

/** Must not keep the attempt itself alive: one that nobody can end any more is not renewed for ever. */
function renewInBackground(of: WeakRef<Attempt>, held: Held): void {
  // A third of the lease after the last one. At once after a claim that waited: its lease began later.
  const next = (atLeast: number) => {
    later(Math.max(held.until - now() - (held.lease * 2) / 3, atLeast), async () => {
      const attempt = of.deref();
      if (!attempt || attempt.stopped) return;
      const renewed = await attempt.renew(0).then(
        () => true,
        () => false,
      );
      if (!attempt.stopped) next(renewed ? 0 : held.lease / 10);
    });
  };
  next(0);
}

/**
 * Makes a function that runs once per key; every call gets its result. `key` and `payload` are functions of
 * the arguments; unless there is a `payload`, it is the arguments. Within a `function`, `this` is the attempt.
 */
export function once<A extends unknown[], R>(
  client: Client,
  options: Omit<ClaimOptions, 'payload'> & {
    operation: string;
    key: (...args: A) => string;
    payload?: (...args: A) => unknown;
  },
  work: (this: Attempt, ...args: A) => R | Promise<R>,
): (...args: A) => Promise<R> {
  const { operation, key, payload, ...others } = options;
  return async (...args) => {
    const asked = payload ? payload(...args) : args;
    return client.run(operation, key(...args), { ...others, payload: asked }, (attempt) =>
      work.apply(attempt, args),
    );
  };
}

/** Nothing is known of the call after these; others are the answer to it. */
const isTemporary = ({ status, code }: Problem): boolean =>
  status >= 500 || [408, 425, 429].includes(status) || code === 'incomplete-body';

const isTooLarge = (error: unknown): boolean => error instanceof Problem && error.status === 413;

// Steps gave out keys: the next attempt must have the same ones.
const release = (inSteps = false): object => (inSteps ? { keys_given: true } : {});

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function duration(value: Duration): string {
  return typeof value === 'string' ? value : `${Math.round(value)}ms`;
}

function toWire({ kind, value, code = 0, contentType }: Outcome): WireOutcome {
  const wire: WireOutcome = { kind, code };
  if (contentType !== undefined) wire.content_type = contentType;
  if (value instanceof Uint8Array) wire.base64 = toBase64(value);
  else if (value !== undefined) wire.json = value;
  return wire;
}

function fromWire(wire: WireOutcome): Outcome {
  let value = 'json' in wire ? wire.json : wire.text;
  if (wire.base64 !== undefined) value = fromBase64(wire.base64);
  // Bytes that are UTF-8 are shown as text.
  else if (wire.text !== undefined && wire.content_type === 'application/octet-stream') {
    value = new TextEncoder().encode(wire.text);
  }
  const outcome = { kind: wire.kind, value, code: wire.code ?? 0 };
  return wire.content_type === undefined ? outcome : { ...outcome, contentType: wire.content_type };
}

/**
 * What a replay will show: a Date becomes text, `undefined` in an object nothing. What cannot be sent is an
 * error here: before anybody was told of an end.
 */
function asKept(outcome: Outcome): Outcome {
  return fromWire(JSON.parse(JSON.stringify(toWire(outcome))));
}

function valueOf(outcome: Outcome): unknown {
  if (outcome.kind === 'failure') throw new Failed(outcome.value);
  if (outcome.kind === 'omitted') throw new ResultOmitted('it is done, and its result was too large to keep');
  return outcome.value;
}

async function stepKey({ id, since }: Acquired, place: number, name: string): Promise<string> {
  const text = new TextEncoder();
  const numbers = new DataView(new ArrayBuffer(16));
  numbers.setBigUint64(0, BigInt(since));
  numbers.setBigUint64(8, BigInt(place));
  const digits = id.match(/../g)!.map((byte) => parseInt(byte, 16));
  const bytes = [...text.encode('semel/step/2'), ...digits, ...new Uint8Array(numbers.buffer), ...text.encode(name)];
  return hex(new Uint8Array(await crypto.subtle.digest('SHA-256', new Uint8Array(bytes))));
}

const hex = (bytes: Uint8Array): string => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

const toBase64 = (bytes: Uint8Array): string => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));

const fromBase64 = (text: string): Uint8Array => Uint8Array.from(atob(text), (byte) => byte.charCodeAt(0));
