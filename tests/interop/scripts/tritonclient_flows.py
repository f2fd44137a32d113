"""What NVIDIA's examples of streams and sequences do, with each of tritonclient's clients.

Prints what each flow saw; the same flows before a server and before a gateway are to see the same.

    tritonclient_flows.py GRPC_ADDRESS HTTP_ADDRESS [FLOW ...]
"""

import asyncio
import json
import queue
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Self

import numpy as np
import requests
import tritonclient.grpc as triton_grpc
import tritonclient.grpc.aio as triton_grpc_aio
import tritonclient.http as triton_http
import tritonclient.http.aio as triton_http_aio

VALUES = (11, 7, 5, 3, 2, 0, 1)
TIMEOUT_S = 20.0

Id = int | str
Step = tuple[Id, int, bool, bool]


def sequences(first: Id, second: Id) -> list[Step]:
    """Return the requests of two sequences in turns: id, value, start, end."""
    last = len(VALUES) - 1
    return [
        (sequence_id, sign * value, index == 0, index == last)
        for index, value in enumerate(VALUES)
        for sequence_id, sign in ((first, 1), (second, -1))
    ]


def tensor(module: Any, name: str, values: Any, datatype: str = "INT32") -> Any:
    """Return an input."""
    array = np.asarray(values, np.int32 if datatype == "INT32" else np.uint32)
    found = module.InferInput(name, list(array.shape), datatype)
    found.set_data_from_numpy(array)
    return found


def sequence_arguments(module: Any, step: Step) -> dict[str, Any]:
    """Return the arguments of one request of a sequence."""
    sequence_id, value, start, end = step
    return {
        "model_name": "sequence_sum",
        "inputs": [tensor(module, "INPUT", [[value]])],
        "request_id": f"{sequence_id}_{value}",
        "sequence_id": sequence_id,
        "sequence_start": start,
        "sequence_end": end,
    }


def sums(results: Iterator[Any]) -> dict[str, list[int]]:
    """Return the outputs of each sequence in the order they came."""
    found: dict[str, list[int]] = {}
    for result in results:
        response = result.get_response()
        request_id = response["id"] if isinstance(response, dict) else response.id
        name = request_id.rpartition("_")[0]
        found.setdefault(name, []).append(int(result.as_numpy("OUTPUT")[0][0]))
    return found


