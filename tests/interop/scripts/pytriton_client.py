"""The five clients of pytriton over both carriers: what each sees, as one JSON document.

pytriton's clients ask for the model's configuration first. The decoupled ones speak gRPC only,
and FuturesModelClient HTTP only.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)

ROW = {"INPUT0": np.arange(16, dtype=np.int32), "INPUT1": np.ones(16, dtype=np.int32)}
ROWS = {name: np.stack([value, 2 * value]) for name, value in ROW.items()}
COUNT = {"IN": np.array([4, 5, 6], dtype=np.int32)}


def _plain(outputs: Any) -> dict[str, Any]:
    return {name: value.tolist() for name, value in sorted(outputs.items())}


def config(url: str) -> Any:
    """Return what the client has learnt of the model."""
    with ModelClient(url, "add_sub") as client:
        found = client.model_config
        return [found.model_name, found.max_batch_size, [one.name for one in found.inputs]]


def sample(url: str) -> Any:
    """Return the outputs of one row."""
    with ModelClient(url, "add_sub") as client:
        return _plain(client.infer_sample(**ROW))


def batch(url: str) -> Any:
    """Return the outputs of two rows, sent by position."""
    with ModelClient(url, "add_sub") as client:
        return _plain(client.infer_batch(*ROWS.values()))


def parameters(url: str) -> Any:
    """Return the parameters that reach the model."""
    with ModelClient(url, "params_echo") as client:
        outputs = client.infer_sample(
            np.zeros(1, np.int32), parameters={"text": "a", "number": 7, "flag": True}
        )
    return json.loads(outputs["PARAMS"][0])


def version(url: str) -> Any:
    """Return what a version of a model replies."""
    with ModelClient(url, "versions", "1") as client:
        return _plain(client.infer_sample(np.zeros(1, np.int32)))


def unknown(url: str) -> Any:
    """Return the error of a model that does not exist."""
    try:
        with ModelClient(url, "nobody", init_timeout_s=2.0) as client:
            return _plain(client.infer_sample(**ROW))
    except Exception as error:  # noqa: BLE001  # it is the result
        return type(error).__name__


def futures(url: str) -> Any:
    """Return the outputs of concurrent requests."""
    with FuturesModelClient(url, "add_sub", max_workers=4) as client:
        pending = [client.infer_sample(**ROW) for _ in range(8)]
        pending.append(client.infer_batch(**ROWS))
        return [_plain(future.result(30)) for future in pending]


def asyncio_client(url: str) -> Any:
    """Return the outputs of concurrent requests on an event loop."""

    async def infer() -> Any:
        async with AsyncioModelClient(url, "add_sub") as client:
            replies = await asyncio.gather(
                *(client.infer_sample(**ROW) for _ in range(4)), client.infer_batch(**ROWS)
            )
        return [_plain(reply) for reply in replies]

    return asyncio.run(infer())


def decoupled(url: str) -> Any:
    """Return all responses of a decoupled model."""
    with DecoupledModelClient(url, "repeat_stream") as client:
        return [_plain(reply) for reply in client.infer_sample(**COUNT)]


def asyncio_decoupled(url: str) -> Any:
    """Return all responses of a decoupled model, on an event loop."""

    async def infer() -> Any:
        async with AsyncioDecoupledModelClient(url, "repeat_stream") as client:
            return [_plain(reply) async for reply in client.infer_sample(**COUNT)]

    return asyncio.run(infer())


BOTH = (config, sample, batch, parameters, version, unknown, asyncio_client)
STEPS: dict[str, tuple[Callable[[str], Any], ...]] = {
    "http": (*BOTH, futures),
    "grpc": (*BOTH, decoupled, asyncio_decoupled),
}


def main() -> None:
    """Carry out the steps over each carrier and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", required=True, help="HOST:PORT")
    parser.add_argument("--grpc", required=True, help="HOST:PORT")
    addresses = vars(parser.parse_args())
    seen: dict[str, Any] = {}
    for carrier, steps in STEPS.items():
        for step in steps:
            try:
                found = step(f"{carrier}://{addresses[carrier]}")
            except Exception as error:  # noqa: BLE001  # it is the result
                found = f"{type(error).__name__}: {error}"
            seen[f"{carrier} {step.__name__}"] = found
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
