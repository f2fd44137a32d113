"""Signatures of models: written from metadata of any server, and read from those of a real one.

Source: docs/protocols/tensorflow-serving.md, "6. Status and metadata".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from gateway.ir.errors import MalformedMessage
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.tfs.declarations import (
    CLASSIFY,
    REGRESS,
    DeclaredSignature,
    ModelDeclaration,
)
from gateway.protocols.tfs.models import CalledModel, number_of
from gateway.protocols.tfs.options import DEFAULT_SIGNATURE
from gateway.schema import tensorflow_messages_pb2
from gateway.schema import tensorflow_serving_pb2 as pb
from gateway.wire.protobuf.tensorflow_datatypes import DATATYPES, NUMBERS, name_of, number_of_name

FIELD: Final = "signature_def"
_TYPE_URL: Final = "type.googleapis.com/tensorflow.serving.SignatureDefMap"
_METHOD: Final = "tensorflow/serving/"
_EXAMPLES: Final = (TensorMetadata("inputs", Datatype.BYTES, (-1,)),)


@dataclass(frozen=True, slots=True)
class SignatureTensors:
    """One signature as clients see it."""

    method: str
    inputs: Sequence[TensorMetadata]
    outputs: Sequence[TensorMetadata]


def signatures_of(
    metadata: ModelMetadata, declared: ModelDeclaration
) -> Mapping[str, SignatureTensors]:
    """Return the signatures of a model: its own as the default, and those that are declared."""
    found = {DEFAULT_SIGNATURE: _tensors(DeclaredSignature(), metadata)}
    for name, each in declared.signatures.items():
        found[name] = _tensors(each, metadata)
    return found


def _tensors(signature: DeclaredSignature, metadata: ModelMetadata) -> SignatureTensors:
    outputs = {each.name: each for each in metadata.outputs}
    if signature.method == CLASSIFY:
        names = {"classes": signature.classes, "scores": signature.scores}
        own = [_named(key, outputs[name]) for key, name in names.items() if name in outputs]
        return SignatureTensors(CLASSIFY, _EXAMPLES, own)
    if signature.method == REGRESS:
        own = [_named("outputs", outputs[name]) for name in (signature.output,) if name in outputs]
        return SignatureTensors(REGRESS, _EXAMPLES, own)
    return SignatureTensors(
        signature.method,
        _renamed(metadata.inputs, signature.inputs),
        _renamed(metadata.outputs, signature.outputs),
    )


def _renamed(
    tensors: Sequence[TensorMetadata], names: Mapping[str, str]
) -> Sequence[TensorMetadata]:
    own = {name: key for key, name in names.items()}
    return [_named(own.get(each.name, each.name), each) for each in tensors]


def _named(name: str, tensor: TensorMetadata) -> TensorMetadata:
    return TensorMetadata(name, tensor.datatype, tensor.shape)


def version_of(called: CalledModel, metadata: ModelMetadata) -> int:
    """Return the version that metadata describe: the one that was asked for, else the latest."""
    if called.model.version:
        return number_of(called.model.version)
    return max(map(number_of, metadata.versions), default=1)


def write_metadata(called: CalledModel, metadata: ModelMetadata) -> pb.GetModelMetadataResponse:
    """Return the message that describes a model.

    Raises:
        ValueError: A name has lone surrogates, or a number has more than 64 bits.
    """
    signatures = pb.SignatureDefMap()
    for name, found in signatures_of(metadata, called.declared).items():
        written = signatures.signature_def[name]
        written.method_name = f"{_METHOD}{found.method}"
        for tensor in found.inputs:
            _write(written.inputs[tensor.name], tensor)
        for tensor in found.outputs:
            _write(written.outputs[tensor.name], tensor)
    message = pb.GetModelMetadataResponse()
    message.model_spec.name = called.spec.name
    message.model_spec.version.value = version_of(called, metadata)
    held = message.metadata[FIELD]
    held.type_url = _TYPE_URL
    held.value = signatures.SerializeToString()
    return message


def _write(info: Any, tensor: TensorMetadata) -> None:
    info.name = tensor.name
    info.dtype = 0 if tensor.datatype is None else NUMBERS[tensor.datatype]
    if tensor.shape is None:
        info.tensor_shape.unknown_rank = True
    else:
        info.tensor_shape.SetInParent()
        for dim in tensor.shape:
            info.tensor_shape.dim.add(size=dim)


def metadata_document(called: CalledModel, metadata: ModelMetadata) -> dict[str, Any]:
    """Return the JSON that describes a model; `signature_def` stands in it twice."""
    signatures = {
        name: {
            "inputs": {each.name: _document(each) for each in found.inputs},
            "outputs": {each.name: _document(each) for each in found.outputs},
            "method_name": f"{_METHOD}{found.method}",
            "defaults": {},
        }
        for name, found in signatures_of(metadata, called.declared).items()
    }
    return {
        "model_spec": {
            "name": called.spec.name,
            "signature_name": "",
            "version": str(version_of(called, metadata)),
        },
        "metadata": {FIELD: {FIELD: signatures}},
    }


def _document(tensor: TensorMetadata) -> dict[str, Any]:
    shape = tensor.shape
    return {
        "dtype": name_of(0 if tensor.datatype is None else NUMBERS[tensor.datatype]),
        "tensor_shape": {
            "dim": [{"size": str(dim), "name": ""} for dim in shape or ()],
            "unknown_rank": shape is None,
        },
        "name": tensor.name,
    }


def read_metadata(
    message: pb.GetModelMetadataResponse, name: str, signature: str, limits: MessageLimits
) -> ModelMetadata:
    """Read what a server tells of one signature of a model.

    Raises:
        MalformedMessage: There is no such signature, or it cannot be used.
        InvalidRequest, TooLarge: A name is not allowed, or a limit is exceeded.
    """
    signatures = pb.SignatureDefMap()
    try:
        signatures.ParseFromString(message.metadata[FIELD].value)
    except DecodeError as error:
        raise MalformedMessage(f"metadata of model {name!r} have no SignatureDefMap") from error
    signature = signature or DEFAULT_SIGNATURE
    if signature not in signatures.signature_def:
        raise _no_signature(name, signature, list(signatures.signature_def))
    found = signatures.signature_def[signature]
    version = message.model_spec.version.value
    return ModelMetadata(
        name=name,
        versions=(str(version),) if version > 0 else (),
        platform="tensorflow",
        inputs=_read("inputs", found.inputs, limits),
        outputs=_read("outputs", found.outputs, limits),
    )


def read_metadata_document(
    name: str, spec: Any, signatures: Any, signature: str, limits: MessageLimits
) -> ModelMetadata:
    """Read the JSON that describes one signature of a model.

    Raises:
        MalformedMessage: There is no such signature.
        InvalidRequest, TooLarge: A name is not allowed, or a limit is exceeded.
        KeyError, TypeError, AttributeError, ValueError: It has another form.
    """
    signature = signature or DEFAULT_SIGNATURE
    if signature not in signatures:
        raise _no_signature(name, signature, list(signatures))
    found = signatures[signature]
    version = str(spec.get("version", ""))
    return ModelMetadata(
        name=name,
        versions=(version,) if version.isdecimal() and int(version) > 0 else (),
        platform="tensorflow",
        inputs=_read_documents("inputs", found["inputs"], limits),
        outputs=_read_documents("outputs", found["outputs"], limits),
    )


def _read_documents(
    kind: str, entries: Mapping[str, Any], limits: MessageLimits
) -> tuple[TensorMetadata, ...]:
    check_count(kind, len(entries), limits.tensors, "tensors")
    tensors = []
    for name, info in sorted(entries.items()):
        check_name("tensor name", name, limits.name_bytes, "name_bytes")
        shape = None
        described = info.get("tensor_shape") or {}
        if not described.get("unknown_rank"):
            dims = described.get("dim") or ()
            check_count("dimensions", len(dims), limits.rank, "rank")
            shape = tuple([max(int(dim.get("size", 0)), -1) for dim in dims])
        tensors.append(TensorMetadata(name, DATATYPES.get(number_of_name(info["dtype"])), shape))
    return tuple(tensors)


def _no_signature(name: str, signature: str, known: Sequence[str]) -> MalformedMessage:
    names = ", ".join(sorted(known)) or "none"
    return MalformedMessage(
        f"model {name!r} has no signature {signature!r}: it has {names[:200]} (option `signature` "
        "of the upstream)"
    )


def _read(
    kind: str, entries: Mapping[str, tensorflow_messages_pb2.TensorInfo], limits: MessageLimits
) -> tuple[TensorMetadata, ...]:
    check_count(kind, len(entries), limits.tensors, "tensors")
    tensors = []
    for name, info in sorted(entries.items()):
        check_name("tensor name", name, limits.name_bytes, "name_bytes")
        shape = None
        if not info.tensor_shape.unknown_rank:
            check_count("dimensions", len(info.tensor_shape.dim), limits.rank, "rank")
            shape = tuple([max(dim.size, -1) for dim in info.tensor_shape.dim])
        tensors.append(TensorMetadata(name, DATATYPES.get(info.dtype), shape))
    return tuple(tensors)
