"""The steps of KServe's own client over one address: HTTP first, then gRPC.

It runs in the environment of KServe, and prints one JSON document.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import (
    InferenceGRPCClient,
    InferenceRESTClient,
    InferInput,
    InferRequest,
    RESTConfig,
)


def request(model: str) -> Any:
    """Return a request of one row."""
    rows = InferInput(name="X", shape=[1, 2], datatype="FP32")
    rows.set_data_from_numpy(np.array([[1.5, 2.0]], np.float32), binary_data=False)
    return InferRequest(model_name=model, infer_inputs=[rows])


async def over_http(address: str, model: str) -> list[Any]:
    """Return what the client of HTTP sees."""
    url = f"http://{address}"
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        reply = await client.infer(url, request(model), model_name=model)
        return [
            await client.is_server_live(url),
            await client.is_server_ready(url),
            await client.is_model_ready(url, model),
            reply.outputs[0].as_numpy().tolist(),
        ]


async def over_grpc(address: str, model: str) -> list[Any]:
    """Return what the client of gRPC sees."""
    async with InferenceGRPCClient(url=address) as client:
        reply = await client.infer(request(model))
        return [
            await client.is_server_live(),
            await client.is_server_ready(),
            await client.is_model_ready(model),
            reply.outputs[0].as_numpy().tolist(),
        ]


async def main(address: str, model: str) -> None:
    """Make both, and print what each saw."""
    found = [await over_http(address, model), await over_grpc(address, model)]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
