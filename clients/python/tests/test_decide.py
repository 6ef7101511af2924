"""The table of retry cases, which all clients share."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import semel
from semel import _claims
from semel._decide import Answer, Decision, Failure, Sent, decide
from semel._flow import Pause
from semel._pursuit import Pursuit, Rules

TABLE = json.loads((Path(__file__).parents[2] / "retry-cases.json").read_text())
NOW = datetime.fromisoformat(TABLE["now"].replace("Z", "+00:00"))


def came(case: dict[str, Any]) -> Answer | Failure:
    if "error" in case:
        return Failure(**case["error"])
    answer = case["answer"]
    text = answer.get("text", json.dumps(answer["body"]) if "body" in answer else "")
    return Answer(answer["status"], answer.get("headers", {}), text.encode() + b" " * answer.get("pad", 0))


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_each_case_of_the_table(case: dict[str, Any]) -> None:
    expected = case["expect"]
    decision = decide(Sent(**case["request"]), came(case), NOW)
    assert decision == Decision(
        expected["decision"],
        expected.get("effect", "happened"),
        expected.get("reason"),
        expected.get("after_ms", 0) / 1000,
        expected.get("replayed", False),
    ), case["why"]


def test_a_time_that_is_too_large() -> None:
    body = b'{"error": {"retry_after": 1%s}}' % (b"0" * 400)
    answer = Answer(503, {"content-type": "application/json"}, body)
    assert decide(Sent(), answer, NOW).after == float(1 << 31)
    for date in ("Sun, 22 Nov 2026 20:00:30 +99999999999999999999", "22 Nov , 20:00:30 GMT"):
        assert decide(Sent(), Answer(503, {"retry-after": date}), NOW).after == 0


@pytest.mark.parametrize(("method", "given"), TABLE["gets_key"].items())
def test_which_methods_get_a_key(method: str, given: bool) -> None:
    headers: dict[str, str] = {}
    pursuit = Pursuit(Rules(), method, headers)
    assert (pursuit.key is not None, "Idempotency-Key" in headers) == (given, given)


@pytest.mark.parametrize("case", TABLE["claim_calls"], ids=str)
def test_which_calls_are_sent_again(case: dict[str, Any]) -> None:
    flow = _claims.call("/v1/claims", {}, patience=60)
    assert isinstance(next(flow), _claims.Send)
    answer = _claims.Answer(case["status"], {}, json.dumps({"code": case.get("code")}).encode())
    if case["again"]:
        assert isinstance(flow.send(answer), Pause)
    else:
        with pytest.raises(semel.Problem):
            flow.send(answer)
