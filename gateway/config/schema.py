"""JSON Schema of the configuration file, for editors and for docs/configuration.md.

`schema.json` beside this file is `schema_text()` as `make regenerate` last wrote it. It is part of
the wheel, and a test compares the two.
"""

import ast
import inspect
import json
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import ModelSchema, WithDefaultSchema

from gateway.config import extended
from gateway.config.extended import config_type
from gateway.config.retired import without_retired
from gateway.settings.fields import DURATION, SIZE
from gateway.settings.units import Address, StreamAddress, size_text


class _Schema(GenerateJsonSchema):
    """Writes defaults as they are written in YAML, and the docstrings of attributes."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        # `use_attribute_docstrings` of pydantic reads all sources at each start: 0.2 s.
        written = super().model_schema(schema)
        fields = schema["cls"].model_fields
        for name, text in _attribute_docstrings(schema["cls"]).items():
            key = written["properties"].get(fields[name].alias or name) if name in fields else None
            if key is not None:
                key.setdefault("description", text)
        return written

    def encode_default(self, dft: Any) -> Any:
        return str(dft) if isinstance(dft, Address | StreamAddress) else super().encode_default(dft)

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        written = super().default_schema(schema)
        default, kind = schema.get("default"), written.get("$comment")
        # `null`, and the defaults of a whole section, are not values that a user writes.
        if default is None or isinstance(default, BaseModel):
            written.pop("default", None)
        elif kind == DURATION:
            written["default"] = f"{default:g}s"
        elif kind == SIZE:
            written["default"] = size_text(default)
        return written


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file."""
    schema = config_type().model_json_schema(schema_generator=_Schema)
    without_retired(schema)
    _join_lines(schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Tensor Gateway configuration, version 1",
    }


def schema_text() -> str:
    """Return the schema as JSON text, the same for the same models."""
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"


def _attribute_docstrings(cls: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of the attributes of *cls* and its bases, by attribute."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not issubclass(each, BaseModel) or each is BaseModel:
            continue
        if each.__module__ == extended.__name__:  # its keys have descriptions, and no source
            continue
        try:
            source = dedent(inspect.getsource(each))
        except OSError:  # an installed package without its sources
            continue
        (node,) = ast.parse(source).body
        assert isinstance(node, ast.ClassDef)  # noqa: S101  # models are classes of modules
        for attribute, text in pairwise(node.body):
            match attribute, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(docstring))),
                ):
                    found[name] = inspect.cleandoc(docstring)
    return found


def _join_lines(schema: Any) -> None:
    """Write each paragraph of a description, which a docstring wraps, on one line."""
    if isinstance(schema, dict):
        text = schema.get("description")
        if isinstance(text, str):
            schema["description"] = "\n\n".join(
                " ".join(paragraph.split()) for paragraph in text.split("\n\n")
            )
    children = schema.values() if isinstance(schema, dict) else schema
    for child in children if isinstance(schema, dict | list) else ():
        _join_lines(child)
