"""What clients of grps do and see, as one JSON document: `requests`, and stubs made by protoc.

    python grps_client.py HTTP-ADDRESS GRPC-ADDRESS SCHEMAS [CHECK ...]

The stubs are made from SCHEMAS/grps.proto by this environment's own grpcio-tools. The steps are
those of grps's own samples: health, each form of data, streams, metadata.
"""

import base64
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import requests
from google.protobuf.json_format import MessageToDict
from grpc_tools import protoc

TIMEOUT_S = 20
JSON = "application/json"
PREDICT = "/grps/v1/infer/predict"
ROW = list(range(16))
FLOATS = [1.5, -2.0, 3.0e38, 0.1]


def stubs(schemas: Path) -> tuple[Any, Any]:
    """Return the modules that protoc makes of the schema: messages, and the service's stub."""
    folder = tempfile.mkdtemp()
    include = str(files("grpc_tools") / "_proto")
    words = [
        f"-I{schemas}",
        f"-I{include}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
    ]
    if protoc.main(["protoc", *words, "grps.proto"]) != 0:
        raise SystemExit("protoc failed")
    sys.path.insert(0, folder)
    return import_module("grps_pb2"), import_module("grps_pb2_grpc")


def values(text: str) -> Iterator[Any]:
    """Yield the JSON values of a text, which follow one another."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value


class Http:
    """The steps of the sample that uses `requests`."""

    def __init__(self, address: str) -> None:
        self._base = f"http://{address}"

    def get(self, path: str) -> Any:
        """Return status and document."""
        answer = requests.get(self._base + path, timeout=TIMEOUT_S)
        return [answer.status_code, answer.json()]

    def post(self, path: str, document: Any) -> Any:
        """Return status and document."""
        answer = requests.post(self._base + path, json=document, timeout=TIMEOUT_S)
        return [answer.status_code, answer.json()]

    def streamed(self, document: Any) -> Any:
        """Return the messages of a stream, whose chunks are read as they come."""
        path = f"{self._base}{PREDICT}?streaming=true"
        with requests.post(path, json=document, stream=True, timeout=TIMEOUT_S) as answer:
            text = b"".join(answer.iter_content(chunk_size=None)).decode()
        return [answer.status_code, list(values(text))]

    def octets(self, model: str, data: bytes) -> Any:
        """Return status, content type and bytes."""
        headers = {"content-type": "application/octet-stream"}
        path = f"{self._base}{PREDICT}?model={model}"
        answer = requests.post(path, data=data, headers=headers, timeout=TIMEOUT_S)
        kind = answer.headers["Content-Type"]
        return [answer.status_code, kind, base64.b64encode(answer.content).decode()]

    def checks(self) -> dict[str, Callable[[], Any]]:
        """Return everything that is done, by name."""
        integers = {"name": "INPUT0", "dtype": "DT_FLOAT32", "shape": [2], "flat_float32": [1, 2]}
        pair = [
            {"name": name, "dtype": "DT_INT32", "shape": [1, 16], "flat_int32": ROW}
            for name in ("INPUT0", "INPUT1")
        ]
        gmap = {
            "s_s": {"word": "hällo"},
            "s_b": {"raw": base64.b64encode(b"\x00\xff").decode()},
            "s_i32": {"i": 1},
            "s_i64": {"l": "9007199254740993"},
            "s_f": {"f": 0.5},
            "s_d": {"d": 2.25},
            "s_t": {"t": 1},  # the sample sends it, and no server has it
        }
        health = "/grps/v1/health/"
        return {
            "http live": lambda: self.get(f"{health}live"),
            "http online": lambda: self.get(f"{health}online"),
            "http ready": lambda: self.get(f"{health}ready"),
            "http text": lambda: self.post(PREDICT, {"str_data": "hello grps.", "model": "text-1"}),
            "http stream": lambda: self.streamed({"str_data": "hello out there", "model": "speak"}),
            "http integers in floats": lambda: self.post(
                PREDICT, {"gtensors": {"tensors": [integers]}, "model": "floats"}
            ),
            "http tensors": lambda: self.post(
                f"{PREDICT}?model=simple-1", {"gtensors": {"tensors": pair}}
            ),
            "http map": lambda: self.post(PREDICT, {"gmap": gmap, "model": "mapped"}),
            "http ndarray": lambda: self.post(
                f"{PREDICT}?return-ndarray=true", {"ndarray": [[1, 2.5]], "model": "floats"}
            ),
            "http bytes": lambda: self.octets("text", b"\x00\xff hello grps."),
            "http server": lambda: self.get("/grps/v1/metadata/server"),
            "http model": lambda: self.post("/grps/v1/metadata/model", {"str_data": "simple"}),
            "http unknown": lambda: self.post(PREDICT, {"str_data": "x", "model": "nobody-1"}),
        }


class Grpc:
    """The steps of the sample that uses grpcio."""

    def __init__(self, address: str, schemas: Path) -> None:
        self._pb, service = stubs(schemas)
        options = [("grpc.max_receive_message_length", -1)]
        self._stub = service.GrpsServiceStub(grpc.insecure_channel(address, options))

    def handle(self, method: str, **fields: Any) -> Any:
        """Return the answer as a document."""
        message = self._pb.GrpsMessage(**fields)
        answer = getattr(self._stub, method)(message, timeout=TIMEOUT_S)
        return self._as_document(answer)

    def streamed(self, **fields: Any) -> Any:
        """Return the answers as documents."""
        message = self._pb.GrpsMessage(**fields)
        return [
            self._as_document(answer)
            for answer in self._stub.PredictStreaming(message, timeout=TIMEOUT_S)
        ]

    def _as_document(self, message: Any) -> Any:
        return MessageToDict(message, preserving_proto_field_name=True)

    def checks(self) -> dict[str, Callable[[], Any]]:
        """Return everything that is done, by name."""
        pb = self._pb

        def tensors(*made: Any) -> Any:
            return pb.GenericTensorData(tensors=made)

        def tensor(name: str, **fields: Any) -> Any:
            return pb.GenericTensor(name=name, **fields)

        pair = tensors(
            *(
                tensor(name, dtype=pb.DT_INT32, shape=[1, 16], flat_int32=ROW)
                for name in ("INPUT0", "INPUT1")
            )
        )
        floats = tensors(tensor("", dtype=pb.DT_FLOAT32, shape=[4], flat_float32=FLOATS))
        small = tensors(tensor("INPUT0", dtype=pb.DT_INT8, shape=[2], flat_int8=[-128, 127]))
        gmap = pb.GenericMapData(
            s_s={"word": "hällo"},
            s_b={"raw": b"\x00\xff"},
            s_i32={"i": 1},
            s_i64={"l": 9007199254740993},
            s_f={"f": 0.5},
            s_d={"d": 2.25},
        )
        return {
            "grpc live": lambda: self.handle("CheckLiveness"),
            "grpc online": lambda: self.handle("Online"),
            "grpc ready": lambda: self.handle("CheckReadiness"),
            "grpc text": lambda: self.handle("Predict", str_data="hello grps.", model="text-1"),
            "grpc stream": lambda: self.streamed(str_data="hello out there", model="speak"),
            "grpc tensors": lambda: self.handle("Predict", gtensors=pair, model="simple-1"),
            "grpc floats": lambda: self.handle("Predict", gtensors=floats, model="floats"),
            "grpc small integers": lambda: self.handle("Predict", gtensors=small, model="small"),
            "grpc bytes": lambda: self.handle("Predict", bin_data=b"\x00\xff", model="text"),
            "grpc map": lambda: self.handle("Predict", gmap=gmap, model="mapped"),
            "grpc server": lambda: self.handle("ServerMetadata"),
            "grpc model": lambda: self.handle("ModelMetadata", str_data="simple"),
            "grpc unknown": lambda: self.handle("Predict", str_data="x", model="nobody-1"),
            "grpc nothing": lambda: self.handle("Predict", model="text"),
        }


def main() -> None:
    """Do the checks named, or all, and print what was seen."""
    http, grpc_address, schemas, *names = sys.argv[1:]
    checks = {**Http(http).checks(), **Grpc(grpc_address, Path(schemas)).checks()}
    print(json.dumps({name: checks[name]() for name in names or checks}))


if __name__ == "__main__":
    main()
