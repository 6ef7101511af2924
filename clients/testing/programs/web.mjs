// Places orders over HTTP, each once: web.mjs CLIENT URL ORDERS. Prints a line of JSON for each.
import { SemelError, retryingFetch } from 'semel';

const AT_ONCE = 8;
const [, url, orders] = process.argv.slice(2);
const fetch = retryingFetch({ firstPause: 50, longestPause: 1000 });

async function place(order) {
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ order }),
    });
    return { order, status: response.status, body: await response.json() };
  } catch (error) {
    if (!(error instanceof SemelError)) throw error;
    return { order, error: error.name };
  }
}

let next = 0;
async function some() {
  while (next < Number(orders)) console.log(JSON.stringify(await place(next++)));
}
await Promise.all(Array.from({ length: AT_ONCE }, some));
