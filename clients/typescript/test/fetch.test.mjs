// retryingFetch, before a service that fails as it is told.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { test } from 'node:test';
import { inspect } from 'node:util';

import { isUntrusted } from '../dist/network.js';
import { Budget, Expired, Mismatch, OutcomeUnknown, Unsettled, retryingFetch } from '../dist/index.js';

const CUT = Symbol('the connection breaks');

/** Answers one after the other; the last one from then on. */
async function script(t, ...answers) {
  const asked = [];
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const piece of request) body += piece;
    asked.push({ body, key: request.headers['idempotency-key'] });
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    if (answer === CUT) return request.socket.destroy();
    response.writeHead(answer.status ?? 200, answer.headers).end(answer.body);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return [`http://127.0.0.1:${server.address().port}`, asked, server];
}

const problem = (status, code, headers) => ({
  status,
  headers: { 'content-type': 'application/problem+json', ...headers },
  body: JSON.stringify({ code, detail: 'why' }),
});

const CREATED = { status: 201, headers: { 'content-type': 'application/json' }, body: '{"id":7}' };
const quick = (options) => retryingFetch({ patience: 20_000, firstPause: 1, ...options });

test('one key for all tries, and the same body', async (t) => {
  const [url, asked] = await script(t, CUT, problem(409, 'in-flight'), { status: 503 }, CREATED);
  const response = await quick()(url, { method: 'POST', body: 'an order' });
  assert.deepEqual([response.status, await response.json()], [201, { id: 7 }]);
  assert.deepEqual(
    asked.map(({ body }) => body),
    Array(4).fill('an order'),
  );
  assert.equal(new Set(asked.map(({ key }) => key)).size, 1);
  assert.equal(asked[0].key.length, 36);
});

test('a body that can be read once is sent twice', async (t) => {
  const [url, asked] = await script(t, { status: 503 }, CREATED);
  const body = new Blob(['a file']).stream();
  const headers = { 'Idempotency-Key': 'my-own' };
  await quick()(new Request(url, { method: 'POST', body, headers, duplex: 'half' }));
  assert.deepEqual(asked, Array(2).fill({ body: 'a file', key: 'my-own' }));
});

test('a GET needs no key', async (t) => {
  const [url, asked] = await script(t, CUT, { body: '[]' });
  assert.deepEqual(await (await quick()(url)).json(), []);
  assert.deepEqual(
    asked.map(({ key }) => key),
    [undefined, undefined],
  );
});

test('which methods get a key', async () => {
  const table = JSON.parse(readFileSync(new URL('../../retry-cases.json', import.meta.url), 'utf8'));
  for (const [method, given] of Object.entries(table.gets_key)) {
    // No fetch sends it.
    if (method === 'TRACE') continue;
    let key;
    const send = async ({ headers }) => {
      key = headers.get('idempotency-key');
      return new Response();
    };
    await quick({ fetch: send })('http://service', { method });
    assert.equal(key !== null, given, method);
  }
});

