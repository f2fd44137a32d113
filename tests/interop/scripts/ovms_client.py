"""OpenVINO's client of TensorFlow Serving's protocol against a gateway, in its own environment.

Prints what the client saw over gRPC and over REST, as one JSON document.
"""

# mypy: disable-error-code="import-not-found"

import argparse
import json
from typing import Any

import numpy as np
from ovmsclient import make_grpc_client, make_http_client

VALUES: dict[str, Any] = {
    "int64": np.array([-(2**63), 2**63 - 1], np.int64),
    "uint64": np.array([0, 2**64 - 1], np.uint64),
    "int8": np.array([-128, 127], np.int8),
    "fp32": np.array([[0.1, -2.5]], np.float32),
    "fp64": np.array([0.1, 1e300], np.float64),
    "bool": np.array([True, False]),
}


def inputs_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a model.

    Over REST the client reads the form of OpenVINO Model Server, and returns any other as it is.
    """
    if "inputs" in metadata:
        found: dict[str, Any] = metadata["inputs"]
        return found
    signatures = metadata["metadata"]["signature_def"]["signature_def"]
    own: dict[str, Any] = signatures["serving_default"]["inputs"]
    return own


def seen(client: Any) -> dict[str, Any]:
    """Return what each question showed."""
    one = np.arange(16, dtype=np.int32).reshape(1, 16)
    found: dict[str, Any] = {
        "status": next(iter(client.get_model_status(model_name="simple").values()))["state"],
        "inputs": list(inputs_of(client.get_model_metadata(model_name="simple"))),
        "simple": {
            name: array.tolist()
            for name, array in client.predict(
                inputs={"INPUT0": one, "INPUT1": np.ones_like(one)}, model_name="simple"
            ).items()
        },
    }
    for name, array in VALUES.items():
        reply = client.predict(inputs={"INPUT0": array}, model_name=f"identity_{name}")
        found[name] = np.asarray(reply).dtype.name, np.asarray(reply).tolist()
    try:
        client.predict(inputs={"INPUT0": one}, model_name="nothing")
    except Exception as error:  # noqa: BLE001  # the client's own classes
        found["unknown"] = type(error).__name__
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("http")
    parser.add_argument("grpc")
    addresses = parser.parse_args()
    print(
        json.dumps(
            {
                "http": seen(make_http_client(addresses.http)),
                "grpc": seen(make_grpc_client(addresses.grpc)),
            }
        )
    )
