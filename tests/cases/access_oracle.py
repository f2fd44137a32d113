"""A naive reading of `security.rules`, which tests compare with the decisions of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from gateway.ir.identity import Identity
from gateway.policies.access.rules import AccessDecision, AccessRule, Facts, Size


def decision(
    rules: Sequence[AccessRule], identity: Identity, facts: Facts, size: Size
) -> AccessDecision:
    """Return whether a call is allowed, and the first rule that decides."""
    holding = [rule for rule in rules if _holds(rule, identity, facts)]
    denying = [rule.name for rule in holding if rule.denies]
    allowing = [rule.name for rule in holding if not rule.denies and _is_within(rule, size)]
    is_allowed = bool(allowing) and not denying
    return AccessDecision(is_allowed, next(iter([*denying, *allowing]), None))


def may_list(rules: Sequence[AccessRule], identity: Identity, facts: Facts) -> bool:
    """Return whether a listing is allowed: some model is, and no rule denies it for every one."""
    allowed = any(not one.denies and _holds(one, identity, facts, True) for one in rules)
    denied = any(
        one.denies and one.models is None and one.versions is None and _holds(one, identity, facts)
        for one in rules
    )
    return allowed and not denied


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
