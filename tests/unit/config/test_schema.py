"""The JSON Schema that editors use."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from gateway.config.schema import json_schema


def definition(name: str) -> dict[str, Any]:
    """Return the properties of one object of the schema."""
    properties: dict[str, Any] = json_schema()["$defs"][name]["properties"]
    return properties


def test_the_shipped_schema_is_current() -> None:
    """The file in the package is the schema of the models (make regenerate writes it)."""
    shipped = files("gateway.config").joinpath("schema.json").read_text(encoding="utf-8")
    assert json_schema() == json.loads(shipped)


def test_unknown_keys_are_marked() -> None:
    """Editors mark keys that the loader refuses, at every level but that of names and options."""
    schema = json_schema()
    objects = [schema, *schema["$defs"].values()]
    assert [False] * len(objects) == [each["additionalProperties"] for each in objects]


def test_the_version_may_be_written_as_a_number() -> None:
    """`version: 1` is a number to an editor and text to the loader: neither is marked."""
    assert [1, "1"] == json_schema()["properties"]["version"]["enum"]


def test_defaults_are_written_as_in_the_file() -> None:
    """A default is something that the loader would read."""
    assert definition("LifecycleConfig")["drain"]["default"] == "25s"
    assert definition("PoliciesConfig")["queue_wait"]["default"] == "0.1s"
    assert definition("AdminConfig")["address"]["default"] == "127.0.0.1:9901"


def test_keys_are_described() -> None:
    """Editors show what a key means."""
    assert "No" not in definition("RouteConfig")["readiness"]["description"]
    assert (
        definition("LifecycleConfig")["drain"]["description"] == "Most time for what is in flight."
    )