class Stream:
    """A stream of `tritonclient.grpc`, whose callback fills a queue."""

    def __init__(self, address: str) -> None:
        self.client = triton_grpc.InferenceServerClient(address)
        self._answers: queue.Queue[Any] = queue.Queue()
        self.client.start_stream(lambda result, error: self._answers.put(error or result))

    def take(self, count: int) -> Iterator[Any]:
        """Give the next answers; raises the first error."""
        for _ in range(count):
            answer = self._answers.get(timeout=TIMEOUT_S)
            if isinstance(answer, Exception):
                raise answer
            yield answer

    def next(self) -> Any:
        """Return the next answer, or the error that stands in its place."""
        return self._answers.get(timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Without an error the end of the stream waits for what is under way.
        self.client.stop_stream(cancel_requests=error[0] is not None)
        self.client.close()


def sequence_stream(grpc: str, _http: str, first: Id = 1000, second: Id = 1001) -> Any:
    """All requests of two sequences, at once, on one stream."""
    steps = sequences(first, second)
    with Stream(grpc) as stream:
        for step in steps:
            stream.client.async_stream_infer(**sequence_arguments(triton_grpc, step))
        return sums(stream.take(len(steps)))


def sequence_stream_text(grpc: str, http: str) -> Any:
    """The same with text for ids."""
    return sequence_stream(grpc, http, "seq-a", "seq-ü")


def sequence_sync(grpc: str, _http: str, first: Id = 2000, second: Id = 2001) -> Any:
    """Two sequences in turns, one request after another."""
    client = triton_grpc.InferenceServerClient(grpc)
    return sums(
        client.infer(**sequence_arguments(triton_grpc, step)) for step in sequences(first, second)
    )


def sequence_sync_text(grpc: str, http: str) -> Any:
    """The same with text for ids."""
    return sequence_sync(grpc, http, "sync-a", "sync-b")


def sequence_http(_grpc: str, http: str, first: Id = 3000, second: Id = 3001) -> Any:
    """The same over HTTP."""
    client = triton_http.InferenceServerClient(http)
    return sums(
        client.infer(**sequence_arguments(triton_http, step)) for step in sequences(first, second)
    )


def sequence_http_text(grpc: str, http: str) -> Any:
    """The same with text for ids."""
    return sequence_http(grpc, http, "http-a", "http-b")


def sequence_aio_stream(grpc: str, _http: str) -> Any:
    """Two sequences on one stream of the aio client."""

    async def flow() -> Any:
        async def coming() -> AsyncIterator[dict[str, Any]]:
            for step in sequences(4000, 4001):
                yield sequence_arguments(triton_grpc_aio, step)

        results = []
        async with triton_grpc_aio.InferenceServerClient(grpc) as client:
            async for result, error in client.stream_infer(coming(), stream_timeout=TIMEOUT_S):
                if error is not None:
                    raise error
                results.append(result)
        return sums(iter(results))

    return asyncio.run(flow())


def sequence_aio_http(_grpc: str, http: str) -> Any:
    """Two sequences with the aio client over HTTP."""

    async def flow() -> Any:
        async with triton_http_aio.InferenceServerClient(http) as client:
            steps = sequences(5000, 5001)
            return sums(
                iter(
                    [
                        await client.infer(**sequence_arguments(triton_http_aio, step))
                        for step in steps
                    ]
                )
            )

    return asyncio.run(flow())


def sequence_without_start(grpc: str, _http: str) -> Any:
    """A sequence that was never begun is refused, and the stream goes on."""
    with Stream(grpc) as stream:
        stream.client.async_stream_infer(**sequence_arguments(triton_grpc, (6000, 1, False, False)))
        stream.client.async_stream_infer(**sequence_arguments(triton_grpc, (6001, 1, True, True)))
        refused, good = stream.next(), stream.next()
    return [type(refused).__name__, int(good.as_numpy("OUTPUT")[0][0])]


def repeat(grpc: str, _http: str) -> Any:
    """Every element is a response, and an empty one ends them; two requests at a time."""
    found: dict[str, list[Any]] = {"a": [], "b": []}
    end_count = 0
    with Stream(grpc) as stream:
        for request_id, values in (("a", (4, 2, 0, 1)), ("b", (9, 8))):
            stream.client.async_stream_infer(
                "repeat_stream",
                [tensor(triton_grpc, "IN", values)],
                request_id=request_id,
                enable_empty_final_response=True,
            )
        while end_count < len(found):
            (result,) = stream.take(1)
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            end_count += final
            out, index = result.as_numpy("OUT"), result.as_numpy("IDX")
            element = None if out is None else [int(out[0]), int(index[0])]
            found[response.id].append([final, element])
    return found


def repeat_aio(grpc: str, _http: str) -> Any:
    """The same with the aio client, which ends its side and hears the rest."""

    async def flow() -> Any:
        async def coming() -> AsyncIterator[dict[str, Any]]:
            yield {
                "model_name": "repeat_stream",
                "inputs": [tensor(triton_grpc_aio, "IN", (6, 5, 4))],
                "request_id": "a",
            }

        found = []
        async with triton_grpc_aio.InferenceServerClient(grpc) as client:
            async for result, error in client.stream_infer(coming(), stream_timeout=TIMEOUT_S):
                if error is not None:
                    raise error
                found.append([int(result.as_numpy("OUT")[0]), int(result.as_numpy("IDX")[0])])
        return found

    return asyncio.run(flow())


def generate(_grpc: str, http: str) -> Any:
    """One answer to a flat object."""
    url = f"http://{http}/v2/models/generate_text/generate"
    return requests.post(
        url, json={"id": "g", "text_input": "one two three", "max_tokens": 2}, timeout=TIMEOUT_S
    ).json()


def generate_stream(_grpc: str, http: str) -> Any:
    """An event for each word."""
    url = f"http://{http}/v2/models/generate_text/generate_stream"
    body: dict[str, Any] = {"text_input": "one two three", "parameters": {"stream": True}}
    with requests.post(url, json=body, stream=True, timeout=TIMEOUT_S) as answer:
        kind = answer.headers["Content-Type"]
        lines = [line for line in answer.iter_lines() if line]
    return [answer.status_code, kind, [json.loads(line.removeprefix(b"data: ")) for line in lines]]


def generate_stream_error(_grpc: str, http: str) -> Any:
    """An element that fails is an event, and the next one follows."""
    url = f"http://{http}/v2/models/repeat_stream/generate_stream"
    with requests.post(url, json={"IN": [1, -1, 3]}, stream=True, timeout=TIMEOUT_S) as answer:
        lines = [line.removeprefix(b"data: ") for line in answer.iter_lines() if line]
    return [json.loads(line) for line in lines]


FLOWS: dict[str, Callable[[str, str], Any]] = {
    flow.__name__: flow
    for flow in (
        sequence_stream,
        sequence_stream_text,
        sequence_sync,
        sequence_sync_text,
        sequence_http,
        sequence_http_text,
        sequence_aio_stream,
        sequence_aio_http,
        sequence_without_start,
        repeat,
        repeat_aio,
        generate,
        generate_stream,
        generate_stream_error,
    )
}


def seen(flow: Callable[[str, str], Any], grpc: str, http: str) -> Any:
    """Return what a flow saw, or how it failed."""
    try:
        return flow(grpc, http)
    except Exception as error:  # noqa: BLE001  # told to the test
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    _, grpc_address, http_address, *names = sys.argv
    json.dump(
        {name: seen(FLOWS[name], grpc_address, http_address) for name in names or FLOWS}, sys.stdout
    )
