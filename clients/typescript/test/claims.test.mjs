// Claims through a real gateway, whose operators' listener is $SEMEL_ADMIN_URL.
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';

import {
  Client,
  Expired,
  Failed,
  InFlight,
  Mismatch,
  NotRecorded,
  OutcomeUnknown,
  Refused,
  ResultOmitted,
  Stale,
  StepTooLarge,
  StepsChanged,
  Unsettled,
  Untrusted,
  once,
} from '../dist/index.js';

const url = process.env.SEMEL_ADMIN_URL;
assert.ok(url, 'clients/test starts the gateway');

const client = new Client(url, { patience: 10_000 });
const CLAIMED = { id: '7'.repeat(64), token: 't', fence: 1, attempt: 1, since: 1, lease_ms: 60_000, steps: [] };

/** A client over a network that fails as it is told. */
function cutOff(options) {
  const network = { loseAnswers: 0, down: false, lost: 0, sent: 0 };
  const throughIt = async (...sent) => {
    network.sent += 1;
    if (network.down) throw new TypeError('the network is down');
    const response = await fetch(...sent);
    if (network.loseAnswers > 0) {
      network.loseAnswers -= 1;
      network.lost += 1;
      await response.arrayBuffer();
      throw new TypeError('the answer is lost');
    }
    return response;
  };
  return [new Client(url, { patience: 30_000, ...options, fetch: throughIt }), network];
}

test('a function runs once per key, and everybody gets its result', async () => {
  const id = randomUUID();
  const charged = [];
  const charge = once(client, { operation: 'charge', key: (order) => order.id }, async function (order) {
    assert.ok(this.stillHeld());
    charged.push([order.cents, this.attempt]);
    return { charge: this.id, at: new Date(0), nothing: undefined };
  });
  const first = await charge({ id, cents: 300 });
  assert.deepEqual(Object.keys(first), ['charge', 'at']);
  assert.equal(first.at, '1970-01-01T00:00:00.000Z');
  assert.deepEqual(await charge({ cents: 300, id }), first);
  const attempt = await client.claim('charge', id, { payload: [{ id, cents: 300 }] });
  assert.deepEqual(attempt.result(), first);
  assert.equal(attempt.id, first.charge);
  assert.throws(() => attempt.fence, /done before/);
  assert.deepEqual(charged, [[300, 1]]);

  await assert.rejects(charge({ id, cents: 301 }), (error) => {
    assert.ok(error instanceof Mismatch);
    assert.deepEqual([error.name, error.status, error.code, error.id], ['Mismatch', 422, 'mismatch', first.charge]);
    return true;
  });
});

for (const result of [undefined, null, 'text', 0, [], { é: [null, true, 1.5] }, Uint8Array.of(0, 255), Uint8Array.of(65), Uint8Array.of()]) {
  test(`a result comes back as it was: ${JSON.stringify(result)}`, async () => {
    const key = randomUUID();
    assert.deepEqual(await client.run('echo', key, {}, () => result), result);
    assert.deepEqual(await client.run('echo', key, {}, () => 'another'), result);
  });
}

test('who comes meanwhile is refused, or waits', async () => {
  const key = randomUUID();
  const attempt = await client.claim('wait', key);
  await assert.rejects(client.claim('wait', key), (error) => error instanceof InFlight && error.retryAfter > 0);
  const gone = new AbortController();
  const leaving = client.claim('wait', key, { wait: 60_000, signal: gone.signal });
  gone.abort(new Error('gone'));
  await assert.rejects(leaving, /gone/);
  const waiting = client.claim('wait', key, { wait: 60_000 });
  await attempt.complete('done');
  assert.equal((await waiting).result(), 'done');
});

test('an error leaves the outcome unknown', async () => {
  const key = randomUUID();
  const fails = () => {
    throw new RangeError('too far');
  };
  await assert.rejects(client.run('go', key, {}, fails), RangeError);
  const unknown = await client.run('go', key, {}, () => 1).catch((error) => error);
  assert.ok(unknown instanceof OutcomeUnknown);
  const attempt = await client.claim('go', key, { onLost: 'retry' });
  assert.deepEqual([attempt.id, attempt.attempt], [unknown.id, 2]);
  assert.ok(attempt.fence > unknown.fence);
  await attempt.complete(1);
});

test('so does a block that does not say how it ended', async () => {
  const key = randomUUID();
  const attempt = await client.claim('go', key);
  await attempt[Symbol.asyncDispose]();
  await assert.rejects(client.claim('go', key), OutcomeUnknown);
});

