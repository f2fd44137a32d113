"""What each client of a model should change to speak Open Inference, with the same call as code.

The callers come from the stock, and names, datatypes and shapes from metadata of the new server.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Final

from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.settings.units import Url

CURL, HTTP_CLIENT, GRPC_CLIENT = "curl", "tritonclient.http", "tritonclient.grpc"

_HTTP, _GRPC = "http", "grpc"
_INLINE: Final = 32
"""Largest number of elements that a command line has."""

_LIBRARIES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "trtis.http": "tritonclient[http] instead of tensorrtserver (ProtocolType.HTTP)",
        "trtis.grpc": "tritonclient[grpc] instead of tensorrtserver (ProtocolType.GRPC)",
        "graphpipe.http": "tritonclient[http] instead of graphpipe",
        "graphpipe.stream": "tritonclient[grpc] instead of GraphPipe over a socket",
        "grps.http": "tritonclient[http] instead of JSON over HTTP",
        "grps.grpc": "tritonclient[grpc] instead of stubs of grps.proto",
        "grps.brpc": "tritonclient[grpc] instead of brpc",
        "tfs.http": "tritonclient[http] instead of JSON for /v1/models",
        "tfs.grpc": "tritonclient[grpc] instead of tensorflow-serving-api",
        "torchserve.http": "tritonclient[http] instead of requests for /predictions",
        "torchserve.grpc": "tritonclient[grpc] instead of stubs of TorchServe",
        "seldon.http": "tritonclient[http] instead of SeldonClient",
        "seldon.grpc": "tritonclient[grpc] instead of SeldonClient",
        "mlflow.http": "tritonclient[http] instead of requests for /invocations",
    }
)

_CHANGES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "trtis": (
            "shapes include the batch axis; batch_size and dims are separate in TensorRT v1",
            "TYPE_FP32 is FP32, and so on; TYPE_STRING is BYTES",
            "no requested output means all outputs; in TensorRT v1 it means none",
            (
                "correlation_id is sequence_id; the flags START and END are sequence_start and "
                "sequence_end"
            ),
            "the headers NV-InferRequest and NV-Status are a JSON body and the HTTP status",
        ),
        "graphpipe": (
            "inputs have names and datatypes; the order does not matter",
            "the model is in the path or the request; a GraphPipe URL is one model",
            "an error is an HTTP or gRPC status; GraphPipe sends status 200 with errors",
            "Float32 is FP32, and so on; String is BYTES",
        ),
        "grps": (
            "name and version are separate; the key of grps is NAME-VERSION",
            "DT_FLOAT32 is FP32, and so on; DT_STRING is BYTES",
            "inputs have names; ndarray and str_data are inputs without a name",
            "an error is an HTTP or gRPC status; grps has it in status.code",
        ),
        "tfs": (
            "inputs have datatypes and shapes with the batch axis; rows of JSON have neither",
            "no signature is named: inputs and outputs are those of the model",
            "versions have numbers; labels have no equivalent",
            "DT_FLOAT is FP32, and so on; DT_STRING and b64 are BYTES",
        ),
        "torchserve": (
            "inputs are tensors; a handler of TorchServe reads files and JSON of its own",
            "shapes include the batch axis; a request of TorchServe is one item",
            "an error is a JSON object with one text, or a gRPC status",
        ),
        "seldon": (
            "the model is in the path or the request; a URL of Seldon is one deployment",
            "inputs have names, datatypes and shapes; ndarray is an input without a name",
            "strData and binData are BYTES; meta and feedback have no equivalent",
        ),
        "mlflow": (
            "the model is in the path or the request; a URL of MLflow is one model",
            "inputs have datatypes and shapes; columns of a table are inputs of their own",
            "null is NaN; params are parameters",
        ),
        "oip": ("the protocol stays; only the address changes",),
    }
)


@dataclass(frozen=True, slots=True)
class Advice:
    """What one caller should change.

    Attributes:
        caller: A row of the stock, as JSON values.
        library: The library to use; "" if the caller needs no other one.
        changes: Lines of text.
    """

    caller: Mapping[str, Any]
    library: str
    changes: Sequence[str]


def advise(
    rows: Sequence[Mapping[str, Any]],
    metadata: ModelMetadata | None,
    new_model: tuple[str, str] = ("", ""),
) -> list[Advice]:
    """Return the advice for each caller.

    Args:
        rows: Rows of the stock, as JSON values.
        metadata: The model at the new server; None if they are unknown.
        new_model: Name and version that callers should ask the new server for; "" for the name
            that they use today, and for no version.
    """
    return [_advice(row, metadata, *new_model) for row in rows]


def _advice(
    row: Mapping[str, Any], metadata: ModelMetadata | None, new_name: str, new_version: str
) -> Advice:
    protocol = str(row["protocol"])
    family = protocol.partition(".")[0]
    changes = list(_CHANGES.get(family, ()))
    name, _, version = str(row["model"]).partition(":")
    renamed = []
    if new_name and new_name != name:
        renamed.append(f"the model {name!r} is {new_name!r} at the new server")
    if new_version and new_version != version:
        today = f"version {version}" if version else "no version"
        renamed.append(f"it asks for version {new_version} there; today it asks for {today}")
    if renamed:
        # More than the address changes.
        changes = [*renamed, *(changes if family != "oip" else ())]
    if version and not new_version:
        changes.append(f"it pins version {version}; without a version it gets the newest one")
        if metadata is not None and metadata.versions and version not in metadata.versions:
            found = ", ".join(metadata.versions)
            changes.append(f"the new server has no version {version}; its versions are {found}")
    if metadata is not None:
        changes += _of_metadata(protocol, str(row["inputs"]), metadata)
    return Advice(row, _LIBRARIES.get(protocol, ""), changes)


def _of_metadata(protocol: str, inputs: str, metadata: ModelMetadata) -> list[str]:
    changes = []
    if metadata.stateful:
        changes.append("the model has state: each request names its sequence_id")
    known = {each.name for each in metadata.inputs}
    sent = [each.split(" ")[0] for each in inputs.split(", ") if each]
    unknown = [name for name in sent if name and "[" not in name and name not in known]
    if unknown:
        expected = ", ".join(each.name for each in metadata.inputs)
        changes.append(f"it sends {', '.join(unknown)}; the inputs at the new server: {expected}")
    if protocol.endswith(".http") and all(_size_of(each) for each in metadata.inputs):
        size = sum(_size_of(each) for each in metadata.inputs)
        changes.append(
            f"binary tensors send the inputs of one item as {size} bytes; JSON writes each element "
            "as text"
        )
    return changes


def _size_of(tensor: TensorMetadata) -> int:
    """Return the bytes of one item; 0 if they are unknown."""
    if tensor.datatype in {None, Datatype.BYTES} or tensor.datatype is None:
        return 0
    return prod(_shape(tensor)) * tensor.datatype.size_bytes


def _shape(tensor: TensorMetadata) -> list[int]:
    """Return a shape of the tensor, with 1 for each variable dimension."""
    return [max(1, size) for size in tensor.shape or (1,)]


def snippets(metadata: ModelMetadata, urls: Sequence[Url], version: str = "") -> dict[str, str]:
    """Return one call as code by the name of its library: of curl and tritonclient.

    Args:
        metadata: The model at the new server, with its inputs and outputs.
        urls: Addresses of the new server: Open Inference over HTTP, gRPC or both.
        version: Of the model; "" for the newest.
    """
    found = {}
    for url in urls:
        if url.carrier == _HTTP:
            found[CURL] = _curl(metadata, url, version)
            found[HTTP_CLIENT] = _python(metadata, url, version)
        elif url.carrier == _GRPC:
            found[GRPC_CLIENT] = _python(metadata, url, version)
    return {name: text for name, text in found.items() if text}


def _python(metadata: ModelMetadata, url: Url, version: str) -> str:
    lines = [
        "import numpy as np",
        f"import tritonclient.{url.carrier} as triton",
        "",
        f"client = triton.InferenceServerClient({url.authority!r}{', ssl=True' * url.tls})",
        "inputs = [",
        *(
            f"    triton.InferInput({each.name!r}, {_shape(each)}, {_name(each)!r}),"
            for each in metadata.inputs
        ),
        "]",
        *(
            f"inputs[{place}].set_data_from_numpy({_array(each)})"
            for place, each in enumerate(metadata.inputs)
        ),
        "outputs = [",
        *(f"    triton.InferRequestedOutput({each.name!r})," for each in metadata.outputs),
        "]",
        f"result = client.infer({metadata.name!r}, inputs, {_arguments(metadata, version)})",
        *(f"print(result.as_numpy({each.name!r}))" for each in metadata.outputs),
        "client.close()",
    ]
    return "\n".join(lines) + "\n"


def _arguments(metadata: ModelMetadata, version: str) -> str:
    arguments = ["outputs=outputs"]
    if version:
        arguments.append(f"model_version={version!r}")
    if metadata.stateful:
        arguments.append("sequence_id=1, sequence_start=True, sequence_end=True")
    return ", ".join(arguments)


def _name(tensor: TensorMetadata) -> str:
    return (tensor.datatype or Datatype.FP32).name


def _array(tensor: TensorMetadata) -> str:
    datatype = tensor.datatype or Datatype.FP32
    shape = _shape(tensor)
    if datatype is Datatype.BYTES:
        return f"np.full({shape}, b'text', dtype=np.object_)"
    # tritonclient takes BF16 as 32-bit floats.
    dtype = "float32" if datatype is Datatype.BF16 else datatype.numpy_dtype.name
    return f"np.zeros({shape}, dtype=np.{'bool_' if dtype == 'bool' else dtype})"


def _curl(metadata: ModelMetadata, url: Url, version: str) -> str:
    """Return a command for a shell; "" where JSON cannot represent an input."""
    datatypes = {each.datatype for each in (*metadata.inputs, *metadata.outputs)}
    if datatypes & {Datatype.FP16, Datatype.BF16}:
        return ""
    path = f"/v2/models/{metadata.name}" + (f"/versions/{version}" if version else "")
    address = shlex.quote(f"http{'s' * url.tls}://{url.authority}{url.path}{path}/infer")
    body: dict[str, Any] = {
        "inputs": [
            {"name": each.name, "shape": _shape(each), "datatype": _name(each), "data": []}
            for each in metadata.inputs
        ]
    }
    if metadata.stateful:
        body["parameters"] = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    command = f"curl -sS --fail-with-body {address} -H 'Content-Type: application/json' -d"
    counts = [prod(_shape(each)) for each in metadata.inputs]
    elements = [_element(each) for each in metadata.inputs]
    if sum(counts) <= _INLINE:
        for entry, count, element in zip(body["inputs"], counts, elements, strict=True):
            entry["data"] = [element] * count
        return f"{command} {shlex.quote(json.dumps(body))}\n"
    # JSON is Python with these two names, and its quotes need no escape in a shell.
    program = f"import json; true, false = True, False; body = {json.dumps(body)}"
    for place, (count, element) in enumerate(zip(counts, elements, strict=True)):
        program += f'; body["inputs"][{place}]["data"] = [{json.dumps(element)}] * {count}'
    return f"python3 -c {shlex.quote(f'{program}; print(json.dumps(body))')} | {command} @-\n"


def _element(tensor: TensorMetadata) -> Any:
    if tensor.datatype is Datatype.BYTES:
        return "text"
    if tensor.datatype is Datatype.BOOL:
        return False
    return 0 if tensor.datatype is not None and tensor.datatype.is_integer else 0.0
