"""A server of Open Inference over HTTP that dies, hangs, slows down and lies as it is told.

Its model adds 1 to each number of its input. A lie can always be recognised: no client could notice
a plausible number that is wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import Any, Final, cast

METADATA: Final = {
    "name": "add",
    "versions": ["1"],
    "platform": "chaos",
    "inputs": [{"name": "IN", "datatype": "INT32", "shape": [-1]}],
    "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [-1]}],
}

FAULTS: Final = (
    "dead",  # nobody listens, connections are reset
    "hung",  # requests are read and never answered
    "slow",  # answers take half a second
    "failing",  # status 503
    "resetting",  # the connection is reset after the request
    "cut",  # the response ends in the middle
    "not json",
    "too few",  # fewer numbers than the shape says
    "other datatype",
    "no outputs",
    "other request",  # the id of another request
    "doubled",  # a second response that nobody asked for
    "no http",
)


class FaultyServer:
    """One server, which is well at first.

    Args:
        draw: Random numbers.

    Attributes:
        fault: One of `FAULTS`; None while it is well.
        port: Where it listens on 127.0.0.1.
        answered: Inferences that it answered correctly.
    """

    def __init__(self, draw: random.Random) -> None:
        self.fault: str | None = None
        self.port = 0
        self.answered = 0
        self._draw = draw
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def set(self, fault: str | None) -> None:
        """Have *fault* from now on; None to be well."""
        if self.fault == "dead" and fault != "dead":
            await self.start()
        elif fault == "dead" and self.fault != "dead":
            await self.stop()
        self.fault = fault

    async def stop(self) -> None:
        """Listen no more, and reset all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer, task in list(self._writers.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._writers.values(), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            del self._writers[writer]
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; return whether another one may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = head.split("\r\n")
        length = next(
            (int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0
        )
        body = await reader.readexactly(length)
        method, path, _ = lines[0].split(" ", 2)
        if method == "POST":
            return await self._infer(json.loads(body), writer)
        if self.fault == "hung":
            await asyncio.Event().wait()
        document = METADATA if path.startswith("/v2/models/add") else {}
        writer.write(_response(200, json.dumps(document).encode()))
        await writer.drain()
        return True

    async def _infer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        fault = self.fault
        await asyncio.sleep(0.5 if fault == "slow" else self._draw.uniform(0.001, 0.01))
        if fault == "hung":
            await asyncio.Event().wait()
        if fault in {"resetting", "dead"}:
            writer.transport.abort()
            return False
        (tensor,) = request["inputs"]
        document = {
            "id": request.get("id", ""),
            "model_name": "add",
            "model_version": "1",
            "outputs": [
                {
                    "name": "OUT",
                    "datatype": "INT32",
                    "shape": tensor["shape"],
                    "data": [value + 1 for value in tensor["data"]],
                }
            ],
        }
        writer.write(_faulty(fault, document))
        await writer.drain()
        if fault in {None, "slow"}:
            self.answered += 1
        return fault not in {"cut", "no http"}


def _faulty(fault: str | None, document: dict[str, Any]) -> bytes:
    """Return the bytes of a response with a fault."""
    output = document["outputs"][0]
    if fault == "failing":
        return _response(503, b'{"error": "the model is not available"}')
    if fault == "no http":
        return b"\x00\x01\x02 this is no response\r\n\r\n"
    if fault == "not json":
        return _response(200, b'{"outputs": [')
    if fault == "too few":
        output["data"].pop()
    elif fault == "other datatype":
        output["datatype"] = "FP7"
    elif fault == "no outputs":
        del document["outputs"]
    elif fault == "other request":
        document["id"] += "0"
        output["data"] = [value + 1000 for value in output["data"]]
    whole = _response(200, json.dumps(document).encode())
    if fault == "cut":
        return whole[: -len(whole) // 3]
    if fault == "doubled":
        output["data"] = [value + 1000 for value in output["data"]]
        return whole + _response(200, json.dumps(document).encode())
    return whole


def _response(status: int, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status} Chaos\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
