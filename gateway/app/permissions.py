"""The permissions of a configuration: its rules, their checks, and what `gateway explain` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.app.quotas import quota_rules
from gateway.config.models import Config
from gateway.config.permissions import RuleConfig
from gateway.config.yaml_tree import Finding
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.policies.access.authorise import ListenerAccess, OnDenied
from gateway.policies.access.operations import HEALTH, INFERENCE, LISTED
from gateway.policies.access.quotas.layer import QuotasOfCalls
from gateway.policies.access.rules import AccessDecision, AccessRule, Facts, Permissions, Size


def rule_names(config: Config) -> list[str]:
    """Return the names of the rules, in the order of the file."""
    rules = config.security.rules
    return [rule.name or f"rule-{number}" for number, rule in enumerate(rules, start=1)]


def access_rules(config: Config) -> list[AccessRule]:
    """Return the rules of *config*; none if clients may do all that listeners switch on."""
    named = zip(rule_names(config), config.security.rules, strict=True)
    return [_rule(name, rule) for name, rule in named]


def _rule(name: str, rule: RuleConfig) -> AccessRule:
    return AccessRule(
        name=name,
        operations=rule.operations,
        denies=rule.effect == "deny",
        max_elements=rule.max_elements,
        max_bytes=rule.max_bytes,
        **rule.conditions(),
    )


def listener_access(config: Config, on_denied: OnDenied) -> dict[str, ListenerAccess]:
    """Return what clients may do at each listener; empty without rules.

    Args:
        config: The configuration.
        on_denied: Counts the calls that are denied.
    """
    rules = access_rules(config)
    permissions = Permissions(rules)
    return {
        listener.name: ListenerAccess(
            permissions,
            listener.name,
            default_model=config.default_model_of(listener),
            public_health=config.security.public_health,
            on_denied=on_denied,
        )
        for listener in (config.listeners if rules else ())
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleCall:
    """A call that `gateway explain` asks about.

    Attributes:
        client: Its name; "anonymous" for none.
        groups: Besides those of the configuration.
        claims: The claims of its token.
        operation: One of `operations.OPERATIONS`.
        model: "" for none.
        listener: "" for the first one.
        route: The route that it would take; "" for none.
    """

    client: str
    operation: str = INFERENCE
    model: str = ""
    version: str = ""
    protocol: str = ""
    listener: str = ""
    route: str = ""
    groups: Sequence[str] = ()
    claims: Mapping[str, Sequence[str]]
    size: Size


@dataclass(frozen=True, slots=True)
class ExplainedAccess:
    """Whether a client may make a call.

    Attributes:
        decision: "allow" or "deny".
        rule: The first rule that decides; None if no rule does.
        quotas: Names of the quotas that count the call.
    """

    decision: str
    rule: str | None
    quotas: tuple[str, ...] = ()

    @property
    def is_allowed(self) -> bool:
        """Whether the client may make the call."""
        return self.decision == "allow"

    def __str__(self) -> str:
        if self.rule is not None:
            return f"{self.decision}, rule {self.rule}"
        return f"{self.decision}, no rule {'is needed' if self.is_allowed else 'allows it'}"


def explain_access(config: Config, example: ExampleCall) -> ExplainedAccess:
    """Decide about a call by the rules of *config*.

    Raises:
        LookupError: There is no such listener.
    """
    identity = identity_of(config, example)
    facts = facts_of(config, example)
    decision = _decide(config, identity, facts, example)
    quotas = QuotasOfCalls(quota_rules(config)).matching(identity, facts, example.route)
    return ExplainedAccess(
        "allow" if decision.is_allowed else "deny",
        decision.rule,
        tuple(part.quota.name for part in quotas),
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


def _decide(
    config: Config, identity: Identity, facts: Facts, example: ExampleCall
) -> AccessDecision:
    rules = access_rules(config)
    is_public = facts.operation == HEALTH and facts.model is None and config.security.public_health
    if not rules or is_public:
        return AccessDecision(True)
    permissions = Permissions(rules)
    if facts.model is None and facts.operation in LISTED:
        return permissions.may_list(identity, facts)
    return permissions.decide(identity, facts, lambda: example.size)