test('an error before the effect lets the next call run', async () => {
  const key = randomUUID();
  for (const onError of ['abandon', (error) => (error instanceof RangeError ? 'abandon' : 'unknown')]) {
    const fails = () => Promise.reject(new RangeError('too far'));
    await assert.rejects(client.run('go', key, { onError }, fails), RangeError);
  }
  assert.equal(await client.run('go', key, {}, ({ attempt }) => attempt), 3);
});

test('a lasting failure is replayed', async () => {
  const key = randomUUID();
  const decline = () => {
    throw new Failed({ code: 'declined' });
  };
  for (const work of [decline, () => 1]) {
    const failed = await client.run('charge', key, {}, work).catch((error) => error);
    assert.ok(failed instanceof Failed);
    assert.deepEqual(failed.result, { code: 'declined' });
  }
});

test('what is no longer kept is expired', async () => {
  const key = randomUUID();
  await client.run('old', key, { ttl: 100, lease: 100, tombstone: 3_600_000 }, () => 1);
  for (;;) {
    const result = await client.run('old', key, {}, () => 2).catch((error) => error);
    if (result !== 1) {
      assert.ok(result instanceof Expired);
      return;
    }
    await sleep(20);
  }
});

test('steps go on where the last attempt ended', async () => {
  const key = randomUUID();
  const ran = [];
  const step = (name, result) => (stepKey) => {
    ran.push([name, stepKey]);
    if (result instanceof Error) throw result;
    return result;
  };
  const settle = (shipped) => async (attempt) => [
    await attempt.step('charge', step('charge', { id: 7 })),
    await attempt.step('ship', step('ship', shipped)),
  ];
  const options = { inSteps: true };
  await assert.rejects(client.run('settle', key, options, settle(new Error('no parcel'))), /no parcel/);
  await assert.rejects(
    client.run('settle', key, options, (attempt) => attempt.step('ship', () => 1)),
    StepsChanged,
  );
  assert.deepEqual(await client.run('settle', key, options, settle('sent')), [{ id: 7 }, 'sent']);
  assert.deepEqual(
    ran.map(([name]) => name),
    ['charge', 'ship', 'ship'],
  );
  assert.notEqual(ran[0][1], ran[1][1]);
  assert.equal(ran[1][1], ran[2][1]);
  assert.equal(ran[0][1].length, 64);
});

test('steps want to be declared', async () => {
  const attempt = await client.claim('settle', randomUUID());
  await assert.rejects(attempt.step('charge', String), /inSteps/);
  await attempt.abandon();
});

test('a lease is renewed while the work runs', async () => {
  const key = randomUUID();
  const attempt = await client.claim('long', key, { lease: 300 });
  const end = performance.now() + 1200;
  while (performance.now() < end) {
    await assert.rejects(client.claim('long', key, { onLost: 'retry' }), InFlight);
    await sleep(20);
  }
  assert.ok(attempt.stillHeld());
  await attempt.complete();
});

test('an attempt that was overtaken records nothing', async () => {
  const key = randomUUID();
  const [slow, network] = cutOff();
  const attempt = await slow.claim('slow', key, { lease: 300 });
  network.down = true;
  const other = await client.claim('slow', key, { onLost: 'retry', wait: 60_000 });
  assert.ok(!attempt.stillHeld());
  network.down = false;
  await assert.rejects(attempt.complete('late'), (error) => error instanceof Stale && error.reason === 'superseded');
  assert.ok(attempt.lost.aborted);
  await other.complete('in time');
  assert.equal((await client.claim('slow', key)).result(), 'in time');
});

test('answers that are lost are asked for again', async () => {
  const key = randomUUID();
  const [lossy, network] = cutOff();
  network.loseAnswers = 1;
  const attempt = await lossy.claim('lost', key, { lease: 60_000 });
  assert.equal(attempt.attempt, 1);
  network.loseAnswers = 2;
  await attempt.complete('once');
  assert.equal(network.lost, 3);
  assert.equal((await client.claim('lost', key)).result(), 'once');
});

test('a gateway that does not come back leaves it unsettled', async () => {
  const [alone, network] = cutOff({ patience: 300 });
  const attempt = await alone.claim('away', randomUUID());
  network.down = true;
  await assert.rejects(attempt.complete('nobody knows'), Unsettled);
  await assert.rejects(alone.claim('away', randomUUID()), Unsettled);
});

test('steps run one after the other', async () => {
  const attempt = await client.claim('settle', randomUUID(), { inSteps: true });
  const nested = attempt.step('a', () => attempt.step('b', () => 1));
  await assert.rejects(nested, /'b' has to wait/);
  assert.equal(await attempt.step('a', () => 1), 1);
  await attempt.complete();
});

test('an onError that throws leaves it unknown', async () => {
  const key = randomUUID();
  const onError = () => {
    throw new RangeError('a mistake');
  };
  const fail = () => {
    throw new Error('an error');
  };
  await assert.rejects(client.run('charge', key, { onError }, fail), RangeError);
  await assert.rejects(client.claim('charge', key), OutcomeUnknown);
});

