"""Matching of calls against route rules; the first match wins.

Rules are compiled at start. Model names come from clients, so the cache of results is bounded.
`router` calls the matching route.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.ir.calls import Call
from gateway.ir.context import Context, ModelRef
from gateway.ir.identity import Identity
from gateway.settings.patterns import globs, is_pattern

MAX_CACHED = 4096

_NO_MODEL = ModelRef("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Conditions on a call, all of which must match; globs support `*`, `?` and `[...]`.

    Attributes:
        model: Glob for the model's name.
        versions: Exact versions; "" matches a call without a version; empty matches all calls.
        protocols: Globs for the caller's codec ("oip.*"); empty matches all.
        headers: Glob for the value by header or gRPC metadata name. If a name has several values,
            one must match.
        clients: Globs for the client's name; empty matches all.
        groups: Globs of which one must match a group of the client; empty matches all.
        tiers: Globs for the client's tier; empty matches all.
    """

    model: str = "*"
    versions: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    clients: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether the model, the version and the protocol decide alone."""
        return not (self.headers or self.clients or self.groups or self.tiers)


@dataclass(frozen=True, slots=True)
class RouteVerdict:
    """Whether one rule matches a call, and why.

    Attributes:
        index: Position of the rule.
        is_match: Every condition matches.
        reasons: Each condition that does not match; if all match, one text that lists them.
    """

    index: int
    is_match: bool
    reasons: tuple[str, ...]


class Matcher:
    """Finds the first of *rules* that matches a call.

    Attributes:
        is_static: Models, versions and protocols decide alone: no headers, no clients.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = [_CompiledRule(rule) for rule in rules]
        # The positions of rules for one model, by its name, and of those for many.
        self._exact: dict[str, list[int]] = {}
        self._patterns: list[int] = []
        for index, rule in enumerate(rules):
            positions = self._patterns
            if not is_pattern(rule.model):
                positions = self._exact.setdefault(rule.model, [])
            positions.append(index)
        self._candidates: dict[tuple[str, str, str], tuple[int, ...]] = {}
        self.is_static = all(rule.is_static for rule in rules)

    def find(self, call: Call[Any], /) -> int | None:
        """Return the position of the first rule that matches; None if no rule matches."""
        model = call.model or _NO_MODEL
        key = (model.name, model.version, call.context.protocol)
        candidates = self._candidates.get(key)
        if candidates is None:
            candidates = self._find_candidates(key)
        for index in candidates:
            rule = self._rules[index]
            if rule.is_static or rule.holds_for(call.context):
                return index
        return None

    def matches_model(self, name: str, /) -> bool:
        """Return whether some rule's model glob matches *name*, ignoring its other conditions."""
        return name in self._exact or any(
            self._rules[index].has_model(name) for index in self._patterns
        )

    def explain(self, call: Call[Any], /) -> list[RouteVerdict]:
        """Return the verdict of each rule on *call*, in order; the router uses the first match."""
        return [rule.explain(index, call) for index, rule in enumerate(self._rules)]

    def _find_candidates(self, key: tuple[str, str, str]) -> tuple[int, ...]:
        """Find and cache the rules that match by names alone, up to one that needs no more."""
        found: list[int] = []
        for index in sorted((*self._exact.get(key[0], ()), *self._patterns)):
            rule = self._rules[index]
            if rule.matches(*key):
                found.append(index)
                if rule.is_static:
                    break
        if len(self._candidates) >= MAX_CACHED:
            self._candidates.clear()
        candidates = self._candidates[key] = tuple(found)
        return candidates


def matched_name(matcher: Matcher, names: Sequence[str], call: Call[Any]) -> str:
    """Return the name at the position of the rule that matches *call*; "" for none."""
    index = matcher.find(call)
    return "" if index is None else names[index]


class _ClientCondition:
    """What a rule says of one fact of a client.

    Args:
        name: The name of the fact, for people.
        values: Returns the values of a client, of which one must match.
        patterns: Globs of which one must match.
    """

    def __init__(
        self, name: str, values: Callable[[Identity], Iterable[str]], patterns: Sequence[str]
    ) -> None:
        self.name = name
        self.patterns = patterns
        self._values = values
        self._matches = globs(patterns)

    def holds_for(self, identity: Identity) -> bool:
        return any(map(self._matches, self._values(identity)))

    def reason(self, identity: Identity) -> str:
        """Return why it does not hold."""
        found = ", ".join(map(repr, sorted(self._values(identity)))) or "none"
        return f"{self.name} {found} does not match {', '.join(map(repr, self.patterns))}"


