"""tritony over HTTP, and over gRPC in turn and at once: its outputs as one JSON document.

It sends the request parameter `timeout`, and asks for the model's configuration and metadata.
"""

import argparse
import json
from typing import Any

import numpy as np
from tritony import InferenceClient

ROWS = {
    "INPUT0": np.arange(64, dtype=np.int32).reshape(4, 16),
    "INPUT1": np.ones((4, 16), dtype=np.int32),
}


def main() -> None:
    """Infer four rows, in one request and in two, and print the outputs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", required=True, help="HOST:PORT")
    parser.add_argument("--grpc", required=True, help="HOST:PORT")
    addresses = vars(parser.parse_args())
    seen: dict[str, Any] = {}
    for kind, carrier, is_async in (
        ("async_http", "http", True),
        ("grpc", "grpc", False),
        ("async_grpc", "grpc", True),
    ):
        client = InferenceClient.create_with(
            model="add_sub",
            url=addresses[carrier],
            protocol=carrier,
            run_async=is_async,
            input_dims=2,
        )
        try:
            seen[kind] = [output.tolist() for output in client(ROWS)]
        except Exception as error:  # noqa: BLE001  # it is the result
            seen[kind] = f"{type(error).__name__}: {error}"
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
