"""Metadata of models: written from those of any server, and read from those of a real one.

Authors of models write the metadata of a Seldon server. Only entries in the style of Open
Inference, with name, datatype and shape, describe a tensor.

Source: docs/protocols/seldon.md, "7. Metadata".
"""

from typing import Any

from gateway.ir.context import ModelRef
from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.seldon.declarations import SeldonForm

_DATATYPES = {datatype.name: datatype for datatype in Datatype}


def metadata_document(metadata: ModelMetadata, model: ModelRef | None) -> dict[str, Any]:
    """Return the JSON of a model's metadata, with the output that answers if one is declared."""
    form = metadata.declarations.get("seldon")
    answering = form.output if isinstance(form, SeldonForm) else ""
    outputs = [each for each in metadata.outputs if answering in ("", each.name)]
    return {
        "custom": {},
        "inputs": [_entry(each) for each in metadata.inputs],
        "name": metadata.name or ("" if model is None else model.name),
        "outputs": [_entry(each) for each in outputs],
        "platform": metadata.platform,
        "versions": list(metadata.versions),
    }


def _entry(tensor: TensorMetadata) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "datatype": "" if tensor.datatype is None else tensor.datatype.name,
        "shape": list(tensor.shape or ()),
    }


def read_metadata(document: Any, model: ModelRef | None, limits: MessageLimits) -> ModelMetadata:
    """Return what a server tells of its model.

    Raises:
        MalformedMessage: It is no such document, or does not describe tensors.
        TooLarge: A limit is exceeded.
    """
    if type(document) is not dict:
        raise MalformedMessage("the metadata are no JSON object")
    versions = document.get("versions")
    platform = document.get("platform")
    return ModelMetadata(
        name="" if model is None else model.name,
        versions=tuple(map(str, versions[: limits.tensors])) if type(versions) is list else (),
        platform=platform if isinstance(platform, str) else "",
        inputs=_tensors(document.get("inputs"), "inputs", limits),
        outputs=_tensors(document.get("outputs"), "outputs", limits),
    )


def _tensors(entries: Any, what: str, limits: MessageLimits) -> tuple[TensorMetadata, ...]:
    if type(entries) is not list or not entries:
        raise MalformedMessage(
            f"the metadata have no {what}; expected models.NAME.signature in the configuration"
        )
    check_count(what, len(entries), limits.tensors, "tensors")
    return tuple([_tensor(each, f"{what}[{at}]", limits) for at, each in enumerate(entries)])


def _tensor(entry: Any, place: str, limits: MessageLimits) -> TensorMetadata:
    name = entry.get("name") if type(entry) is dict else None
    datatype = _DATATYPES.get(str(entry.get("datatype"))) if name else None
    shape = entry.get("shape") if name else None
    if not isinstance(name, str) or datatype is None or type(shape) is not list:
        raise MalformedMessage(
            f"the metadata describe no tensor in {place}: expected name, datatype and shape, or "
            "models.NAME.signature in the configuration"
        )
    check_name("tensor name", name, limits.name_bytes, "name_bytes")
    check_count(f"sizes of {place}", len(shape), limits.rank, "rank")
    if not all(type(dim) is int and dim >= -1 for dim in shape):
        raise MalformedMessage(f"the metadata have the shape {shape} in {place}: expected sizes")
    return TensorMetadata(name, datatype, tuple(shape))
