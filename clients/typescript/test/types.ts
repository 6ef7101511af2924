// Compiled, never run: what the types let pass, and what not.
import { type Attempt, Client, once, retryingFetch } from '../src/index.js';

const client = new Client(new URL('http://127.0.0.1:8081'), { token: 'secret', patience: 1000 });

interface Order {
  id: string;
  cents: number;
}

export const charge: (order: Order, by: string) => Promise<number> = once(
  client,
  { operation: 'charge', key: (order) => order.id, payload: (order, by) => [order, by.length], wait: 100 },
  async function (this: Attempt, order: Order, by: string) {
    return order.cents + by.length + this.fence;
  },
);

// @ts-expect-error: a key is text
once(client, { operation: 'charge', key: (order) => order.cents }, (order: Order) => order.id);

// @ts-expect-error: "ignore" is no policy
client.run('charge', 'key', { onLost: 'ignore' }, () => 1);

export async function byHand(order: Order): Promise<unknown> {
  await using attempt = await client.claim('charge', order.id, { payload: order, inSteps: true });
  const length: number = await attempt.step('measure', (key) => key.length);
  if (!attempt.outcome) await attempt.complete({ length }, { ttl: '7d' });
  return attempt.result();
}

export const patient: typeof fetch = retryingFetch({ patience: 60_000 });
