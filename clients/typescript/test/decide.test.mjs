// The table of retry cases, which all clients share.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { decide } from '../dist/decide.js';
import { Client } from '../dist/index.js';

const table = JSON.parse(readFileSync(new URL('../../retry-cases.json', import.meta.url), 'utf8'));

function came({ error, answer }) {
  if (error) return error;
  const text = answer.text ?? ('body' in answer ? JSON.stringify(answer.body) : '');
  const body = new TextEncoder().encode(text + ' '.repeat(answer.pad ?? 0));
  return { status: answer.status, headers: new Headers(answer.headers), body };
}

for (const { name, why, request, expect, ...what } of table.cases) {
  test(`retry case ${name}`, () => {
    const sent = { method: 'POST', key: true, lost: false, ...request };
    const { next, effect, reason, after, replayed } = decide(sent, came(what), Date.parse(table.now));
    assert.deepEqual(
      { next, effect, reason, after, replayed },
      {
        next: expect.decision,
        effect: expect.effect ?? 'happened',
        reason: expect.reason,
        after: expect.after_ms ?? 0,
        replayed: expect.replayed ?? false,
      },
      why,
    );
  });
}

for (const { status, code, again } of table.claim_calls) {
  test(`a call that is answered ${status} ${code ?? ''} is ${again ? '' : 'not '}sent again`, async () => {
    const answers = [Response.json({ code }, { status }), Response.json({ id: '7', outcome: { kind: 'success' } })];
    const client = new Client('http://gateway', { fetch: async () => answers.shift() });
    const { id } = await client.claim('charge', 'key').catch((error) => error);
    assert.deepEqual([id, answers.length], again ? ['7', 0] : [undefined, 1]);
  });
}
