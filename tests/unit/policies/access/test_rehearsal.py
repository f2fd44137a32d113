"""Rules that are only rehearsed: they refuse nothing, and what they would refuse is counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from gateway.access.permissions import listener_access
from gateway.config.models import Config
from gateway.ir.calls import Call, InferRequest, ModelReadyRequest, RepositoryIndexRequest
from gateway.ir.context import Client, Context, ModelRef
from gateway.ir.errors import AccessDenied, TooLarge
from gateway.ir.identity import Identity
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import raw_tensor
from gateway.policies.access.authorise import Authorise, ListenerAccess

ALL = {"operations": "all", "name": "all"}
SMALL = {"operations": "inference", "name": "small", "max_elements": 4}
DENY = {"operations": ["inference", "index"], "name": "deny", "effect": "deny"}
SHADOW = {"mode": "shadow"}
REHEARSED, DENIED = "rehearsed", "denied"


def access_of(rules: list[dict[str, Any]], counts: Counter[Any]) -> ListenerAccess:
    """Return what clients may do at a listener."""
    config = Config.model_validate(
        {
            "version": "1",
            "listeners": [{"name": "main", "http": "127.0.0.1:0"}],
            "models": {"m": {"backend": "python", "options": {"callable": "a:b"}}},
            "security": {"rules": rules},
        }
    )
    return listener_access(
        config,
        lambda _identity, operation: counts.update([(DENIED, operation)]),
        lambda _identity, operation, rule: counts.update([(REHEARSED, operation, rule)]),
    )["main"]


CONTEXT = Context(protocol="oip.http", client=Client(identity=Identity("fraud")))
INFER = InferRequest(
    model=ModelRef("m"),
    inputs=(raw_tensor("x", Datatype.FP32, (1, 8), memoryview(bytes(32))),),
    context=CONTEXT,
)
CALLS: dict[str, Call[Any]] = {
    "inference": INFER,
    "index": RepositoryIndexRequest(context=CONTEXT),
    "health": ModelReadyRequest(model=ModelRef("m"), context=CONTEXT),
}


async def outcome(rules: list[dict[str, Any]], call: Call[Any]) -> tuple[bool, Counter[Any]]:
    """Return whether a call is made, and what is counted."""
    counts: Counter[Any] = Counter()
    access = access_of(rules, counts)

    async def inner(_call: Call[Any]) -> Any:
        return ()

    layer = Authorise(inner, access)
    try:
        if isinstance(call, InferRequest):
            access.check_inference(call.context.client, ModelRef("m"), "oip.http")
            await layer.handle_inference(call)
        else:
            await layer(call)
    except (AccessDenied, TooLarge):
        return False, counts
    return True, counts


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize(
    ("rules", "rule"),
    [
        ([ALL | SHADOW], {}),
        ([SMALL | SHADOW], {"inference": None, "index": None, "health": None}),
        ([ALL, DENY | SHADOW], {"inference": "deny", "index": "deny"}),
        ([ALL | SHADOW, DENY | SHADOW], {"inference": "deny", "index": "deny"}),
        ([ALL, SMALL | SHADOW], {}),
    ],
    ids=["allow", "allow-small", "deny", "all-shadow", "wider"],
)
async def test_a_rehearsed_rule_refuses_nothing_and_counts_once(
    rules: list[dict[str, Any]], rule: dict[str, str | None], operation: str
) -> None:
    """Each call is made, and counted once where the rules would refuse it if all were enforced."""
    expected = Counter([(REHEARSED, operation, rule[operation])] if operation in rule else [])
    assert (True, expected) == await outcome(rules, CALLS[operation])
    enforced = [{**each, "mode": "enforce"} for each in rules]
    assert (operation not in rule) == (await outcome(enforced, CALLS[operation]))[0]


async def test_an_enforced_refusal_is_no_rehearsal() -> None:
    """What an enforced rule denies is refused and counted as before."""
    found = await outcome([ALL, DENY, SMALL | DENY | SHADOW | {"max_elements": None}], INFER)
    assert (False, Counter([(DENIED, "inference")])) == found