const cycle = {};
cycle.of = cycle;
for (const result of [1n, cycle]) {
  test(`a result that cannot be told is no error before the effect: ${inspect(result)}`, async () => {
    const key = randomUUID();
    const fail = () => {
      throw new Failed(result);
    };
    await assert.rejects(client.run('charge', key, { onError: 'abandon' }, () => result), TypeError);
    await assert.rejects(client.run('charge', `${key}2`, { onError: 'abandon' }, fail), TypeError);
    for (const kept of [key, `${key}2`]) await assert.rejects(client.claim('charge', kept), OutcomeUnknown);
  });
}

test('a result that is too large is omitted for everybody', async () => {
  const key = randomUUID();
  const ran = [];
  const work = ({ attempt }) => {
    ran.push(attempt);
    return new Uint8Array(2 << 20);
  };
  for (let n = 0; n < 2; n += 1) {
    await assert.rejects(client.run('export', key, { onLost: 'retry' }, work), ResultOmitted);
  }
  assert.deepEqual(ran, [1]);
});

test('so is one that others do not take', async () => {
  const omitted = () => Response.json({ state: 'completed', omitted: true });
  // A proxy in front of the gateway, which takes less; and a store.
  for (const taken of [() => new Response('<html>', { status: 413 }), omitted]) {
    const narrow = async (to, { body }) => {
      if (to.endsWith('/claims')) return Response.json(CLAIMED, { status: 201 });
      return JSON.parse(body).outcome.kind === 'omitted' ? omitted() : taken();
    };
    await assert.rejects(new Client(url, { fetch: narrow }).run('export', 'key', {}, () => 1), ResultOmitted);
  }
});

for (const [result, sent] of [
  ['x'.repeat(70_000), 2],
  [new Uint8Array(2 << 20), 1],
]) {
  test(`a step that is too large hands its result on, sent ${sent - 1} times`, async () => {
    const asked = [];
    const narrow = async (to, { body }) => {
      asked.push(to.split('/').at(-1));
      if (to.endsWith('/claims')) return Response.json(CLAIMED, { status: 201 });
      return Response.json({ code: 'too-large' }, { status: body.length > 64 << 10 ? 413 : 200 });
    };
    const attempt = await new Client(url, { fetch: narrow }).claim('export', 'key', { inSteps: true });
    const ran = await attempt.step('export', () => result).catch((error) => error);
    assert.ok(ran instanceof StepTooLarge, inspect(ran));
    assert.equal(ran.result, result);
    assert.equal(await attempt.step('export', () => 'an id'), 'an id');
    await attempt.markUnknown();
    assert.deepEqual(asked, ['claims', ...Array(sent).fill('steps'), 'unknown']);
  });
}

test('what is asked for and too large is not sent', async () => {
  const none = new Client(url, { fetch: () => assert.fail('nothing is sent') });
  const refused = none.claim('charge', 'key', { payload: 'x'.repeat(2 << 20) });
  await assert.rejects(refused, { name: 'Refused', status: 413, code: 'too-large' });
});

test('a completion that is refused leaves it unknown', async () => {
  const key = randomUUID();
  const attempt = await client.claim('charge', key);
  const lost = await attempt.complete(1, { ttl: 'soon' }).catch((error) => error);
  assert.ok(lost instanceof NotRecorded, inspect(lost));
  assert.match(lost.message, /the work ran/);
  assert.ok(lost.cause instanceof Refused);
  await assert.rejects(client.claim('charge', key), OutcomeUnknown);
  // Whoever can mend it still can record it.
  await attempt.complete('in the end');
  assert.equal((await client.claim('charge', key)).result(), 'in the end');
});

test('a claim that is sent again waits for what is left', async (t) => {
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const waits = [];
  const lossy = new Client(url, {
    fetch: async (_, { body }) => {
      waits.push(JSON.parse(body).wait);
      if (waits.length > 1) return Response.json({ id: '7', outcome: { kind: 'success' } });
      now = 590_000;
      throw new TypeError('broken');
    },
  });
  await lossy.claim('wait', 'key', { wait: 600_000 });
  assert.deepEqual(waits, ['600000ms', '10000ms']);
});

test('what is no answer of the claim API is not asked for again', async () => {
  let asked = 0;
  const page = async () => {
    asked += 1;
    return new Response('<html>');
  };
  const wrong = new Client(url, { patience: 1000, fetch: page });
  await assert.rejects(wrong.claim('charge', 'key'), { name: 'Refused', status: 200, code: 'no-problem' });
  assert.equal(asked, 1);
});

