"""Calls a gateway with Seldon's client, and prints what it sees as JSON."""

import json
import sys
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from seldon_core.proto import prediction_pb2
from seldon_core.seldon_client import SeldonClient

HTTP, GRPC = sys.argv[1:3]
ROWS = np.array([[1.5, -2.0, 0.1]])
SEEN: dict[str, Any] = {}


def client(transport: str, model: str) -> SeldonClient:
    """Return a client of a deployment, through an ingress or straight at a microservice."""
    address = GRPC if transport == "grpc" else HTTP
    return SeldonClient(
        gateway="ambassador",
        gateway_endpoint=address,
        microservice_endpoint=address,
        deployment_name=model,
        namespace="models",
        transport=transport,
        client_return_type="dict",
    )


def seen(found: Any) -> Any:
    """Return what the client read, or why it failed."""
    reply = found.response
    if isinstance(reply, Message):
        reply = MessageToDict(reply)
    return reply if found.success else {"failed": str(found.msg), "body": reply}


for transport in ("rest", "grpc"):
    for form in ("tensor", "ndarray"):
        found = client(transport, "identity_fp32").predict(
            data=ROWS, payload_type=form, names=["a", "b", "c"]
        )
        SEEN[f"{transport} {form}"] = seen(found)
        integers = client(transport, "identity_int32").predict(
            data=np.array([1, -2]), payload_type=form
        )
        SEEN[f"{transport} integers {form}"] = seen(integers)
        direct = client(transport, "").microservice(
            data=ROWS, method="predict", payload_type=form, names=["a", "b", "c"]
        )
        SEEN[f"{transport} microservice {form}"] = seen(direct)
    bytes_model = client(transport, "identity_bytes")
    SEEN[f"{transport} text"] = seen(bytes_model.predict(str_data="h\u00e9"))
    SEEN[f"{transport} bytes"] = seen(bytes_model.predict(bin_data=b"\x00\xff"))
    SEEN[f"{transport} texts"] = seen(
        bytes_model.predict(data=np.array([["a", "b"]]), payload_type="ndarray")
    )
    SEEN[f"{transport} fraction"] = seen(
        client(transport, "identity_int32").predict(data=ROWS[0], payload_type="tensor")
    )
    SEEN[f"{transport} unknown"] = seen(client(transport, "nope").predict(str_data="x"))
    message = prediction_pb2.SeldonMessage(strData="x")
    SEEN[f"{transport} feedback"] = seen(bytes_model.feedback(message, message, reward=1.0))
print(json.dumps(SEEN))
