"""Names in rules, quotas and routes that nobody and nothing has: warnings of `gateway validate`.

`NameOf` marks the keys whose values are names that another part of the file defines.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, get_args

from pydantic.fields import FieldInfo

from gateway.app.build.route_rules import ruled_routes
from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.config.permissions import ConditionsConfig
from gateway.config.routes import MatchConfig
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.ir.identity import ANONYMOUS
from gateway.registry import extensions, protocol, protocol_names
from gateway.settings.fields import NameKind, NameOf
from gateway.settings.model import Model
from gateway.settings.patterns import globs

_STREAM: Final = "stream"
_MAX_SHOWN: Final = 5
_TEXTS: Final[Mapping[NameKind, str]] = {
    "client": "no client is called {!r}",
    "group": "no client is in a group {!r}",
    "tier": "no client has the tier {!r}",
    "label": "no client has the label {!r}",
    "claim": "no client has a token with the claim {!r}, because 'security.jwt' has no issuer",
    "issuer": "no issuer is called {!r}",
    "listener": "no listener is called {!r}",
    "upstream": "no upstream is called {!r}",
    "route": "no route is called {!r}",
    "model": "no route serves a model {!r}",
    "protocol": "no protocol matches {!r}",
}


class _Names(NamedTuple):
    """The names of one kind.

    Attributes:
        known: Those that the configuration has.
        beginnings: What further names begin with; "" where there may be any other name.
    """

    known: frozenset[str]
    beginnings: tuple[str, ...] = ()

    def has(self, pattern: str) -> bool:
        """Return whether a name may match *pattern*."""
        literal = _literal_part(pattern)
        is_pattern = literal != pattern
        return (
            not pattern.strip("*")
            or pattern in self.known
            or any(fnmatchcase(name, pattern) for name in self.known)
            or any(
                literal.startswith(each) or (is_pattern and each.startswith(literal))
                for each in self.beginnings
            )
        )


def _literal_part(pattern: str) -> str:
    """Return what a pattern begins with before its first wildcard."""
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


class Reference(NamedTuple):
    """A name, or a pattern of names, and what has such a name.

    Attributes:
        path: Its key.
        kind: What has such a name.
        name: The name or pattern.
        values: Of a mapping, the patterns of its value.
    """

    path: KeyPath
    kind: NameKind
    name: str
    values: tuple[str, ...] = ()


def references(section: Model, path: KeyPath = ()) -> Iterator[Reference]:
    """Yield the names in a section of the file, in the order of its keys."""
    for key, field in type(section).model_fields.items():
        if key not in section.model_fields_set:
            continue
        value, at, marker = getattr(section, key), (*path, key), marker_of(field)
        if marker is None:
            yield from _below(value, at)
        elif isinstance(value, Mapping):
            for name, values in value.items():
                yield Reference((*at, name), marker.kind, name, values)
        else:
            # One value may stand for a list of it.
            for index, name in enumerate((value,) if isinstance(value, str) else value or ()):
                if name.startswith(marker.prefix):
                    found = name.removeprefix(marker.prefix)
                    yield Reference((*at, index), marker.kind, found)


def marker_of(field: FieldInfo) -> NameOf | None:
    """Return what the names of a key refer to; None if they are no names of others."""
    found = [*field.metadata, *_metadata(field.annotation)]
    return next((each for each in found if isinstance(each, NameOf)), None)


def _metadata(annotation: Any) -> Iterator[Any]:
    yield from getattr(annotation, "__metadata__", ())
    for inner in get_args(annotation):
        yield from _metadata(inner)


def _below(value: Any, path: KeyPath) -> Iterator[Reference]:
    """Yield the names in the sections that a key has."""
    if isinstance(value, Model):
        yield from references(value, path)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _below(each, (*path, name))
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _below(each, (*path, index))


def unknown_names(loaded: LoadedConfig) -> Iterator[Finding]:
    """Yield the names that nobody and nothing has, each with the one that was probably meant."""
    names = _names(loaded)
    labels = _label_values(loaded.config)
    for found in references(loaded.config):
        kind = names[found.kind]
        if not kind.has(found.name):
            name, slash, _ = found.name.rpartition("/")
            if slash and "default_model" in found.path and kind.has(name):
                continue  # `NAME/VERSION`
            yield found.path, _TEXTS[found.kind].format(found.name) + _hint(found.name, kind.known)
        elif found.kind == "label" and not kind.beginnings:
            yield from _unknown_values(found, labels.get(found.name, frozenset()))
    yield from _conditions_of_nobody(loaded.config)


def _unknown_values(found: Reference, values: frozenset[str]) -> Iterator[Finding]:
    for pattern in found.values:
        if not _Names(values).has(pattern):
            text = f"no client has the label {found.name!r} with the value {pattern!r}"
            yield found.path, text + _hint(pattern, values)


def _hint(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, known, 1)
    if near:
        return f"; did you mean {near[0]!r}?"
    shown = sorted(known)
    more = ", ..." if len(shown) > _MAX_SHOWN else ""
    return f"; there is {', '.join(shown[:_MAX_SHOWN])}{more}" if shown else ""


def _names(loaded: LoadedConfig) -> Mapping[NameKind, _Names]:
    config, security = loaded.config, loaded.config.security
    clients = config.clients.values()
    # An authenticator of a package may say anything of a client.
    anything = ("",) if security.authenticator is not None else ()
    has_groups = any(each.groups for each in security.jwt) or any(
        each.groups_header for each in security.proxies
    )
    names = [*config.clients, ANONYMOUS.name]
    for extension in extensions().values():
        names += extension.client_names(loaded)
    return {
        "client": _Names(frozenset(names), (*_unlisted(config), *anything)),
        "group": _Names(
            frozenset(group for each in clients for group in each.groups),
            ("",) if has_groups else anything,
        ),
        "tier": _Names(frozenset(each.tier for each in clients if each.tier), anything),
        "label": _Names(frozenset(label for each in clients for label in each.labels), anything),
        "claim": _Names(frozenset(), ("",) if security.jwt else anything),
        "issuer": _Names(frozenset(each.name for each in security.jwt)),
        "listener": _Names(frozenset(each.name for each in config.listeners)),
        "upstream": _Names(frozenset(config.upstreams)),
        "route": _Names(frozenset(each.name for each in ruled_routes(config))),
        "model": _models(config),
        "protocol": _Names(
            frozenset(
                f"{name}.{carrier}"
                for name in protocol_names()
                for carrier in (*protocol(name).carriers, _STREAM)
            )
        ),
    }


def _unlisted(config: Config) -> Iterator[str]:
    """Yield what the names of clients that are not listed begin with."""
    security = config.security
    yield from (f"{each.name}:" for each in security.jwt if each.unlisted == "accept")
    yield from (f"{each.name}:" for each in security.proxies if each.unlisted == "accept")
    if security.certificates is not None and security.certificates.unlisted == "accept":
        yield "cert:"


def _label_values(config: Config) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for client in config.clients.values():
        for label, value in client.labels.items():
            found.setdefault(label, set()).add(value)
    return {label: frozenset(values) for label, values in found.items()}


def _models(config: Config) -> _Names:
    """Return the models that clients may name: any, where a route takes those of an upstream."""
    known, beginnings = set[str](), list[str]()
    for route in ruled_routes(config):
        for rule in route.rules:
            literal = _literal_part(rule.model)
            if literal == rule.model:
                known.add(literal)
            else:
                beginnings.append(literal)
    return _Names(frozenset(known), tuple(beginnings))


def _conditions_of_nobody(config: Config) -> Iterator[Finding]:
    """Yield the rules, quotas and routes for clients with a name, where none has one."""
    asking = {
        each.name
        for each in config.listeners
        if config.authentication_of(each) != "off" and config.has_credentials()
    }
    every = {each.name for each in config.listeners}
    sections: list[tuple[KeyPath, ConditionsConfig | MatchConfig]] = []
    sections += [(("security", "rules", at), one) for at, one in enumerate(config.security.rules)]
    sections += [
        (("quotas", name, "match"), quota.match)
        for name, quota in config.quotas.items()
        if _is_about_clients(quota.match)
    ]
    sections += [
        (("routes", at, "match"), route.match)
        for at, route in enumerate(config.routes)
        if route.match is not None and _is_about_clients(route.match)
    ]
    for path, section in sections:
        patterns = section.listeners if isinstance(section, ConditionsConfig) else None
        places = every if patterns is None else {name for name in every if globs(patterns)(name)}
        if places and not places & asking and ANONYMOUS.name not in (section.clients or ()):
            yield (
                path,
                (
                    "no listener asks for a credential, so that this matches nobody: expected "
                    "'clients: [anonymous]', or credentials in 'security'"
                ),
            )


def _is_about_clients(section: ConditionsConfig | MatchConfig) -> bool:
    own = (section.clients, section.groups, section.tiers)
    if isinstance(section, ConditionsConfig):
        return any(each is not None for each in own) or bool(section.labels or section.claims)
    return any(own)
