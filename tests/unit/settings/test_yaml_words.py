"""Words that YAML 1.1 takes for booleans: Helm and other tools write `off` as `false`, and the key `on` as `true`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.config.load import load_text
from gateway.config.schema import json_schema
from gateway.registry import protocol, protocol_names

WORDS = {"on", "off", "yes", "no", "y", "n"}
BASE = {"version": 1, "listeners": [{"http": ":1"}], "upstreams": {"a": {"url": "oip+http://a:1"}}}
MIGRATION = {
    "route": "r",
    "old": "a",
    "new": "b",
    "cutover": {"guards": {"errors": "off", "mismatch": "off"}},
}
MIGRATING: dict[str, Any] = {
    "upstreams": {"a": {"url": "oip+http://a:1"}, "b": {"url": "oip+http://b:1"}},
    "routes": [{"name": "r", "targets": [{"upstream": "a"}, {"upstream": "b", "weight": 0}]}],
    "state": {"directory": "s"},
    "migrations": {"m": MIGRATION},
}
# An example of each key that has such a word.
KEYS: dict[str, dict[str, Any]] = {
    "ListenerConfig.authentication": {"listeners": [{"http": ":1", "authentication": "off"}]},
    "ListenerConfig.shared_memory": {"listeners": [{"http": ":1", "shared_memory": "off"}]},
    "SharedMemoryConfig.mode": {"listeners": [{"http": ":1", "shared_memory": {"mode": "off"}}]},
    "UpstreamConfig.hand_over": {"upstreams": {"a": {"url": "oip+http://a:1", "hand_over": "off"}}},
    "RetryConfig.on": {"policies": {"retry": {"on": ["unsent"]}}},
    "GuardsConfig.errors": MIGRATING,
    "GuardsConfig.mismatch": MIGRATING,
    "address": {"admin": {"address": "off"}},
    "metrics": {"admin": {"metrics": "off"}},
    "options": {"listeners": [{"http": ":1", "options": {"oip": {"logging": "off"}}}]},
}


def keys_with_words(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of models that are such a word, or have it as a value."""

    def words(found: Any) -> Iterator[str]:
        if isinstance(found, dict):
            yield from (str(each) for each in (*found.get("enum", ()), found.get("const")))
            for each in found.get("anyOf", ()):
                yield from words(each)

    for name, model in schema["$defs"].items():
        for key, found in model.get("properties", {}).items():
            if key in WORDS or WORDS & set(words(found)):
                yield f"{name}.{key}"


def as_yaml_1_1(value: Any) -> Any:
    """Return what Helm makes of unquoted words."""
    if isinstance(value, dict):
        return {"true" if key == "on" else key: as_yaml_1_1(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_yaml_1_1(each) for each in value]
    return False if value == "off" else value


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(keys, id=name, marks=[pytest.mark.migration] if "migrations" in keys else [])
        for name, keys in KEYS.items()
    ],
)
def test_words_of_yaml_1_1_were_refused(keys: dict[str, Any]) -> None:
    """They mean the same as the words that the user wrote."""
    plain, other = (
        load_text(yaml.safe_dump(BASE | each)).config for each in (keys, as_yaml_1_1(keys))
    )
    assert yaml.safe_dump(as_yaml_1_1(keys)) != yaml.safe_dump(keys)
    if "options" in str(keys):
        options = [dict(each.listeners[0].options["oip"]) for each in (plain, other)]
        check = protocol("oip").options
        assert check(options[0]) is not None
        assert check(options[1]) is not None
    else:
        assert plain == other


def test_each_key_with_such_a_word_is_tried() -> None:
    """The schema has no others."""
    found = set(keys_with_words(json_schema()))
    assert found
    assert found <= KEYS.keys()
    assert "oip" in protocol_names()
