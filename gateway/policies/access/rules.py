"""Permissions: which calls each client may make, by the rules of `security.rules`.

This module is pure: it decides on an `Identity` and the facts of a decoded call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.identity import ANONYMOUS, Identity
from gateway.ir.limits import names_in
from gateway.policies.access.operations import expanded
from gateway.settings.patterns import Matches, globs

_MAX_DECISIONS: Final = 8192
_MAX_CLIENTS: Final = 1024
_SCOPE: Final = "scope"
_ANY_NAMED: Final = ("any client but anonymous",)


class Size(NamedTuple):
    """The size of all inputs of an inference."""

    elements: int = 0
    size_bytes: int = 0


class Facts(Struct, frozen=True):
    """What rules know about a call.

    Attributes:
        operation: One of `operations.OPERATIONS`.
        model: Its name; None for a call without a model.
        version: "" for none.
        protocol: Codec name of the caller ("oip.http").
        listener: Name of the listener.
    """

    operation: str
    model: str | None = None
    version: str = ""
    protocol: str = ""
    listener: str = ""


class AccessDecision(Struct, frozen=True):
    """Whether a call is allowed, and the first rule that decides; None if no rule does."""

    is_allowed: bool
    rule: str | None = None


ALLOWED: Final = AccessDecision(True)
_NO_RULE: Final = AccessDecision(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRule:
    """One rule. All conditions must hold; None, and an empty mapping, are no condition.

    Attributes:
        name: For the log and `gateway explain`.
        denies: Whether it denies instead of allowing.
        clients: Patterns; None for any client but `anonymous`, or for all with `has_anonymous`.
        has_anonymous: Whether `anonymous` matches without being named.
        max_elements: Elements of all inputs.
        max_bytes: Bytes of all inputs.
    """

    name: str
    operations: tuple[str, ...]
    denies: bool = False
    clients: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    tiers: tuple[str, ...] | None = None
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    models: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None
    protocols: tuple[str, ...] | None = None
    listeners: tuple[str, ...] | None = None
    max_elements: int | None = None
    max_bytes: int | None = None
    has_anonymous: bool = False


def claim_texts(claims: Mapping[str, Any], name: str) -> Sequence[str]:
    """Return the values of a claim: of a list its elements, of `scope` its words; none is blank.

    Args:
        claims: The claims of a token.
        name: Of the claim; a JSON pointer if it begins with "/".
    """
    value = claim_of(claims, name)
    if name == _SCOPE and isinstance(value, str):
        return names_in(value.split())
    values = value if isinstance(value, list | tuple) else (value,)
    return names_in(_text(each) for each in values if isinstance(each, str | int | float))


def _text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def claim_of(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim, or what a JSON pointer leads to; None without it. Source: RFC 6901."""
    if not name.startswith("/"):
        return claims.get(name)
    document: Any = claims
    for part in name.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, Mapping):
            document = document.get(key)
        elif isinstance(document, list | tuple) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


