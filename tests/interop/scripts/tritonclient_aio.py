"""Carry out the checks with `tritonclient.http.aio` or `tritonclient.grpc.aio`."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from tritonclient.utils import InferenceServerException

from tests.interop.scripts.building import arguments, compression
from tests.interop.scripts.session import STREAM_TIMEOUT_S, main, parse_arguments
from tests.interop.scripts.steps import Infer, Query, Transport
from tests.interop.scripts.tritonclient_grpc import YES_OR_NO

CONNECTIONS = 8


class AioSession:
    """One aio client of *transport*, on an event loop of its own."""

    def __init__(self, url: str, transport: Transport) -> None:
        self._url = url
        self._transport = transport
        self._module: Any = triton_http if transport == "http" else triton_grpc
        self._loop = asyncio.new_event_loop()
        self._clients: list[Any] = []

    def query(self, query: Query) -> Any:
        """Return the answer as the client gives it, by gRPC as JSON."""
        as_json = self._transport == "grpc" and query.method not in YES_OR_NO
        options = {"as_json": True} if as_json else {}

        async def ask() -> Any:
            return await getattr(self._client(), query.method)(*query.arguments, **options)

        return self._run(ask())

    def infer(self, step: Infer) -> Any:
        """Return the result of one inference."""

        async def ask() -> Any:
            return await self._infer(self._client(step.client_timeout_s), step)

        return self._run(ask())

    def infer_at_once(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return the results of tasks that share one client."""

        async def ask() -> Sequence[Any]:
            client = self._client()
            calls = (self._infer(client, step) for step in steps)
            return await asyncio.gather(*calls, return_exceptions=True)

        results: Sequence[Any] = self._run(ask())
        return results

    def infer_stream(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return what answers a stream, up to its end.

        This client ends its side of the stream after the last request, and it has no way to ask
        for the empty response that marks the end of a request.
        """
        results: Sequence[Any] = self._run(self._stream(steps))
        return results

    def close(self) -> None:
        """Close the clients and the loop."""
        for client in self._clients:
            self._run(client.close())
        self._loop.close()

    async def _infer(self, client: Any, step: Infer) -> Any:
        timeout = {"client_timeout": step.client_timeout_s} if self._transport == "grpc" else {}
        return await client.infer(
            **arguments(step, self._module, self._transport),
            **compression(step, self._transport),
            **timeout,
        )

    async def _stream(self, steps: Sequence[Infer]) -> Sequence[Any]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            for step in steps:
                yield arguments(step, self._module, self._transport)

        seen: list[Any] = []
        answers = self._client().stream_infer(requests())
        try:
            async with asyncio.timeout(STREAM_TIMEOUT_S):
                async for result, error in answers:
                    seen.append(result if error is None else error)
        except TimeoutError:
            seen.append(TimeoutError(f"the stream did not end within {STREAM_TIMEOUT_S} s"))
        except InferenceServerException as error:
            seen.append(error)
        finally:
            answers.cancel()
        return seen

    def _client(self, timeout_s: float = 20.0) -> Any:
        if self._transport == "http":
            client = triton_http.InferenceServerClient(
                self._url, conn_limit=CONNECTIONS, conn_timeout=timeout_s
            )
        else:
            client = triton_grpc.InferenceServerClient(self._url)
        self._clients.append(client)
        return client

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)


if __name__ == "__main__":
    options = parse_arguments(__doc__ or "", "http", "grpc")
    main(lambda: AioSession(options.url, options.transport), options.transport, options.checks)
