"""A thread for work that cannot be cancelled and may never end, as a name server may never reply.

In a pool it would hold a thread that others need. A pool also joins its threads when the process
exits.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_own_thread(function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
    """Call *function* on a daemon thread of its own; return the future of its result.

    The thread runs to its end whether or not anybody waits, and the process exits without it.

    Raises:
        RuntimeError: The system has no further thread.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # so that whoever gives up cancels nothing
    context = contextvars.copy_context()
    threading.Thread(
        target=context.run, args=(_run, future, function, args, options), daemon=True
    ).start()
    return future


async def on_own_thread(function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Return the result of *function*, as `asyncio.to_thread`, but with `in_own_thread`."""
    return await asyncio.wrap_future(in_own_thread(function, *args, **options))


def _run(
    future: Future[Any], function: Callable[..., Any], args: tuple[Any, ...], options: Any
) -> None:
    try:
        result = function(*args, **options)
    except BaseException as error:  # noqa: BLE001  # the one who waits gets it
        future.set_exception(error)
    else:
        future.set_result(result)
