"""Probes: asks an endpoint again and again whether it is ready, in a task of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from gateway.ir.calls import ServerReadyRequest
from gateway.ir.context import Context
from gateway.ir.errors import GatewayError, Unsupported
from gateway.routing.endpoints import Endpoint

log = structlog.get_logger(__name__)

Report = Callable[[bool], None]


_AWAY_S = 0.5


def _ignore(_ready: bool) -> None: ...


class Prober:
    """Keeps `endpoint.ready` true to what the endpoint says of itself.

    An endpoint counts as not ready until its first good probe. A server whose protocol has no such
    question counts as ready.

    Args:
        upstream: Name, for the log.
        endpoint: Whose readiness is kept.
        interval_s: Pause between probes; half a second at most while it is not ready.
        timeout_s: A probe that takes longer has failed.
        report: Told the outcome of every probe.
        sleep: Waits between probes.
        clock: Monotonic seconds, for deadlines.
    """

    def __init__(
        self,
        upstream: str,
        endpoint: Endpoint,
        *,
        interval_s: float = 5.0,
        timeout_s: float = 2.0,
        report: Report = _ignore,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._endpoint = endpoint
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._report = report
        self._sleep = sleep
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._known = False
        endpoint.ready = False

    def start(self) -> None:
        """Begin to probe, the first time at once; harmless while it probes already."""
        if self._task is None:
            name = f"probe {self._upstream} {self._endpoint.name}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def close(self) -> None:
        """Stop probing; harmless the second time. The last readiness seen stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def probe(self) -> bool:
        """Ask once, keep the outcome in the endpoint, and return it."""
        ready, reason = await self._ask()
        if not self._known or ready != self._endpoint.ready:
            self._known = True
            self._log(ready, reason)
        self._endpoint.ready = ready
        self._report(ready)
        return ready

    async def _run(self) -> None:
        while True:
            ready = await self.probe()
            # A server that starts is waited for: its clients should not wait a whole interval.
            await self._sleep(self._interval_s if ready else min(_AWAY_S, self._interval_s))

    async def _ask(self) -> tuple[bool, str]:
        deadline = self._clock() + self._timeout_s
        call = ServerReadyRequest(context=Context(deadline=deadline))
        try:
            async with asyncio.timeout(self._timeout_s):
                ready = await self._endpoint.service(call)
        except TimeoutError:
            return False, f"no answer within {self._timeout_s} s"
        except Unsupported:
            return True, ""
        except GatewayError as error:
            return False, error.message
        except Exception as error:  # a bug must not end the probing unseen
            log.exception("probe failed", upstream=self._upstream, endpoint=self._endpoint.name)
            return False, repr(error)
        return ready, "" if ready else "it says that it is not ready"

    def _log(self, ready: bool, reason: str) -> None:
        names = {"upstream": self._upstream, "endpoint": self._endpoint.name}
        if ready:
            log.info("endpoint ready", **names)
        else:
            log.warning("endpoint not ready", reason=reason, **names)
