// The table of retry cases, which all clients share.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';

import { decide } from '../dist/decide.js';

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
