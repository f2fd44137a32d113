"""Which failed calls cost nothing: those that no target has received, by any of their attempts."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from gateway.ir.calls import Call, InferRequest, ModelMetadataRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import (
    ConnectFailure,
    DeadlineExceeded,
    GatewayError,
    NotSent,
    Unavailable,
)
from gateway.ir.identity import Identity
from gateway.policies.access.rules import AccessRule
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import RetryBudget, RetryRules
from gateway.quotas.budgets import Budgets, Limit, LocalAccounts
from gateway.quotas.layer import ApplyQuotas, QuotaRule, QuotasOfCalls
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.upstream import Upstream
from tests.fakes import FakeCodec

REASONS = frozenset({"unsent", "reset_before_answer", "timeout"})
CONTEXT = Context(client=Client(identity=Identity("a")))
CALLS = (
    InferRequest(model=ModelRef("m"), context=CONTEXT),
    ModelMetadataRequest(model=ModelRef("m"), context=CONTEXT),
)


class PlainCodec(FakeCodec):
    """Encodes each call as its name."""

    def encode_call(self, call: Call[Any], /) -> str:
        """Return the name of the call."""
        return type(call).__name__


class FailingClient:
    """A client whose attempts fail with these errors, one after the other."""

    def __init__(self, *errors: GatewayError) -> None:
        self._errors = deque(errors)

    async def send(self, *_: Any, **_options: Any) -> Any:
        """Fail."""
        raise self._errors.popleft()

    def stream(self, *_: Any, **_options: Any) -> Any:
        """Stream nothing."""
        raise AssertionError

    async def close(self) -> None:
        """Close nothing."""


async def no_pause(_seconds: float) -> None:
    """Wait for nothing."""


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
@pytest.mark.parametrize(
    ("errors", "left"),
    [
        ((Unavailable("broken"), ConnectFailure("away")), 4),
        ((DeadlineExceeded("late"), NotSent("closed")), 4),
        ((ConnectFailure("away"), Unavailable("broken")), 4),
        ((ConnectFailure("away"), Unavailable("broken"), NotSent("closed")), 4),
        ((ConnectFailure("away"), NotSent("closed")), 5),
        ((ConnectFailure("away"),), 5),
    ],
    ids=lambda each: (
        " ".join(type(one).__name__ for one in each) if isinstance(each, tuple) else ""
    ),
)
async def test_a_call_that_a_target_had_received_was_refunded_for_its_last_attempt(
    errors: tuple[GatewayError, ...], left: float, call: Call[Any]
) -> None:
    """A call is given back only if no attempt reached the server, whichever of them was last."""
    limits = {name: Limit(amount=5, period="day", unit=name) for name in ("calls", "seconds")}
    rule = AccessRule(name="all", operations=("inference", "metadata"), has_anonymous=True)
    rules = [QuotaRule(name=name, rule=rule, by=(), limit=one) for name, one in limits.items()]
    accounts = LocalAccounts(Budgets({each.budget: each.limit for each in rules}))
    retries = RetryBudget(RetryRules(reasons=REASONS, attempts=len(errors)), sleep=no_pause)
    upstream: Upstream[Any, Any] = Upstream("far", PlainCodec(), FailingClient(*errors))
    layer = ApplyQuotas(CallLimits(upstream, retries=retries), QuotasOfCalls(rules), accounts)
    CALL_PATH.set(CallPath())
    with pytest.raises(GatewayError):
        await layer(call)
    found = {each.name: accounts.state((each.budget,)) for each in rules}
    assert found["calls"] is not None
    assert left == found["calls"].left
    assert found["seconds"] is not None
    assert (left == 5) is (found["seconds"].left == 5)
