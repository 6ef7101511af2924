/** Milliseconds, by a clock that only goes forward. */
export const now = (): number => performance.now();

export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, ms);
    signal?.addEventListener('abort', stop, { once: true });
  });
}

/** `call` after `ms`, unless the process has nothing else to do. */
export function later(ms: number, call: () => void): () => void {
  const timer: unknown = setTimeout(call, ms);
  // Node's and Bun's timers keep the process alive unless told otherwise; others are numbers.
  if (typeof timer === 'object') (timer as { unref?(): void }).unref?.();
  return () => clearTimeout(timer as number);
}

/** Ends by itself after `ms`, or with `signal`. */
export function within(ms: number, signal?: AbortSignal | null): AbortSignal {
  const timeout = AbortSignal.timeout(Math.ceil(ms));
  return signal ? AbortSignal.any([signal, timeout]) : timeout;
}
