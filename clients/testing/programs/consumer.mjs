// Takes messages from a queue and charges each once: consumer.mjs QUEUE GATEWAY retry|hold. Runs until killed.
import { Client, OutcomeUnknown } from 'semel';

const [queue, gateway, policy] = process.argv.slice(2);
const client = new Client(gateway);

async function ask(path, body) {
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) };
  const response = await fetch(queue + path, init);
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.json();
}

async function handle(message) {
  let how = 'replayed';
  const charge = async ({ id, fence }) => {
    // An earlier attempt may have charged: its charge is found, or refused from now on.
    const found = policy === 'retry' ? await ask('/find', { id, fence }) : null;
    how = found ? 'found' : 'ran';
    return found ?? ask('/charge', { message: message.id, cents: message.cents, id, fence });
  };
  const options = { payload: message, lease: 300, wait: 60_000, onLost: policy };
  try {
    const charged = await client.run('charge', message.id, options, charge);
    if (charged.cents !== message.cents) throw new Error(JSON.stringify(charged));
    return how;
  } catch (error) {
    if (!(error instanceof OutcomeUnknown)) throw error;
    await ask('/park', { message: message.id, id: error.id });
    return 'parked';
  }
}

for (;;) {
  const message = await ask('/receive', {});
  if (message) await ask('/acknowledge', { message: message.id, how: await handle(message) });
}