test('a stream may take longer than an answer', async (t) => {
  const server = createServer((request, response) => {
    response.write('first ');
    setTimeout(() => response.end('last'), 600);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  const response = await quick({ timeout: 300 })(`http://127.0.0.1:${server.address().port}`);
  assert.equal(await response.text(), 'first last');
});

test('a mismatch is never sent again', async (t) => {
  const [url, asked] = await script(t, problem(422, 'mismatch', { 'retry-after': '0' }));
  const mismatch = await quick()(url, { method: 'POST' }).catch((error) => error);
  assert.ok(mismatch instanceof Mismatch);
  assert.deepEqual([mismatch.status, mismatch.detail], [422, 'why']);
  assert.equal((await mismatch.response.json()).code, 'mismatch');
  assert.equal(asked.length, 1);
});

for (const [code, kind] of [
  ['outcome-unknown', OutcomeUnknown],
  ['expired', Expired],
]) {
  test(`${code} is reported as such`, async (t) => {
    const [url, asked] = await script(t, CUT, problem(409, code));
    await assert.rejects(quick()(url, { method: 'POST' }), kind);
    assert.equal(asked.length, 2);
  });
}

for (const status of [302, 400, 401, 402, 404, 409, 422]) {
  test(`${status} of the service is an answer`, async (t) => {
    const [url, asked] = await script(t, { status, body: 'why' });
    const response = await quick()(url, { method: 'POST', redirect: 'manual' });
    assert.deepEqual([response.status, await response.text(), asked.length], [status, 'why', 1]);
  });
}

test('no answer in time is unsettled', async (t) => {
  const [url, asked] = await script(t, CUT);
  const headers = { 'Idempotency-Key': 'mine' };
  const unsettled = await quick({ patience: 300 })(url, { method: 'POST', headers }).catch((error) => error);
  assert.ok(unsettled instanceof Unsettled);
  assert.equal(unsettled.key, 'mine');
  assert.ok(asked.length > 1);
});

test('a refusal after a lost try is unsettled', async (t) => {
  const [url] = await script(t, CUT, { status: 401 });
  const unsettled = await quick()(url, { method: 'POST' }).catch((error) => error);
  assert.ok(unsettled instanceof Unsettled);
  assert.equal(unsettled.response.status, 401);
});

test('what was never sent is the error that it is', async (t) => {
  const [url, , server] = await script(t, CREATED);
  await new Promise((done) => server.close(done));
  // Not by patience: a try at its very end may be too late to tell.
  const budget = new Budget(0, 0, 2);
  await assert.rejects(quick({ budget })(url, { method: 'POST', redirect: 'manual' }), TypeError);
});

test('a redirect to nowhere does not mean that nothing was sent', async (t) => {
  const [gone, , server] = await script(t, CREATED);
  await new Promise((done) => server.close(done));
  const [url, asked] = await script(t, { status: 303, headers: { location: gone } });
  await assert.rejects(quick({ patience: 200 })(url, { method: 'POST' }), Unsettled);
  assert.ok(asked.length > 0);
});

test('who is asked to wait too long gets the refusal', async (t) => {
  const [url, asked] = await script(t, problem(429, 'limit', { 'retry-after': '3600' }));
  assert.equal((await quick()(url, { method: 'POST' })).status, 429);
  assert.equal(asked.length, 1);
});

test('a caller that leaves ends it', async (t) => {
  const [url] = await script(t, { status: 503, headers: { 'retry-after': '5' } });
  const gone = new AbortController();
  const asking = quick()(url, { method: 'POST', signal: gone.signal });
  gone.abort(new Error('gone'));
  await assert.rejects(asking, /gone/);
});

test('a budget slows retries down', (t) => {
  let now = 0;
  t.mock.method(performance, 'now', () => now);
  const budget = new Budget(0.5, 2, 3);
  const spend = (times) => Array.from({ length: times }, () => budget.spend(60_000));
  assert.deepEqual(spend(5), [0, 0, 0, 500, 1000]);
  for (let n = 0; n < 4; n += 1) budget.earn();
  assert.deepEqual(spend(2), [500, 1000]);
  now = 60_000;
  assert.deepEqual(spend(4), [0, 0, 0, 500]);
});

test('a retry that is not made costs nothing', () => {
  const budget = new Budget(0.2, 0.001, 1);
  const spent = Array.from({ length: 100 }, () => budget.spend(1000));
  assert.deepEqual(spent, [0, ...Array(99).fill(undefined)]);
  for (let n = 0; n < 6; n += 1) budget.earn();
  assert.equal(budget.spend(1000), 0);
});

test('a try ends with the patience', async (t) => {
  const server = createServer(() => {});
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const url = `http://127.0.0.1:${server.address().port}`;
  await assert.rejects(quick({ patience: 300, timeout: 600_000 })(url, { method: 'POST' }), Unsettled);
});

test('a stream of events is not read', async (t) => {
  const server = createServer((request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' }).write('data: 1');
    setTimeout(() => response.end(' 2'), 600);
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  const url = `http://127.0.0.1:${server.address().port}`;
  const response = await quick({ timeout: 300 })(url, { method: 'POST' });
  assert.equal(await response.text(), 'data: 1 2');
});

test('what no fetch can send is not sent again', async () => {
  await assert.rejects(quick()('foo://nowhere', { method: 'POST' }), TypeError);
});

test('a key is not printed', async (t) => {
  const [url] = await script(t, CUT);
  const headers = { 'Idempotency-Key': 's3cr3t' };
  const unsettled = await quick({ patience: 100 })(url, { method: 'POST', headers }).catch((error) => error);
  assert.equal(unsettled.key, 's3cr3t');
  assert.doesNotMatch(inspect(unsettled), /s3cr3t/);
});

test('a certificate that is not trusted ends it', async () => {
  const [trusted, ...untrusted] = process.env.SEMEL_TLS_URLS.split(' ');
  const budget = new Budget();
  budget.spend = () => assert.fail('it is not sent again');
  assert.equal((await quick({ budget })(trusted, { method: 'POST' })).status, 404);
  for (const url of untrusted) {
    const nothing = await quick({ budget })(url, { method: 'POST', redirect: 'manual' }).catch((error) => error);
    assert.ok(nothing instanceof TypeError, inspect(nothing));
    assert.match(nothing.cause.code, /^(UNABLE_TO_VERIFY_LEAF_SIGNATURE|ERR_TLS_CERT_ALTNAME_INVALID)$/);
    // That of a redirect's target looks the same.
    const perhaps = await quick({ budget })(url, { method: 'POST' }).catch((error) => error);
    assert.ok(perhaps instanceof Unsettled);
    assert.match(perhaps.message, /a certificate is not trusted/);
  }
});

test('certificates as Bun and Deno say it', () => {
  const altname = Object.assign(new TypeError('…'), { code: 'ERR_TLS_CERT_ALTNAME_INVALID' });
  const cause = new Error('error sending request: client error (Connect): invalid peer certificate: UnknownIssuer');
  for (const error of [altname, new TypeError('fetch failed', { cause })]) assert.ok(isUntrusted(error));
  for (const other of [new TypeError('fetch failed', { cause: { code: 'ECONNRESET' } }), new Error('CERT_'), 'why', null]) {
    assert.ok(!isUntrusted(other));
  }
});

/** Sends `piece` until the other side has enough. */
const withoutEnd = (piece) => new ReadableStream({ pull: (body) => body.enqueue(piece) });

test('a problem without an end is not read to it', async () => {
  const answers = [new Response(withoutEnd(new Uint8Array(1 << 16)), { status: 503 }), new Response(null, { status: 201 })];
  const send = quick({ fetch: async () => answers.shift() });
  assert.equal((await send('http://service', { method: 'POST' })).status, 201);
});

test('a long answer without a length comes whole', async (t) => {
  const body = Buffer.alloc(2 << 20, 'semel');
  const server = createServer((request, response) => {
    response.write(body.subarray(0, 7));
    response.end(body.subarray(7));
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => server.close());
  const response = await quick()(`http://127.0.0.1:${server.address().port}`, { method: 'POST' });
  assert.equal(response.headers.get('content-length'), null);
  assert.ok(body.equals(Buffer.from(await response.arrayBuffer())));
});
