"""The JSON Schema that editors use."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml

from gateway.config.schema import json_schema
from gateway.ir.limits import MessageLimits
from gateway.settings.fields import DURATION, SIZE
from gateway.settings.units import parse_duration, parse_size
from gateway.transports.contract import ClientLimits, ServerLimits

DEFAULT = re.compile(r"Default: (?:`(?P<value>[^`]+)`|[a-z0-9])")


@functools.cache
def schema() -> dict[str, Any]:
    """Return the schema; it is made once, and not where all tests are collected."""
    return json_schema()


def definition(name: str) -> dict[str, Any]:
    """Return the properties of one object of the schema."""
    properties: dict[str, Any] = schema()["$defs"][name]["properties"]
    return properties


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the schema of every object."""
    yield "Config", schema()
    yield from schema()["$defs"].items()


def value_of(text: str, key: dict[str, Any]) -> Any:
    """Return a default, written as in YAML, as its value."""
    kinds = [key, *key.get("anyOf", ())]
    if any(kind.get("$comment") == DURATION for kind in kinds):
        return parse_duration(text)
    if any(kind.get("$comment") == SIZE for kind in kinds):
        return parse_size(text)
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return yaml.safe_load(text) if text.startswith("[") else text


@pytest.mark.migration
def test_the_shipped_schema_is_current() -> None:
    """The file in the package is generated from the models (make regenerate writes it)."""
    shipped = files("gateway.config").joinpath("schema.json").read_text(encoding="utf-8")
    assert schema() == json.loads(shipped)


def test_unknown_keys_are_rejected_by_the_schema() -> None:
    """Editors mark them at every level but that of names and options."""
    found = [each["additionalProperties"] for _, each in objects()]
    assert [False] * len(found) == found


def test_the_version_may_be_written_as_a_number() -> None:
    """`version: 1` is a number for an editor and text for the loader; both are valid."""
    assert [1, "1"] == schema()["properties"]["version"]["enum"]


def test_defaults_are_written_as_in_the_file() -> None:
    """The loader can parse each default."""
    assert "25s" == definition("LifecycleConfig")["drain"]["default"]
    assert "60s" == definition("PoliciesConfig")["timeout"]["default"]
    assert "16MiB" == definition("BatchingConfig")["max_bytes"]["default"]
    assert "127.0.0.1:9901" == definition("AdminConfig")["address"]["default"]


def test_optional_keys_have_no_null_default() -> None:
    """Editors would suggest it."""
    assert "default" not in definition("RouteConfig")["timeout"]
    assert "default" not in schema()["properties"]["policies"]


def test_every_section_is_described() -> None:
    """The description of a section consists of complete sentences."""
    found = {name: each.get("description", "") for name, each in objects()}
    assert {} == {name: text for name, text in found.items() if not is_whole_sentences(text)}


def test_every_key_is_described() -> None:
    """The description has complete sentences, of which the last one states the default."""
    found = {
        f"{name}.{each}": mistakes_of(
            each_of["properties"][each], each in each_of.get("required", ())
        )
        for name, each_of in objects()
        for each in each_of["properties"]
    }
    assert len(found) > 300
    assert {} == {name: mistakes for name, mistakes in found.items() if mistakes}


def mistakes_of(key: dict[str, Any], required: bool) -> list[str]:
    """Return what is wrong with the description of a key."""
    text = key.get("description", "")
    found = [] if is_whole_sentences(text) else [f"{text!r} needs whole sentences"]
    is_section = "$ref" in key
    if len(DEFAULT.findall(text)) != (0 if required or is_section else 1):
        found.append(f"{text!r} needs a sentence 'Default: ...'")
    elif key.get("default") is not None:
        stated = DEFAULT.search(text)
        value = None if stated is None else stated["value"]
        # In YAML every scalar is text: "1" of a version is the number 1 of an integer.
        default = str(value_of(str_of(key["default"]), key))
        if value is None or str(value_of(value, key)) != default:
            found.append(f"{text!r} needs the default {default}")
    return found


@pytest.mark.parametrize(
    ("key", "required"),
    [
        ({"description": "no sentence"}, True),
        ({"description": "A key. Default: `1`."}, True),
        ({"description": "A key."}, False),
        ({"description": "A key. Default: `1`.", "default": 2}, False),
        ({"description": "A key. Default: none.", "default": 2}, False),
    ],
)
def test_mistakes_of_descriptions_are_found(key: dict[str, Any], required: bool) -> None:
    """Each of the rules above has a description that breaks it."""
    assert 1 == len(mistakes_of(key, required))
    assert [] == mistakes_of({"description": "A key. Default: `2`.", "default": 2}, False)


@pytest.mark.parametrize(
    ("section", "defaults"),
    [
        ("ServerLimitsConfig", ServerLimits()),
        ("MessageLimitsConfig", MessageLimits()),
        ("ClientLimitsConfig", ClientLimits()),
    ],
)
def test_limits_have_their_documented_defaults(section: str, defaults: Any) -> None:
    """The module of the limits defines the defaults, and the descriptions repeat them."""
    actual = {field.name: getattr(defaults, field.name) for field in dataclasses.fields(defaults)}
    for key_name, key in definition(section).items():
        stated = DEFAULT.search(key["description"])
        assert stated is not None
        is_of_both = key_name in {"idle_timeout", "min_rate_bytes_s"}  # requests and responses
        name = f"body_{key_name}" if is_of_both else key_name
        expected = actual[name] if name in actual else actual[f"{name}_s"]
        if expected is None:  # it depends on another
            continue
        assert stated["value"] is not None, name
        assert expected == value_of(stated["value"], key), name


def is_whole_sentences(text: str) -> bool:
    """Return whether each paragraph begins like a sentence and ends with a period."""
    return all(
        re.match(r"[A-Z0-9`]", paragraph) is not None and paragraph.endswith(".")
        for paragraph in text.split("\n\n")
    )


def str_of(value: Any) -> str:
    """Return a default of the schema as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value)