class CompiledRule:
    """A rule with its patterns compiled."""

    __slots__ = (
        "_claims",
        "_clients",
        "_groups",
        "_labels",
        "_listeners",
        "_models",
        "_protocols",
        "_tiers",
        "_versions",
        "has_claims",
        "is_about_models",
        "limit_bytes",
        "limit_elements",
        "names_anonymous",
        "operations",
        "rule",
        "verdict",
    )

    def __init__(self, rule: AccessRule) -> None:
        self.rule = rule
        self.operations = expanded(rule.operations)
        self.verdict = AccessDecision(not rule.denies, rule.name)
        self.limit_elements = rule.max_elements
        self.limit_bytes = rule.max_bytes
        self.is_about_models = rule.models is not None or rule.versions is not None
        self.has_claims = bool(rule.claims)
        self.names_anonymous = rule.has_anonymous or ANONYMOUS.name in (rule.clients or ())
        self._clients = _optional(rule.clients)
        self._groups = _optional(rule.groups)
        self._tiers = _optional(rule.tiers)
        self._labels = [(name, globs(patterns)) for name, patterns in rule.labels.items()]
        self._claims = [(name, globs(patterns)) for name, patterns in rule.claims.items()]
        self._models = _optional(rule.models)
        self._versions = _optional(rule.versions)
        self._protocols = _optional(rule.protocols)
        self._listeners = _optional(rule.listeners)

    def has_client(self, identity: Identity) -> bool:
        """Return whether the conditions on the client hold, except those on claims."""
        if not self._has_name(identity.name):
            return False
        if self._groups is not None and not any(map(self._groups, identity.groups)):
            return False
        if self._tiers is not None and not (identity.tier and self._tiers(identity.tier)):
            return False
        labels = identity.labels
        return all(name in labels and match(labels[name]) for name, match in self._labels)

    def has_claims_of(self, identity: Identity) -> bool:
        """Return whether the conditions on claims hold."""
        claims = identity.claims
        return all(any(map(match, claim_texts(claims, name))) for name, match in self._claims)

    def has_call(self, facts: Facts, *, any_model: bool = False) -> bool:
        """Return whether the conditions on the call hold, except for its size.

        Args:
            facts: What rules know about the call.
            any_model: Ignore the conditions on models and versions.
        """
        is_place = (
            facts.operation in self.operations
            and (self._protocols is None or self._protocols(facts.protocol))
            and (self._listeners is None or self._listeners(facts.listener))
        )
        if not is_place or any_model or not self.is_about_models:
            return is_place
        return (
            facts.model is not None
            and (self._models is None or self._models(facts.model))
            and (self._versions is None or self._versions(facts.version))
        )

    def holds(self, size: Size) -> bool:
        """Return whether inputs of this size are within the limits of the rule."""
        most, most_bytes = self.limit_elements, self.limit_bytes
        return (most is None or size.elements <= most) and (
            most_bytes is None or size.size_bytes <= most_bytes
        )

    def failures(self, identity: Identity, facts: Facts, size: Size) -> list[str]:
        """Return the conditions that do not hold, in the words of the file."""
        rule, labels = self.rule, identity.labels
        conditions: list[tuple[str, Matches | None, Collection[str], Sequence[str] | None]] = [
            ("client", self._has_name, (identity.name,), rule.clients or _ANY_NAMED),
            ("group", self._groups, identity.groups, rule.groups),
            ("tier", self._tiers, [identity.tier] if identity.tier else [], rule.tiers),
            *[
                (f"label {name!r}", match, [labels[name]] if name in labels else [], expected)
                for (name, match), expected in zip(self._labels, rule.labels.values(), strict=True)
            ],
            *[
                (f"claim {name!r}", match, claim_texts(identity.claims, name), expected)
                for (name, match), expected in zip(self._claims, rule.claims.values(), strict=True)
            ],
            ("operation", self.operations.__contains__, (facts.operation,), rule.operations),
            ("protocol", self._protocols, (facts.protocol,), rule.protocols),
            ("listener", self._listeners, (facts.listener,), rule.listeners),
            ("model", self._models, (facts.model or "",), rule.models),
            ("version", self._versions, (facts.version,), rule.versions),
        ]
        found = [
            f"{what} {', '.join(map(repr, sorted(values))) or 'none'} does not match "
            f"{', '.join(map(repr, patterns or ()))}"
            for what, match, values, patterns in conditions
            if match is not None and not any(map(match, values))
        ]
        limits = (
            (size.elements, "max_elements", self.limit_elements),
            (size.size_bytes, "max_bytes", self.limit_bytes),
        )
        return found + [
            f"{amount} exceeds {key} {most}"
            for amount, key, most in limits
            if most is not None and amount > most
        ]

    def _has_name(self, name: str) -> bool:
        if name == ANONYMOUS.name:
            return self.names_anonymous
        return self._clients is None or self._clients(name)

    @property
    def is_sized(self) -> bool:
        """Whether the rule depends on the size of the inputs."""
        return self.limit_elements is not None or self.limit_bytes is not None


def _optional(patterns: tuple[str, ...] | None) -> Matches | None:
    return None if patterns is None else globs(patterns)


