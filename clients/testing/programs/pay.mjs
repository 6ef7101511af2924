// Pays once with stripe-node, as npm has it: pay.mjs URL KEY CENTS. Prints what came of it, as JSON.
import Stripe from 'stripe';

const [url, key, cents] = process.argv.slice(2);
const { hostname, port } = new URL(url);
const stripe = new Stripe('sk_test_semel', { host: hostname, port, protocol: 'http', maxNetworkRetries: 2 });
let told;
try {
  const intent = await stripe.paymentIntents.create(
    { amount: Number(cents), currency: 'eur' },
    { idempotencyKey: key },
  );
  told = {
    id: intent.id,
    amount: intent.amount,
    replayed: intent.lastResponse.headers['idempotent-replayed'] ?? null,
  };
} catch (error) {
  if (!(error instanceof Stripe.errors.StripeError)) throw error;
  told = { error: error.type, status: error.statusCode ?? null, code: error.code ?? null };
}
// Answers that the library did not read would keep the process for a while.
process.stdout.write(JSON.stringify(told), () => process.exit());
