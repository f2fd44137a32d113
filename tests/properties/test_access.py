"""The decisions of permissions, against a second implementation that only reads the rules."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.ir.identity import ANONYMOUS, Identity
from gateway.policies.access.operations import OPERATIONS
from gateway.policies.access.rules import AccessRule, Facts, Permissions, Size

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


def _fits(patterns: tuple[str, ...] | None, *texts: str) -> bool:
    if patterns is None:
        return True
    return any(fnmatchcase(text, pattern) for text in texts for pattern in patterns)


def _claim(identity: Identity, name: str) -> list[str]:
    if name == "/deep/0":
        deep = identity.claims.get("deep")
        if isinstance(deep, dict):
            deep = deep.get("0")
        elif isinstance(deep, list):
            deep = deep[0]
        else:
            deep = None
        value = deep
    else:
        value = identity.claims.get(name)
    if name == "scope" and isinstance(value, str):
        return value.split()
    found = []
    for each in value if isinstance(value, list) else [value]:
        if each is True:
            found.append("true")
        elif isinstance(each, str | int):
            found.append(str(each))
    return found


def _holds(rule: AccessRule, identity: Identity, facts: Facts, any_model: bool = False) -> bool:
    names = {*rule.operations, *(("index",) if "model-repository" in rule.operations else ())}
    anonymous = identity.name == "anonymous"
    conditions = [
        rule.clients is not None and "anonymous" in rule.clients
        if anonymous
        else _fits(rule.clients, identity.name),
        facts.operation in names or "all" in names,
        _fits(rule.groups, *identity.groups),
        _fits(rule.tiers, *filter(None, [identity.tier])),
        _fits(rule.protocols, facts.protocol),
        _fits(rule.listeners, facts.listener),
        *(
            name in identity.labels and _fits(patterns, identity.labels[name])
            for name, patterns in rule.labels.items()
        ),
        *(_fits(patterns, *_claim(identity, name)) for name, patterns in rule.claims.items()),
    ]
    if not any_model:
        for patterns, found in ((rule.models, facts.model), (rule.versions, facts.version)):
            conditions.append(
                patterns is None or (facts.model is not None and _fits(patterns, found or ""))
            )
    return all(conditions)


def _is_within(rule: AccessRule, size: Size) -> bool:
    return (rule.max_elements is None or size.elements <= rule.max_elements) and (
        rule.max_bytes is None or size.size_bytes <= rule.max_bytes
    )


@settings(deadline=None, max_examples=100)
@given(st.lists(_rules(), max_size=8), _identities(), st.lists(st.tuples(_FACTS, _SIZES)))
def test_decisions_equal_those_of_a_naive_reading(
    rules: list[AccessRule], identity: Identity, calls: list[tuple[Facts, Size]]
) -> None:
    """A call is allowed if some rule allows it and none denies it, whatever was asked before."""
    permissions = Permissions(rules)
    for facts, size in calls:
        holding = [rule for rule in rules if _holds(rule, identity, facts)]
        denying = [rule.name for rule in holding if rule.denies]
        allowing = [rule.name for rule in holding if not rule.denies and _is_within(rule, size)]
        decision = permissions.decide(identity, facts, lambda size=size: size)  # type: ignore[misc]
        assert (bool(allowing) and not denying) == decision.is_allowed
        assert next(iter([*denying, *allowing]), None) == decision.rule


@settings(deadline=None, max_examples=50)
@given(st.lists(_rules(), max_size=8), _identities(), _FACTS)
def test_listings_equal_those_of_a_naive_reading(
    rules: list[AccessRule], identity: Identity, facts: Facts
) -> None:
    """A listing is allowed if a rule allows some model, and none denies it for every model."""
    allowed = any(not one.denies and _holds(one, identity, facts, True) for one in rules)
    denied = any(
        one.denies and one.models is None and one.versions is None and _holds(one, identity, facts)
        for one in rules
    )
    assert (allowed and not denied) == Permissions(rules).may_list(identity, facts).is_allowed
