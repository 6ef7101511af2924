"""Pays once with stripe-python, as PyPI has it: pay.py URL KEY CENTS. Prints what came of it, as JSON."""

import json
import sys

import stripe

url, key, cents = sys.argv[1:]
client = stripe.StripeClient("sk_test_semel", base_addresses={"api": url}, max_network_retries=2)
try:
    intent = client.v1.payment_intents.create(
        {"amount": int(cents), "currency": "eur"}, {"idempotency_key": key}
    )
    headers = intent.last_response.headers if intent.last_response else {}
    told = {"id": intent.id, "amount": intent.amount, "replayed": headers.get("idempotent-replayed")}
except stripe.StripeError as error:
    told = {
        "error": type(error).__name__,
        "status": error.http_status,
        "code": error.error and error.error.code,
    }
print(json.dumps(told))