class RulesOfClients:
    """Finds the rules whose conditions on the client hold, in the order of the file.

    Clients whose tokens make no difference share an entry; the number of entries is bounded.

    Attributes:
        rules: All of them.
    """

    def __init__(self, rules: Sequence[AccessRule]) -> None:
        self.rules = [CompiledRule(rule) for rule in rules]
        self._has_claims = any(rule.has_claims for rule in self.rules)
        self._found: BoundedDict[Any, list[CompiledRule]] = BoundedDict(_MAX_CLIENTS)

    def of(self, identity: Identity) -> list[CompiledRule]:
        """Return the rules for a client."""
        key = (identity.name, identity.groups, identity.tier, *identity.labels.items())
        rules = self._found.get(key)
        if rules is None:
            rules = [rule for rule in self.rules if rule.has_client(identity)]
            self._found[key] = rules
        if not self._has_claims:
            return rules
        return [rule for rule in rules if not rule.has_claims or rule.has_claims_of(identity)]


class Permissions:
    """Decides by rules whether a client may make a call.

    A call is allowed if a rule allows it and none denies it. Decisions are cached by their facts.

    Args:
        rules: In the order of the file.
        otherwise: What happens to calls for which no rule decides.
    """

    def __init__(self, rules: Sequence[AccessRule], otherwise: AccessDecision = _NO_RULE) -> None:
        self._otherwise = otherwise
        self._clients = RulesOfClients(rules)
        # A decision, or the rules that may allow the call, which depend on its size.
        self._cached: BoundedDict[
            tuple[Identity, Facts], AccessDecision | tuple[CompiledRule, ...]
        ] = BoundedDict(_MAX_DECISIONS)

    def decide(
        self, identity: Identity, facts: Facts, measure: Callable[[], Size] = Size
    ) -> AccessDecision:
        """Return whether *identity* may make a call.

        Args:
            identity: The client.
            facts: What rules know about the call.
            measure: Returns the size of its inputs. It is called only if a rule needs it.
        """
        key = identity, facts
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = self._find(identity, facts)
        if isinstance(found, AccessDecision):
            return found
        size = measure()
        return next((rule.verdict for rule in found if rule.holds(size)), self._otherwise)

    def excess(self, identity: Identity, facts: Facts, size: Size) -> tuple[str, str] | None:
        """Return what is too much of a call that smaller inputs would make allowed.

        Returns:
            The number and what is counted, and the key of the limit; None where the size is not
            the reason.
        """
        rules = [rule for rule in self._clients.of(identity) if rule.has_call(facts)]
        if not rules or any(rule.rule.denies or rule.holds(size) for rule in rules):
            return None
        most = [rule.limit_elements for rule in rules if rule.limit_elements is not None]
        if most and size.elements > max(most):
            return f"{size.elements} elements", "max_elements"
        return f"{size.size_bytes} bytes", "max_bytes"

    def nearest(self, identity: Identity, facts: Facts, size: Size) -> tuple[str, str] | None:
        """Return the rule of which the fewest conditions fail, and these; None without one."""
        failing = [
            (rule.rule.name, rule.failures(identity, facts, size))
            for rule in self._clients.rules
            if not rule.rule.denies
        ]
        found = min(failing, key=lambda each: len(each[1]), default=None)
        return None if found is None else (found[0], "; ".join(found[1]))

    def may_list(self, identity: Identity, facts: Facts) -> AccessDecision:
        """Return whether *identity* may list models.

        It may if a rule would allow the call about some model, and no rule denies it for all.
        """
        rules = self._clients.of(identity)
        for rule in rules:
            if rule.rule.denies and not rule.is_about_models and rule.has_call(facts):
                return rule.verdict
        for rule in rules:
            if not rule.rule.denies and rule.has_call(facts, any_model=True):
                return rule.verdict
        return self._otherwise

    def _find(self, identity: Identity, facts: Facts) -> AccessDecision | tuple[CompiledRule, ...]:
        rules = [rule for rule in self._clients.of(identity) if rule.has_call(facts)]
        for rule in rules:
            if rule.rule.denies:
                return rule.verdict
        allowing: list[CompiledRule] = []
        for rule in rules:
            allowing.append(rule)
            if not rule.is_sized:
                break
        if not allowing:
            return self._otherwise
        return allowing[0].verdict if not allowing[0].is_sized else tuple(allowing)
