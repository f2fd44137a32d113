"""docs/configuration.md: generated from the schema, with examples that work."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gateway.app import check
from gateway.cli.serving.sidecar import load_mapping
from gateway.config.schema import json_schema
from schemas.configuration import PAGE, all_examples, list_sections, page_text, shows

TEXTS: dict[str, str] = all_examples()

REST: dict[str, Any] = {
    "version": 1,
    "listeners": [{"http": 8000}],
    "upstreams": {"triton": {"url": "oip+grpc://127.0.0.1:9001"}},
}

SCHEMA: dict[str, Any] = {
    "description": "The file.",
    "properties": {
        "size": {"type": "integer", "minimum": 1, "description": "A size. Default: `1`."},
        "kind": {"enum": ["a", "b"], "description": "A kind."},
        "parts": {
            "type": "object",
            "patternProperties": {".": {"$ref": "#/$defs/Part"}},
            "description": "Parts, a | b. Default: none, so there are no parts.",
        },
        "last": {"$ref": "#/$defs/Part", "description": "The last part."},
    },
    "required": ["kind"],
    "$defs": {
        "Part": {
            "description": "A part.",
            "properties": {
                "names": {
                    "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                    "description": "Names. Default: no names.",
                }
            },
        }
    },
}

EXPECTED = """\
## Top level

The file.

```yaml
kind: a
```

| Key | Kind; default | Description |
| --- | --- | --- |
| `size` | `1` | A size. |
| `kind` | `a`, `b`; required | A kind. |
| `parts` | map of [object](#partsname); none, so there are no parts | Parts, a \\| b. |
| `last` | [object](#partsname) | The last part. |

## `parts.NAME`

A part.

The same keys apply to `last`.

```yaml
names: [x]
```

| Key | Kind; default | Description |
| --- | --- | --- |
| `names` | list of text; no names | Names. |
"""


@pytest.mark.migration
def test_the_page_is_current() -> None:
    """The page in docs is generated from the schema (make regenerate writes it)."""
    assert page_text(json_schema(), TEXTS) == PAGE.read_text(encoding="utf-8")


def test_writes_a_section_for_each_object() -> None:
    """The keys of an object are a table at its first use, which later uses link to."""
    page = page_text(SCHEMA, {"Config": "kind: a\n", "Part": "names: [x]\n"})
    assert EXPECTED == page[page.index("## Top level") :]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ({"Config": "kind: a"}, "no example of Part"),
        ({"Config": "kind: a", "Part": "x", "Other": "y"}, r"unknown models: \['Other'\]"),
    ],
)
def test_each_section_needs_an_example(examples: dict[str, str], message: str) -> None:
    """A section that no example shows is an error, as is an example without a section."""
    with pytest.raises(LookupError, match=message):
        page_text(SCHEMA, examples)


class Loader(yaml.SafeLoader):
    """A loader that reads the key `on` as text, as the gateway does."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's
        first: [each for each in resolvers if not each[0].endswith(":bool")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(text: str) -> Any:
    return yaml.load(text, Loader)  # noqa: S506  # a safe loader


@pytest.mark.parametrize("name", TEXTS)
def test_each_example_is_valid(name: str) -> None:
    """An example is part of a configuration that is loaded and checked without a problem."""
    config = load_mapping({**REST, **read(TEXTS[name])}, name)
    assert [] == check(config)


def test_each_example_contains_its_section() -> None:
    """An example of a section has the keys that lead to the section."""
    sections = list_sections(json_schema())
    assert [] == [name for name, text in TEXTS.items() if not shows(read(text), sections[name])]


def test_an_example_of_an_object_covers_the_sections_below() -> None:
    """A section whose keys an example of another one has is written without an example."""
    page = page_text(SCHEMA, {"Config": "kind: a\nparts: {first: {names: [x]}}\n"})
    section = page[page.index("## `parts.NAME`") :]
    assert "```" not in section
    assert "| `names` |" in section


def test_few_keys_stand_in_the_table_of_their_object() -> None:
    """An object with few plain keys, which stands in one place, has no section of its own."""
    properties = {key: found for key, found in SCHEMA["properties"].items() if key != "last"}
    page = page_text({**SCHEMA, "properties": properties}, {"Config": "parts: {a: {names: [x]}}\n"})
    assert "| `parts` | map of object; none, so there are no parts | Parts" in page
    assert "| `parts.NAME.names` | list of text; no names | Names. |\n" in page
    assert "## `parts" not in page
