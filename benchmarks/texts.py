"""Text calls: `python -m benchmarks.texts cpu`, `batching` or `infinity [PYTHON]`.

`cpu` compares calls of OpenAI's form with the same calls of Open Inference, at models that do
nothing. `batching` has 64 clients with one text each, before a model of 2 ms a call and 0.05 ms a
row. `infinity` compares with infinity, both with the MiniLM of tests/interop/minilm in ONNX; PYTHON
is that of an environment with infinity-emb[server], onnxruntime and tokenizers.
"""

import asyncio
import json
import os
import random
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import yaml

from benchmarks.processes import child, cores, cpu_seconds, free_port, wait_listening
from tests.interop.minilm.make_onnx import minilm

WIDTH: Final = 384
_MOST_ROWS: Final = 256
_WORDS: Final = [
    "the",
    "weather",
    "is",
    "lovely",
    "he",
    "drove",
    "to",
    "a",
    "stadium",
    "so",
    "sunny",
]
_LENGTH: Final = re.compile(rb"\ncontent-length: *(\d+)", re.IGNORECASE)
_NO_PROXY: Final = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "INFINITY_ANONYMOUS_USAGE_STATS": "0",
}
_ROUNDS: Final = 9
_ROWS = np.random.default_rng(1).standard_normal((_MOST_ROWS, WIDTH)).astype(np.float32)

Arrays = Mapping[str, np.ndarray[Any, Any]]


def constant(inputs: Arrays) -> Arrays:
    """Return the same row for each number of texts: a model that does nothing."""
    return {"embedding": _ROWS[: len(inputs["text"])]}


def slow(inputs: Arrays) -> Arrays:
    """Take 2 ms, and 0.05 ms for each row."""
    rows = len(inputs["text"])
    time.sleep(0.002 + 0.00005 * rows)
    return {"embedding": _ROWS[:rows, :8]}


