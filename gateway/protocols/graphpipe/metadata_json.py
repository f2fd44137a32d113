"""Responses to GET: a model's metadata, or the list of models, as JSON for people and probes.

The keys are those of the Go server and the JavaScript client, and some additional ones.

Source: docs/protocols/graphpipe.md, "5. Metadata".
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from gateway import __version__
from gateway.ir.context import ModelRef
from gateway.ir.errors import MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry, TensorMetadata
from gateway.protocols.graphpipe.datatypes import TYPE_NAMES, number_of
from gateway.protocols.graphpipe.error_and_metadata import STAND_IN_TEXTS
from gateway.protocols.graphpipe.paths import model_path
from gateway.protocols.graphpipe.translate import SERVER, metadata_text
from gateway.wire.json.values import load_json

_STATES: Final = {state.value: state for state in ModelState}


def show_metadata(metadata: ModelMetadata) -> bytes:
    """Return *metadata* as JSON."""
    return _dump(
        {
            "Name": metadata.name,
            "Version": __version__,
            "Server": SERVER,
            "Description": metadata_text(metadata),
            "ModelVersions": list(metadata.versions),
            "Inputs": [_shown(tensor) for tensor in metadata.inputs],
            "Outputs": [_shown(tensor) for tensor in metadata.outputs],
        }
    )


def show_index(entries: Sequence[RepositoryEntry]) -> bytes:
    """Return the list of models as JSON, each with its path; null for a name without a path."""
    models = [
        {
            "Name": entry.name,
            "Version": entry.version,
            "State": entry.state.value,
            "Reason": entry.reason,
            "Path": _path_of(entry),
        }
        for entry in entries
    ]
    return _dump({"Version": __version__, "Server": SERVER, "Models": models})


def _path_of(entry: RepositoryEntry) -> str | None:
    try:
        return model_path(ModelRef(entry.name, entry.version))
    except Unsupported:  # "." and ".." are steps of a path: the list has the other models
        return None


def read_index(body: memoryview, limits: MessageLimits) -> tuple[RepositoryEntry, ...]:
    """Return the list of models of another gateway.

    Raises:
        Unsupported: The server is not a gateway: it has one model and no list.
        MalformedMessage: The list cannot be used.
    """
    if len(body) > limits.json_bytes:
        raise MalformedMessage(f"list of models has {len(body)} bytes")
    found = load_json(body, "the list of models")
    models = found.get("Models") if isinstance(found, dict) else None
    if not isinstance(models, list):
        raise Unsupported("the GraphPipe server does not list its models")
    return tuple([_entry(model) for model in models])


def _entry(model: Any) -> RepositoryEntry:
    fields = model if isinstance(model, dict) else {}
    name, version, state, reason = (
        fields.get(key, "") for key in ("Name", "Version", "State", "Reason")
    )
    texts = (name, version, state, reason)
    if not name or not all(isinstance(text, str) for text in texts):
        raise MalformedMessage("list of models has an entry without a name, or a value is not text")
    return RepositoryEntry(name, version, _STATES.get(state, ModelState.UNKNOWN), reason)


def _shown(tensor: TensorMetadata) -> dict[str, Any]:
    datatype = tensor.datatype
    number = number_of(datatype)
    return {
        "Name": tensor.name,
        "Description": "" if datatype is None else STAND_IN_TEXTS.get(datatype, ""),
        "Shape": None if tensor.shape is None else list(tensor.shape),
        "Type": number,
        "TypeName": TYPE_NAMES[number],
        "Datatype": None if datatype is None else datatype.value,
    }


def _dump(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
