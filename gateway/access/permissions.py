"""The permissions of a configuration: its rules, their checks, and what `gateway explain` says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.api.access import ExampleCall, ExplainedAccess
from gateway.config.models import Config
from gateway.config.permissions import RuleConfig
from gateway.config.yaml_tree import Finding
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.policies.access.authorise import ListenerAccess, OnDenied, OnRehearsed
from gateway.policies.access.operations import HEALTH, INFERENCE, LISTED
from gateway.policies.access.rules import (
    ALLOWED,
    AccessDecision,
    AccessRule,
    Facts,
    Permissions,
    Size,
)


def rule_names(config: Config) -> list[str]:
    """Return the names of the rules, in the order of the file."""
    rules = config.security.rules
    return [rule.name or f"rule-{number}" for number, rule in enumerate(rules, start=1)]


def access_rules(config: Config, *, rehearsed: bool = False) -> list[AccessRule]:
    """Return the rules of *config*; none if clients may do all that listeners switch on.

    Args:
        config: The configuration.
        rehearsed: Return those with `mode: shadow`, too.
    """
    named = zip(rule_names(config), config.security.rules, strict=True)
    return [_rule(name, rule) for name, rule in named if rehearsed or rule.mode == "enforce"]


def permissions_of(config: Config) -> tuple[Permissions, Permissions | None]:
    """Return what decides about calls, and what would if all rules were enforced; None if they are.

    Args:
        config: A configuration with rules.
    """
    enforced, rules = access_rules(config), access_rules(config, rehearsed=True)
    rehearsal = Permissions(rules) if len(enforced) < len(rules) else None
    return Permissions(enforced) if enforced else Permissions((), ALLOWED), rehearsal


def _rule(name: str, rule: RuleConfig) -> AccessRule:
    return AccessRule(
        name=name,
        operations=rule.operations,
        denies=rule.effect == "deny",
        max_elements=rule.max_elements,
        max_bytes=rule.max_bytes,
        **rule.conditions(),
    )


def listener_access(
    config: Config, on_denied: OnDenied, on_rehearsed: OnRehearsed
) -> dict[str, ListenerAccess]:
    """Return what clients may do at each listener; empty without rules.

    Args:
        config: The configuration.
        on_denied: Counts the calls that are denied.
        on_rehearsed: Counts the calls that would be denied.
    """
    permissions, rehearsal = permissions_of(config)
    return {
        listener.name: ListenerAccess(
            permissions,
            listener.name,
            default_model=config.default_model_of(listener),
            public_health=config.security.public_health,
            on_denied=on_denied,
            rehearsal=rehearsal,
            on_rehearsed=on_rehearsed,
        )
        for listener in (config.listeners if config.security.rules else ())
    }


def names_clients(config: Config) -> bool:
    """Return whether credentials can name different clients."""
    security = config.security
    has_credentials = security.keys or security.jwt or security.certificates or security.proxies
    return bool(has_credentials or config.clients)


def check_rules(config: Config) -> Iterator[Finding]:
    """Yield the rules whose name another rule has."""
    names = rule_names(config)
    for index, name in enumerate(names):
        if name in names[:index]:
            path = ("security", "rules", index, "name")
            yield path, f"duplicate name {name!r}: each of the rules needs a different name"


def explain_access(config: Config, example: ExampleCall) -> ExplainedAccess:
    """Decide about a call by the rules of *config*.

    Raises:
        LookupError: There is no such listener.
    """
    identity = identity_of(config, example)
    facts = facts_of(config, example)
    size = Size(example.elements, example.size_bytes)
    decision, rehearsed = _decide(config, identity, facts, size)

    def explained(found: AccessDecision, *, with_rehearsed: bool) -> ExplainedAccess:
        nearest = None
        if not found.is_allowed and found.rule is None:
            rules = access_rules(config, rehearsed=with_rehearsed)
            nearest = Permissions(rules).nearest(identity, facts, size)
        name, failed = nearest or (None, "")
        verdict = "allow" if found.is_allowed else "deny"
        return ExplainedAccess(verdict, found.rule, nearest=name, failed=failed)

    differs = rehearsed != decision
    return replace(
        explained(decision, with_rehearsed=False),
        rehearsed=str(explained(rehearsed, with_rehearsed=True)) if differs else None,
    )


def identity_of(config: Config, example: ExampleCall) -> Identity:
    """Return the client of an example, with what the configuration says about it."""
    if example.client == ANONYMOUS.name:
        return ANONYMOUS
    claims = {name: list(values) for name, values in example.claims.items()}
    found = config.clients.get(example.client)
    if found is None:
        return Identity(example.client, frozenset(example.groups), claims=claims)
    groups = frozenset((*found.groups, *example.groups))
    return Identity(example.client, groups, found.tier or "", found.labels, claims)


def facts_of(config: Config, example: ExampleCall) -> Facts:
    """Return the facts of an example.

    Raises:
        LookupError: There is no such listener.
    """
    listeners = {listener.name: listener for listener in config.listeners}
    listener = listeners.get(example.listener or config.listeners[0].name)
    if listener is None:
        raise LookupError(
            f"unknown listener {example.listener!r}; expected one of {', '.join(listeners)}"
        )
    model: str | None = example.model or None
    if example.operation == INFERENCE and model is None:
        model = config.default_model_of(listener) or None
    return Facts(example.operation, model, example.version, example.protocol, listener.name)


def _decide(config: Config, identity: Identity, facts: Facts, size: Size) -> list[AccessDecision]:
    """Return what is decided about a call, and what would be if all rules were enforced."""
    is_public = facts.operation == HEALTH and facts.model is None and config.security.public_health
    if not config.security.rules or is_public:
        return [ALLOWED, ALLOWED]
    enforced, rehearsal = permissions_of(config)
    lists = facts.model is None and facts.operation in LISTED
    return [
        each.may_list(identity, facts) if lists else each.decide(identity, facts, lambda: size)
        for each in (enforced, rehearsal or enforced)
    ]