def texts(seed: int, count: int, least: int, most: int) -> list[str]:
    """Return texts of a random number of words."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    return [
        " ".join(chance.choice(_WORDS) for _ in range(chance.randint(least, most)))
        for _ in range(count)
    ]


def openai(model: str, values: Sequence[str], encoding: str) -> bytes:
    """Return a request of `/v1/embeddings`."""
    body = {"model": model, "input": list(values), "encoding_format": encoding}
    return _post("/v1/embeddings", json.dumps(body).encode())


def open_inference(model: str, values: Sequence[str], *, binary: bool) -> bytes:
    """Return a request of Open Inference, with JSON or with binary tensors on both sides."""
    tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [len(values)]}
    document: dict[str, Any] = {"inputs": [tensor]}
    path = f"/v2/models/{model}/infer"
    if not binary:
        tensor["data"] = list(values)
        return _post(path, json.dumps(document).encode())
    raw = b"".join(struct.pack("<I", len(each)) + each.encode() for each in values)
    tensor["parameters"] = {"binary_data_size": len(raw)}
    document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document).encode()
    return _post(path, head + raw, f"Inference-Header-Content-Length: {len(head)}\r\n")


def _post(path: str, body: bytes, fields: str = "") -> bytes:
    kind = "application/octet-stream" if fields else "application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\n{fields}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


@contextmanager
def gateway(model: Mapping[str, Any], core: str, folder: Path) -> Iterator[tuple[int, int]]:
    """Run a gateway with one model `m`; yield its port and its process."""
    port = free_port()
    config = {
        "version": 1,
        "listeners": [{"http": f"127.0.0.1:{port}"}],
        "admin": {"address": "off"},
        "models": {"m": dict(model)},
    }
    path = folder / f"{port}.yaml"
    path.write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "gateway", "serve", "--config", str(path)]
    with _server(words, port, core, folder) as process:
        yield port, process


@contextmanager
def _server(words: Sequence[str], port: int, core: str, folder: Path) -> Iterator[int]:
    log = folder / f"{port}.log"
    # `child` pins to the text that taskset reads, which may be several cores.
    with child(words, core, log, variables=_NO_PROXY) as process:  # type: ignore[arg-type]
        wait_listening(port, process, log)
        yield process.pid


def in_process(function: Callable[[Arrays], Arrays], width: int, **more: Any) -> dict[str, Any]:
    """Return the configuration of a model of texts."""
    return {
        "backend": "python",
        "options": {"callable": f"benchmarks.texts:{function.__name__}"},
        "signature": {
            "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1]}],
            "outputs": [{"name": "embedding", "datatype": "FP32", "shape": [-1, width]}],
        },
        **more,
    }


async def _client(
    port: int, request: Callable[[], bytes], until: Callable[[], bool], seconds: list[float]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    while not until():
        started = time.monotonic()
        writer.write(request())
        head = await reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        if found is None or b" 200 " not in head[:20]:
            raise RuntimeError(f"no reply: {head[:200]!r}")
        await reader.readexactly(int(found[1]))
        seconds.append(time.monotonic() - started)
    writer.close()


def load(port: int, requests: Sequence[Callable[[], bytes]], duration_s: float) -> list[float]:
    """Return the latencies of clients, one for each of *requests*, in seconds."""
    seconds: list[float] = []

    async def run() -> None:
        end = time.monotonic() + duration_s
        clients = [
            _client(port, each, lambda: time.monotonic() > end, seconds) for each in requests
        ]
        await asyncio.gather(*clients)

    asyncio.run(run())
    return sorted(seconds)


def measure_cpu(folder: Path) -> None:
    """Print the CPU time of a call at the gateway, least of rounds, and the ratios."""
    many, one = texts(3, _MOST_ROWS, 20, 20), texts(4, 1, 64, 64)
    ways = {
        "256 x 384 base64": openai("m", many, "base64"),
        "256 x 384 binary": open_inference("m", many, binary=True),
        "1 text, floats": openai("m", one, "float"),
        "1 text, base64": openai("m", one, "base64"),
        "1 text, JSON of Open Inference": open_inference("m", one, binary=False),
    }
    first, last = cores()
    os.sched_setaffinity(0, {last})
    with gateway(in_process(constant, WIDTH), str(first), folder) as (port, pid):
        least = dict.fromkeys(ways, float("inf"))
        for _ in range(_ROUNDS):
            for name, request in ways.items():
                before = cpu_seconds(pid)
                count = len(load(port, [lambda data=request: data], 0.5))  # type: ignore[misc]
                least[name] = min(least[name], (cpu_seconds(pid) - before) / count)
    for name, seconds in least.items():
        print(f"{name:32} {seconds * 1e6:8.1f} us")
    big, small = least["256 x 384 binary"], least["1 text, JSON of Open Inference"]
    print(f"base64 / binary                  {least['256 x 384 base64'] / big:8.2f}")
    print(f"floats / JSON of Open Inference  {least['1 text, floats'] / small:8.2f}")
    print(f"base64 / JSON of Open Inference  {least['1 text, base64'] / small:8.2f}")


def measure_batching(folder: Path) -> None:
    """Print the rate of 64 clients in units of that without batches, by the share of protocols."""
    first, last = cores()
    os.sched_setaffinity(0, {last})
    values = texts(5, 64, 3, 50)
    for share in (0.0, 0.5, 1.0):
        requests = [
            open_inference("m", [each], binary=False)
            if at < share * len(values)
            else openai("m", [each], "base64")
            for at, each in enumerate(values)
        ]
        makers = [lambda data=each: data for each in requests]
        rates = []
        for more in ({}, {"batching": {"max_delay": "1ms"}}):
            with gateway(in_process(slow, 8, **more), str(first), folder) as (port, _):
                load(port, makers, 0.5)
                rates.append(len(load(port, makers, 3.0)) / 3.0)
        alone, together = rates
        print(
            f"Open Inference {share:.0%}: {alone:.0f}/s, {together:.0f}/s, {together / alone:.1f}"
        )


def measure_infinity(folder: Path, python: str) -> None:
    """Print throughput, latencies and CPU time of the gateway and of infinity, on two cores."""
    both = ",".join(map(str, cores()))
    weights = minilm()
    declared = {"tokenizer": str(weights / "tokenizer.json"), "max_tokens": 256}
    form = {**declared, "pooling": "mean", "normalize": True}
    model = {
        "backend": "onnx",
        "path": str(weights),
        "batching": {"max_batch_size": 32},  # as infinity's own
        "protocols": {"openai": {"embeddings": form}},
    }
    other = free_port()
    script = Path(__file__).parent / "servers" / "infinity_minilm.py"
    words = [python, str(script), str(weights), str(other)]
    with (
        gateway(model, both, folder) as (own, own_pid),
        _server(words, other, both, folder) as other_pid,
    ):
        for clients, rows in ((1, 1), (16, 1), (64, 1), (4, 64)):
            found: dict[str, list[tuple[float, ...]]] = {"gateway": [], "infinity": []}
            for round_ in range(-1, 3):
                for name, name_, port, pid in (
                    ("gateway", "m", own, own_pid),
                    ("infinity", "minilm", other, other_pid),
                ):
                    makers = [_random(name_, rows, 64 * round_ + at) for at in range(clients)]
                    before, started = cpu_seconds(pid), time.monotonic()
                    seconds = load(port, makers, 4.0)
                    count = len(seconds) * rows
                    used = (cpu_seconds(pid) - before) / count * 1e3
                    rate = count / (time.monotonic() - started)
                    tail = seconds[int(len(seconds) * 0.99)] * 1e3
                    if round_ >= 0:  # the first one warms up
                        found[name].append((rate, seconds[len(seconds) // 2] * 1e3, tail, used))
            for name, results in found.items():
                rate, middle, tail, used = map(median, zip(*results, strict=True))
                print(
                    f"{clients} x {rows:2} {name:9} {rate:6.0f} texts/s  p50 {middle:6.0f} ms  "
                    f"p99 {tail:6.0f} ms  CPU {used:.2f} ms a text",
                    flush=True,
                )


def _random(model: str, rows: int, seed: int) -> Callable[[], bytes]:
    """Return what makes another request with texts of 4 to 40 words each time."""
    seeds = iter(range(1000 * seed, 1000 * seed + 1000000))
    return lambda: openai(model, texts(next(seeds), rows, 4, 40), "base64")


def main(what: str = "cpu", python: str = sys.executable) -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if what == "cpu":
            measure_cpu(folder)
        elif what == "batching":
            measure_batching(folder)
        else:
            measure_infinity(folder, python)


if __name__ == "__main__":
    main(*sys.argv[1:])
