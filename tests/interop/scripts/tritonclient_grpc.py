"""Carry out the checks with `tritonclient.grpc`."""

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import tritonclient.grpc as triton

from tests.interop.scripts.building import arguments, compression
from tests.interop.scripts.session import STREAM_TIMEOUT_S, main, parse_arguments
from tests.interop.scripts.steps import Infer, Query

CALLBACK_TIMEOUT_S = 25.0
YES_OR_NO = ("is_server_live", "is_server_ready", "is_model_ready")


class GrpcSession:
    """One `tritonclient.grpc` client."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)

    def query(self, query: Query) -> Any:
        """Return the answer as JSON, as the client makes it."""
        options = {} if query.method in YES_OR_NO else {"as_json": True}
        return getattr(self._client, query.method)(*query.arguments, **options)

    def infer(self, step: Infer) -> Any:
        """Return the result of one inference."""
        return self._client.infer(
            **arguments(step, triton, "grpc"),
            **compression(step, "grpc"),
            client_timeout=step.client_timeout_s,
        )

    def infer_at_once(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return the results of `async_infer`, which calls back on threads of its own."""
        results: list[Any] = [None] * len(steps)
        done = threading.Semaphore(0)
        for index, step in enumerate(steps):

            def keep(result: Any, error: Any, index: int = index) -> None:
                results[index] = result if error is None else error
                done.release()

            self._client.async_infer(
                callback=keep,
                client_timeout=step.client_timeout_s,
                **arguments(step, triton, "grpc"),
            )
        for _ in steps:
            if not done.acquire(timeout=CALLBACK_TIMEOUT_S):
                raise TimeoutError(f"no callback within {CALLBACK_TIMEOUT_S} s")
        return results

    def infer_stream(self, steps: Sequence[Infer]) -> Sequence[Any]:
        """Return what answers a stream, up to each request's final response or its failure."""
        answers: queue.Queue[Any] = queue.Queue()
        self._client.start_stream(lambda result, error: answers.put(error or result))
        for step in steps:
            self._client.async_stream_infer(
                enable_empty_final_response=True, **arguments(step, triton, "grpc")
            )
        seen: list[Any] = []
        deadline = time.monotonic() + STREAM_TIMEOUT_S
        while not is_complete(seen, steps):
            try:
                seen.append(answers.get(timeout=deadline - time.monotonic()))
            except (queue.Empty, ValueError):
                seen.append(TimeoutError(f"no final response within {STREAM_TIMEOUT_S} s"))
                break
        self._client.stop_stream(cancel_requests=True)
        return seen

    def close(self) -> None:
        """Close the channel."""
        self._client.close()


def is_complete(seen: Sequence[Any], steps: Sequence[Infer]) -> bool:
    """Tell whether *seen* ends every one of *steps*: all final, or the whole stream failed."""
    if any(isinstance(each, Exception) and "negative" not in str(each) for each in seen):
        return True
    return sum(_is_final(each) for each in seen) == len(steps)


def _is_final(result: Any) -> bool:
    if isinstance(result, Exception):
        return False
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


if __name__ == "__main__":
    options = parse_arguments(__doc__ or "", "grpc")
    main(lambda: GrpcSession(options.url), "grpc", options.checks)