test('a claim is found again by its nonce', async () => {
  const key = randomUUID();
  const [away, network] = cutOff({ patience: 0 });
  network.loseAnswers = 1;
  const unsettled = await away.claim('lost', key).catch((error) => error);
  assert.ok(unsettled instanceof Unsettled);
  const attempt = await client.claim('lost', key, { nonce: unsettled.nonce });
  assert.equal(attempt.attempt, 1);
  await attempt.complete();
});

test('tokens and URLs are looked at', () => {
  assert.throws(() => new Client(url, { token: 's3\ncr3t' }), /visible ASCII/);
  assert.throws(() => new Client('http://me:s3cr3t@gateway'), (error) => /https:/.test(error) && !/cr3t/.test(error));
});

test('a refusal that breaks off is asked for again', async () => {
  const answers = [
    new Response(new ReadableStream({ start: (body) => body.error(new TypeError('broken')) }), { status: 409 }),
    Response.json({ code: 'mismatch' }, { status: 422 }),
  ];
  const broken = new Client(url, { fetch: async () => answers.shift() });
  await assert.rejects(broken.claim('charge', 'key'), Mismatch);
});

/** A claim that its caller gives up while its answer is on its way. Says whether more was sent then. */
async function cancelled(key, options) {
  const [lossy, network] = cutOff();
  network.loseAnswers = Infinity;
  const gone = new AbortController();
  const claiming = lossy.claim('cancelled', key, { lease: 3_600_000, signal: gone.signal, ...options });
  while (network.lost === 0) await sleep(5);
  const { sent } = network;
  gone.abort(new Error('gone'));
  await assert.rejects(claiming, /gone/);
  network.loseAnswers = 0;
  return network.sent > sent;
}

test('a claim that was cancelled is given back', async () => {
  const key = randomUUID();
  assert.ok(await cancelled(key));
  const attempt = await client.claim('cancelled', key, { wait: 60_000 });
  assert.equal(attempt.attempt, 2);
  await attempt.abandon();
});

test('but not what may have been begun', async () => {
  const key = randomUUID();
  const nonce = randomUUID().replaceAll('-', '');
  const attempt = await client.claim('cancelled', key, { nonce, lease: 3_600_000 });
  assert.ok(!(await cancelled(key, { nonce })));
  await attempt.markUnknown();
});

test('a lost attempt that was taken over is left to its lease', async () => {
  const key = randomUUID();
  await (await client.claim('cancelled', key)).markUnknown();
  await cancelled(key, { onLost: 'retry' });
  // When one that was cancelled later is given back.
  await cancelled(`${key}2`);
  await (await client.claim('cancelled', `${key}2`, { wait: 60_000 })).abandon();
  await assert.rejects(client.claim('cancelled', key), InFlight);
});

test('who left before claims nothing', async () => {
  const gone = AbortSignal.abort(new Error('gone'));
  const none = new Client(url, { fetch: () => assert.fail('nothing is sent') });
  await assert.rejects(none.claim('cancelled', 'key', { signal: gone }), /gone/);
});

test('a gateway whose certificate is not trusted', async () => {
  for (const untrusted of process.env.SEMEL_TLS_URLS.split(' ').slice(1)) {
    const error = await new Client(untrusted).claim('charge', 'key').catch((error) => error);
    assert.ok(error instanceof Untrusted, inspect(error));
    assert.equal(error.cause.name, 'TypeError');
  }
});

test('a certificate after a lost try leaves it unsettled', async () => {
  const errors = [new TypeError('broken'), new TypeError('no', { cause: { code: 'CERT_HAS_EXPIRED' } })];
  const replaced = new Client(url, { fetch: () => Promise.reject(errors.shift()) });
  const unsettled = await replaced.claim('charge', 'key').catch((error) => error);
  assert.ok(unsettled instanceof Unsettled);
  assert.match(unsettled.message, /certificate/);
  assert.equal(unsettled.nonce.length, 32);
});

test('an answer without an end is refused', async () => {
  const piece = new Uint8Array(1 << 20);
  const endless = () => new Response(new ReadableStream({ pull: (body) => body.enqueue(piece) }));
  const flooded = new Client(url, { fetch: async () => endless() });
  await assert.rejects(flooded.claim('charge', 'key'), /more than 64 MiB/);
});

test('a redirect is no answer to a claim', async () => {
  const redirects = [];
  const moved = new Client(url, {
    fetch: async (_, { redirect }) => {
      redirects.push(redirect);
      return new Response(null, { status: 302, headers: { location: '/' } });
    },
  });
  await assert.rejects(moved.claim('charge', 'key'), { name: 'Refused', status: 302 });
  assert.deepEqual(redirects, ['manual']);
});
