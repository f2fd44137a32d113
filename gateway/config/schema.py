"""JSON Schema of the configuration file, for editors.

`schema.json` beside this file is `schema_text()` as it stood at the last `make generated`; it is
shipped in the wheel, and a test compares the two.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core.core_schema import WithDefaultSchema

from gateway.config.models import Config
from gateway.config.units import Address


class _Schema(GenerateJsonSchema):
    """Writes defaults as they stand in YAML."""

    def encode_default(self, dft: Any) -> Any:
        return str(dft) if isinstance(dft, Address) else super().encode_default(dft)

    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        written = super().default_schema(schema)
        # Only durations are numbers that stand as text.
        if written.get("type") == "string" and isinstance(written.get("default"), float):
            written["default"] = f"{written['default']:g}s"
        return written


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file."""
    schema = Config.model_json_schema(schema_generator=_Schema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Tensor Gateway configuration, version 1",
    }


def schema_text() -> str:
    """Return the schema as JSON text, the same for the same models."""
    return json.dumps(json_schema(), indent=2, sort_keys=True) + "\n"
