"""Imports the signature of an MLflow model from its file `MLmodel`.

The model stays at its scoring server, behind the gateway, because its code is Python.

Source: MLflow 3.17, "MLflow Model Signatures".
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gateway.migration.importers.imported import Imported, Unmapped
from gateway.migration.importers.yaml_setting import read_documents

NAME: Final = "MLmodel"

_PORT: Final = 5000
_COLUMNS: Final[Mapping[str, str]] = {
    "boolean": "BOOL",
    "integer": "INT32",
    "long": "INT64",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    "binary": "BYTES",
    "datetime": "BYTES",
}
_TENSORS: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "str": "BYTES",
    "bytes": "BYTES",
    "object": "BYTES",
    **{
        f"{kind}{bits}": f"{kind.upper()}{bits}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
}


def import_mlflow(path: Path, http: str, grpc: str) -> Imported:
    """Import a model.

    Args:
        path: The file `MLmodel`, or its directory.
        http: Address of the listener for HTTP.
        grpc: Address of the listener for gRPC.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not YAML, or its signature is not JSON.
    """
    file = path / NAME if path.is_dir() else path
    tree = read_documents(file)[0].tree
    found = Imported()
    name = file.absolute().parent.name
    found.config = {
        "version": "1",
        "listeners": [{"name": "main", "http": http, "grpc": grpc, "default_model": name}],
        "upstreams": {"mlflow": {"url": f"mlflow+http://127.0.0.1:{_PORT}"}},
    }
    signature = tree.value.get("signature")
    if not isinstance(signature, dict):
        line = 1 if signature is None else tree.position(("signature",))[0]
        found.unmapped.append(
            Unmapped(str(file), line, "no signature: models.NAME.signature must be written by hand")
        )
        return found
    binary: list[str] = []
    sides: dict[str, Any] = {}
    is_table = False
    for side in ("inputs", "outputs"):
        text = signature.get(side)
        if text is None:
            continue
        line = tree.position(("signature", side))[0]
        try:
            sides[side], is_columns = _side(str(text), side, found, str(file), line, binary)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{file}:{line}: {side} is no signature of MLflow: {error}") from error
        is_table = is_table or (side == "inputs" and is_columns)
    declared: dict[str, Any] = {"columns": "each"} if is_table else {}
    if binary:
        declared["binary"] = binary
    model = {"signature": sides} | ({"protocols": {"mlflow": declared}} if declared else {})
    found.config["models"] = {name: model}
    if isinstance(signature.get("params"), str):
        position = tree.position(("signature", "params"))
        found.unmapped.append(
            Unmapped(str(file), position[0], "params: passed on as parameters, and not checked")
        )
    return found


def _side(
    text: str, side: str, found: Imported, file: str, line: int, binary: list[str]
) -> tuple[list[dict[str, Any]], bool]:
    """Return the tensors of one side, and whether they are columns."""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file}:{line}: {side} is not JSON: {error}") from error
    tensors = []
    is_columns = False
    for index, entry in enumerate(entries):
        default = side.removesuffix("s") + (f"_{index}" if len(entries) > 1 else "")
        name = str(entry.get("name") or default)
        kind = str(entry.get("type"))
        if kind == "tensor":
            spec = entry["tensor-spec"]
            datatype, shape = _TENSORS.get(str(spec["dtype"])), list(spec["shape"])
            kind = f"tensor of {spec['dtype']}"
        else:
            datatype, shape = _COLUMNS.get(kind), [-1]
            is_columns = True
        if datatype is None:
            found.unmapped.append(
                Unmapped(file, line, f"{side} {name!r} is a {kind}, which no datatype has")
            )
            continue
        if kind == "binary":
            binary.append(name)
        if entry.get("required") is False:
            found.unmapped.append(
                Unmapped(file, line, f"{side} {name!r} is optional: the gateway needs it")
            )
        tensors.append({"name": name, "datatype": datatype, "shape": shape})
    return tensors, is_columns
