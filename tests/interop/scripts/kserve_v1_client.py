"""KServe's own client of V1 against a gateway, in KServe's environment.

Prints what the client saw, as one JSON document.
"""

# mypy: disable-error-code="import-not-found"

import argparse
import asyncio
import json
from typing import Any

from httpx import HTTPStatusError
from kserve import InferenceRESTClient, RESTConfig


async def attempt(call: Any) -> Any:
    """Return what a call returned, or the status of the error that it raised."""
    try:
        return await call
    except HTTPStatusError as error:
        return {"status": error.response.status_code, "text": str(error)}


async def seen(url: str) -> dict[str, Any]:
    """Return what each question showed."""
    client = InferenceRESTClient(RESTConfig(protocol="v1", timeout=60))
    row = list(range(16))
    rows = [{"INPUT0": row, "INPUT1": [1] * 16}]
    found: dict[str, Any] = {
        "live": await client.is_server_live(url),
        "ready": await client.is_model_ready(url, "simple"),
        "unknown": await attempt(client.is_model_ready(url, "nothing")),
        "rows": await client.infer(url, {"instances": rows}, model_name="simple"),
        "wrong": await attempt(
            client.infer(url, {"instances": [{"INPUT0": [1.5]}]}, model_name="simple")
        ),
        "explain": await attempt(client.explain(url, "simple", {"instances": rows})),
        "graph": await client.infer(
            f"{url}/v1/models/simple:predict", {"instances": rows}, is_graph_endpoint=True
        ),
    }
    for name, values in {
        "int64": [-(2**63), 2**63 - 1],
        "uint64": [0, 2**64 - 1],
        "fp32": [[0.1], [3.4028234663852886e38]],
        "bytes": [["é"], ["b"]],
        "bool": [True, False],
    }.items():
        reply = await client.infer(url, {"instances": values}, model_name=f"identity_{name}")
        found[name] = reply["predictions"]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    print(json.dumps(asyncio.run(seen(parser.parse_args().url))))
