"""Carry out the checks with `tritonclient.http`."""

from collections.abc import Sequence
from typing import Any

import tritonclient.http as triton

from tests.interop.scripts.building import arguments, compression
from tests.interop.scripts.session import main, parse_arguments
from tests.interop.scripts.steps import Infer, Query

CONCURRENCY = 8


class HttpSession:
    """One `tritonclient.http` client a timeout, for that is an argument of its constructor."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clients: list[Any] = []

    def query(self, query: Query) -> Any:
        """Return the answer as the client gives it."""
        return getattr(self._client(), query.method)(*query.arguments)

    def infer(self, step: Infer) -> Any:
        """Return the result of one inference."""
        client = self._client(step.client_timeout_s)
        return client.infer(**arguments(step, triton, "http"), **compression(step, "http"))

    def infer_at_once(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return the results of `async_infer`."""
        client = self._client()
        pending = [client.async_infer(**arguments(step, triton, "http")) for step in steps]
        return [each.get_result() for each in pending]

    def infer_stream(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Refuse: HTTP has no stream of requests."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.close()

    def _client(self, timeout_s: float = 20.0) -> Any:
        client = triton.InferenceServerClient(
            self._url, concurrency=CONCURRENCY, network_timeout=timeout_s
        )
        self._clients.append(client)
        return client


if __name__ == "__main__":
    options = parse_arguments(__doc__ or "", "http")
    main(lambda: HttpSession(options.url), "http", options.checks)
