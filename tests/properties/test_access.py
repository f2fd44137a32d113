"""The decisions of permissions, against a second implementation that only reads the rules."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ir.identity import ANONYMOUS, Identity
from gateway.policies.access.operations import OPERATIONS
from gateway.policies.access.rules import AccessRule, Facts, Permissions, Size
from tests.cases.access_oracle import decision, may_list

_CLIENTS = ["fraud", "score-1", "score-2", "a[b"]
_MODELS = ["fraud", "fraud-2", "text", ""]
_PATTERNS = ["*", "fraud*", "score-?", "text", "[!f]*", "nothing"]
_GROUPS = ["finance", "risk"]
_LISTENERS = ["main", "inner"]
_PROTOCOLS = ["oip.http", "oip.grpc", "grps.brpc"]


def _some(values: Sequence[str]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=2).map(tuple)


def _optional(values: Sequence[str]) -> st.SearchStrategy[tuple[str, ...] | None]:
    return st.none() | _some(values)


@st.composite
def _rules(draw: st.DrawFn) -> AccessRule:
    denies = draw(st.booleans())
    sizes = st.just(None) if denies else st.none() | st.integers(0, 8)
    texts = st.dictionaries(
        st.sampled_from(["team", "scope", "/deep/0"]), _some(["a", "b*", "*"]), max_size=1
    )
    return AccessRule(
        name=f"rule-{draw(st.integers(1, 99))}",
        operations=draw(_some([*OPERATIONS, "all", "index", "model-repository"])),
        denies=denies,
        clients=draw(_optional([*_PATTERNS, "anonymous"])),
        groups=draw(_optional(["fin*", "risk"])),
        tiers=draw(_optional(["gold", "*"])),
        labels=draw(texts),
        claims=draw(texts),
        models=draw(_optional(_PATTERNS)),
        versions=draw(_optional(["", "1", "2*"])),
        protocols=draw(_optional(["oip.*", "grps.brpc"])),
        listeners=draw(_optional(["main", "in*"])),
        max_elements=draw(sizes),
        max_bytes=draw(sizes),
    )


@st.composite
def _identities(draw: st.DrawFn) -> Identity:
    if draw(st.booleans()) and draw(st.booleans()):
        return ANONYMOUS
    values: st.SearchStrategy[Any] = st.sampled_from(
        ["a", "b c", ["a", "x"], True, 3, {"0": "a"}, ["b2"], None]
    )
    claims: Mapping[str, Any] = draw(
        st.dictionaries(st.sampled_from(["team", "scope", "deep"]), values)
    )
    return Identity(
        draw(st.sampled_from(_CLIENTS)),
        groups=draw(st.frozensets(st.sampled_from(_GROUPS))),
        tier=draw(st.sampled_from(["", "gold"])),
        labels=draw(st.dictionaries(st.just("team"), st.sampled_from(["a", "b1", "c"]))),
        claims=claims,
    )


_FACTS = st.builds(
    Facts,
    operation=st.sampled_from(OPERATIONS),
    model=st.none() | st.sampled_from(_MODELS),
    version=st.sampled_from(["", "1", "22"]),
    protocol=st.sampled_from(_PROTOCOLS),
    listener=st.sampled_from(_LISTENERS),
)
_SIZES = st.builds(Size, st.integers(0, 9), st.integers(0, 9))


@settings(max_examples=100)
@given(st.lists(_rules(), max_size=8), _identities(), st.lists(st.tuples(_FACTS, _SIZES)))
def test_decisions_equal_those_of_a_naive_reading(
    rules: list[AccessRule], identity: Identity, calls: list[tuple[Facts, Size]]
) -> None:
    """A call is allowed if some rule allows it and none denies it, whatever was asked before."""
    permissions = Permissions(rules)
    for facts, size in calls:
        decided = permissions.decide(identity, facts, lambda size=size: size)  # type: ignore[misc]
        assert decision(rules, identity, facts, size) == decided


@given(st.lists(_rules(), max_size=8), _identities(), _FACTS)
def test_listings_equal_those_of_a_naive_reading(
    rules: list[AccessRule], identity: Identity, facts: Facts
) -> None:
    """A listing is allowed if a rule allows some model, and none denies it for every model."""
    expected = may_list(rules, identity, facts)
    assert expected == Permissions(rules).may_list(identity, facts).is_allowed
