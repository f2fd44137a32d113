"""Names that nobody and nothing has: each key that refers to names says to which, and is checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from gateway.access.key_file import KeyFile, save_key_file
from gateway.app.check.check import check
from gateway.cli.validation.config_warnings import warnings
from gateway.cli.validation.unknown_names import marker_of
from gateway.config.extended import config_type
from gateway.config.load import LoadedConfig, load_text
from gateway.settings.model import Model
from tests.integration.access_kit import KEY, NOW

CONFIG: dict[str, Any] = {
    "version": 1,
    "listeners": [{"name": "main", "http": 8000}],
    "upstreams": {"up": {"url": "http://h:1"}},
    "routes": [{"name": "score", "match": {"model": ["fraud", "risk-*"]}, "targets": [{"upstream": "up"}]}],
    "clients": {"web": {"groups": ["finance"], "tier": "free", "labels": {"team": "core"}}},
    "security": {"keys": {"file": "keys.yaml"}},
}  # fmt: skip
SPACES = {
    "clients": ("web", "wbe"),
    "groups": ("finance", "fianance"),
    "tiers": ("free", "fre"),
    "models": ("fraud", "frod"),
    "protocols": ("oip.http", "oip.htp"),
    "listeners": ("main", "mian"),
    "labels": ({"team": "core"}, {"teem": "core"}),
}
"""Each condition with a name that there is, and one that there is not."""

FREE = {
    "paths, addresses and other texts": "mode cert key ca path file directory metrics format audit jwks "
    "prefix addresses hosts origins issuer audience client allow post memory rate upload grpc",
    "its own name": "name",
    "files of calls": "capture",
    "with errors of their own": "protocol protocols ready old new backend authenticator authoriser "
    "python rule transform fail_if compare model options",
    "of headers, tokens, tensors and versions": "headers client_header groups_header "
    "forward_headers sequence_client_header queue_priority_by sticky_by token versions version "
    "request_headers attributes tensors inputs outputs shapes labels",
    "of servers and other machines": "hand_over_group keys pinned cost copies certificates proxied unix_users",
    "what defines the names": "groups tier",
}
"""Keys with texts that are not names of other parts of the file, and why."""


def loaded(directory: Path = Path("/nowhere"), **changes: Any) -> LoadedConfig:
    return load_text(json.dumps({**CONFIG, **changes}), directory=directory)


def found(directory: Path = Path("/nowhere"), **changes: Any) -> list[tuple[str, str]]:
    config = loaded(directory, **changes)
    assert [] == check(config)
    return [(one.path, one.message) for one in warnings(config)]


def security(*rules: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"keys": {"file": "keys.yaml"}, "rules": rules, **more}


@pytest.mark.parametrize("effect", ["allow", "deny"])
@pytest.mark.parametrize("key", SPACES)
def test_an_unknown_name_passed_strict_validation(key: str, effect: str) -> None:
    """Rules that allow and deny, and quotas, have a warning with what was probably meant."""
    right, wrong = SPACES[key]
    for name, is_wrong in ((right, False), (wrong, True)):
        rule = {"operations": "all", "effect": effect, key: name}
        quotas = {"q": {"limit": "5/s", "match": {key: name}}}
        for got, at in (
            (found(security=security(rule)), "security.rules[0]"),
            (found(quotas=quotas), "quotas.q.match"),
        ):
            assert is_wrong == bool(got), got
            assert all(
                path.startswith(f"{at}.{key}") and "did you mean" in text for path, text in got
            )


@pytest.mark.parametrize(
    ("change", "path", "text"),
    [
        ({"quotas": {"q": {"limit": "5/s", "match": {"routes": "scor"}}}}, "quotas.q.match.routes", "'score'"),
        ({"quotas": {"q": {"limit": "5/s", "by": ["client", "label:tem"]}}}, "quotas.q.by[1]", "'team'"),
        ({"quotas": {"q": {"limit": "5/s", "match": {"claims": {"a": "b"}}}}}, "quotas.q.match.claims.a", "no issuer"),
        ({"security": security({"operations": "all", "labels": {"team": "cor"}})}, "security.rules[0].labels.team", "'core'"),
        ({"listeners": [{"http": 8000, "default_model": "fraudd"}]}, "listeners[0].default_model", "'fraud'"),
        ({"routes": [{"match": {"tiers": "fre"}, "targets": [{"upstream": "up"}]}]}, "routes[0].match.tiers", "'free'"),
        ({"routes": [{"match": {"groups": ["x", "finanz"]}, "targets": [{"upstream": "up"}]}]}, "routes[0].match.groups[1]", "'finance'"),
    ],
)  # fmt: skip
def test_other_keys_with_names_passed(change: Any, path: str, text: str) -> None:
    """The path is that of the file, whether one value or a list stands there."""
    assert any(path == at and text in message for at, message in found(**change))


@pytest.mark.parametrize(
    ("sources", "client"),
    [
        ({"jwt": [{"name": "corp", "issuer": "i", "audience": "a", "jwks": "k", "unlisted": "accept"}]}, "corp:*"),
        ({"proxies": [{"name": "edge", "addresses": "10.0.0.1", "client_header": "x-u", "unlisted": "accept"}]}, "edge:bob"),
        ({"certificates": {"unlisted": "accept"}}, "cert:*.example"),
        ({}, "we*"),
        ({}, "*"),
        ({}, "anonymous"),
    ],
)  # fmt: skip
def test_names_that_clients_may_have_are_known(sources: Any, client: str) -> None:
    """Clients that are not listed, patterns, and those without a credential."""
    rule = {"operations": "all", "clients": [client]}
    assert [] == found(security=security(rule, **sources))
    assert bool(sources) == bool(found(security=security(rule))), "of nobody without the source"


def test_clients_of_the_key_file_are_known(tmp_path: Path) -> None:
    """A client with a key need not be listed."""
    save_key_file(tmp_path / "keys.yaml", KeyFile.new().added("team-x", KEY, NOW))
    rule = {"operations": "all", "clients": "team-x"}
    assert [] == found(tmp_path, security=security(rule))
    assert "no client is called 'team-x'" in found(security=security(rule))[0][1]


@pytest.mark.parametrize("effect", ["allow", "deny"])
def test_a_rule_for_clients_with_names_refused_everybody(effect: str) -> None:
    """Where no listener asks for credentials, only `anonymous` calls."""
    rule = {"operations": "all", "effect": effect}
    ((path, text),) = found(security={"rules": [rule]})
    assert "security.rules[0]" == path
    assert "no listener asks for a credential" in text
    assert [] == found(security={"rules": [{**rule, "clients": "anonymous"}]})
    assert [] == found(security=security(rule))
    off = [{"http": 8000, "authentication": "off"}]
    assert len(found(security=security(rule), listeners=off)) == 1


@pytest.mark.migration
def test_each_key_with_names_declares_their_kind() -> None:
    """A new key with texts refers to names by `NameOf`, or `FREE` says why it does not."""
    free = [key for keys in FREE.values() for key in keys.split()]
    found = {
        path.rpartition(".")[2]
        for path, field in _texts(config_type(), "")
        if marker_of(field) is None
    }
    assert sorted(free) == sorted(found)


def _texts(section: type[Model], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys whose values are texts without a pattern, or lists or mappings of them."""
    for key, field in section.model_fields.items():
        inner = list(_sections(field.annotation))
        for each in inner:
            yield from _texts(each, f"{path}.{key}")
        if not inner and _has_text(field.annotation) and "pattern" not in repr(field.metadata[-1:]):
            yield f"{path}.{key}", field


def _sections(annotation: Any) -> Iterator[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)


def _has_text(annotation: Any) -> bool:
    if annotation is str:
        return True
    is_literal = not isinstance(annotation, type) and str(get_origin(annotation)).endswith(
        "Literal"
    )
    return not is_literal and any(map(_has_text, get_args(annotation)))