def _client_conditions(rule: Rule) -> list[_ClientCondition]:
    conditions = (
        _ClientCondition("client", lambda each: (each.name,), rule.clients),
        _ClientCondition("group", lambda each: each.groups, rule.groups),
        _ClientCondition("tier", lambda each: (each.tier,) if each.tier else (), rule.tiers),
    )
    return [each for each in conditions if each.patterns]


class _CompiledRule:
    """A rule with its globs compiled."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.has_model = globs((rule.model,))
        self._has_protocol = globs(rule.protocols or ("*",))
        self.headers = {name.lower(): globs((value,)) for name, value in rule.headers.items()}
        self._client_conditions = _client_conditions(rule)
        self.is_static = rule.is_static

    def matches(self, model: str, version: str, protocol: str) -> bool:
        return (
            self.has_model(model)
            and (not self._rule.versions or version in self._rule.versions)
            and self._has_protocol(protocol)
        )

    def holds_for(self, context: Context) -> bool:
        """Return whether the headers and the client of a call match."""
        identity = context.client.identity
        return self._has_headers(context.metadata) and all(
            each.holds_for(identity) for each in self._client_conditions
        )

    def _has_headers(self, metadata: Sequence[tuple[str, str]]) -> bool:
        return all(
            any(name == found and match(value) for found, value in metadata)
            for name, match in self.headers.items()
        )

    def explain(self, index: int, call: Call[Any]) -> RouteVerdict:
        model = call.model or _NO_MODEL
        failed = [
            *self._model_reasons(model),
            *self._protocol_reasons(call.context.protocol),
            *self._header_reasons(call.context.metadata),
            *self._client_reasons(call.context.client.identity),
        ]
        if failed:
            return RouteVerdict(index, False, tuple(failed))
        return RouteVerdict(index, True, (self._conditions(),))

    def _model_reasons(self, model: ModelRef) -> list[str]:
        reasons = []
        if not self.has_model(model.name):
            reasons.append(f"model {model.name!r} does not match {self._rule.model!r}")
        if self._rule.versions and model.version not in self._rule.versions:
            found = f"version {model.version!r}" if model.version else "no version"
            expected = ", ".join(map(repr, self._rule.versions))
            reasons.append(f"{found} does not match {expected}")
        return reasons

    def _protocol_reasons(self, protocol: str) -> list[str]:
        if self._has_protocol(protocol):
            return []
        expected = ", ".join(map(repr, self._rule.protocols))
        return [f"protocol {protocol!r} does not match {expected}"]

    def _header_reasons(self, metadata: Sequence[tuple[str, str]]) -> list[str]:
        reasons = []
        for name, pattern in self._rule.headers.items():
            values = [value for found, value in metadata if found == name.lower()]
            if not values:
                reasons.append(f"header {name!r} is missing; expected {pattern!r}")
            elif not any(self.headers[name.lower()](value) for value in values):
                found = ", ".join(map(repr, values))
                reasons.append(f"header {name!r} is {found}; expected {pattern!r}")
        return reasons

    def _client_reasons(self, identity: Identity) -> list[str]:
        return [
            each.reason(identity)
            for each in self._client_conditions
            if not each.holds_for(identity)
        ]

    def _conditions(self) -> str:
        rule = self._rule
        parts = [f"model {rule.model!r}"]
        if rule.versions:
            parts.append(f"version {' or '.join(map(repr, rule.versions))}")
        if rule.protocols:
            parts.append(f"protocol {' or '.join(map(repr, rule.protocols))}")
        parts.extend(f"header {name!r} {pattern!r}" for name, pattern in rule.headers.items())
        parts.extend(
            f"{each.name} {' or '.join(map(repr, each.patterns))}"
            for each in self._client_conditions
        )
        return f"matches {', '.join(parts)}"
