"""Health probes: check periodically whether an endpoint is ready.

A hung server accepts connections and replies to nothing. Without `UnresponsiveServer`, which then
replies in its place, each call would wait for it until its deadline.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from gateway.concurrency.background import end_tasks, start_background
from gateway.ir.bodies.streams import is_streaming
from gateway.ir.calls import Call, ServerMetadataRequest
from gateway.ir.context import Context
from gateway.ir.errors import DeadlineExceeded, GatewayError, Unavailable, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.routing.balancing.endpoint import Endpoint
from gateway.service import Service
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

R = TypeVar("R")

Report = Callable[[bool], None]
Identify = Callable[[ServerMetadata | None], None]

_NOT_READY_INTERVAL_S = 0.5
_MAX_SILENT = 3
_HUNG_SILENT = 2


def _ignore(_ready: bool) -> None: ...


def _ignore_identity(_server: ServerMetadata | None) -> None: ...


class Prober:
    """Updates `endpoint.is_ready` by periodic probes.

    An endpoint is not ready before its first successful probe. A ready endpoint stays ready until
    three probes in a row have no response, or one fails otherwise: a busy server of one process
    answers late. A server whose protocol has no readiness call is ready. When a server becomes
    ready, its metadata are requested, because it may be a different server.

    While an endpoint is not ready and two or more probes in a row have no response, its server
    counts as hung, and `UnresponsiveServer` replies in its place.

    Args:
        upstream: Name for the log.
        endpoint: The endpoint to probe.
        interval_s: Pause between probes; at most half a second while the endpoint is not ready.
        timeout_s: Timeout of a probe.
        report: Called with the result of every probe.
        identify: Called with the server's metadata, and with None when they become unknown.
        service: Sends the probes; None for the service of the endpoint.
        sleep: Waits between probes.
        clock: Monotonic seconds, for deadlines.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        upstream: str,
        endpoint: Endpoint,
        *,
        interval_s: float = 5.0,
        timeout_s: float = 2.0,
        report: Report = _ignore,
        identify: Identify = _ignore_identity,
        service: Service | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstream = upstream
        self._endpoint = endpoint
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._report = report
        self._identify = identify
        self._is_identified = False
        self._sleep = sleep
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._has_result = False
        self._numbers = itertools.count(1)
        self._newest = 0
        self._silent = 0
        self._no_response = f"no response within {timeout_s} s"
        self._server = endpoint.service
        self._service = self._server if service is None else service
        endpoint.is_ready = False
        endpoint.probe = self.probe

    def start(self) -> None:
        """Start probing immediately; does nothing if already started."""
        if self._task is None:
            name = f"probe {self._upstream} {self._endpoint.name}"
            self._task = start_background(self._run(), name)

    async def close(self) -> None:
        """Stop probing; may be called twice. `endpoint.is_ready` keeps its last value."""
        task, self._task = self._task, None
        if task is not None:
            await end_tasks(task)

    async def probe(self) -> bool:
        """Probe once, store the result in the endpoint, and return it.

        The result of a probe is dropped where one that began later has ended before it.
        """
        number = next(self._numbers)
        ready, reason = await self._check()
        if number < self._newest:
            return self._endpoint.is_ready
        self._newest = number
        self._silent = self._silent + 1 if reason == self._no_response else 0
        if self._endpoint.is_ready and 0 < self._silent < _MAX_SILENT:
            # A server of one process replies to no probe while it works.
            log.debug("probe without response", endpoint=self._endpoint.name, count=self._silent)
            return True
        if not self._has_result or ready != self._endpoint.is_ready:
            self._has_result = True
            self._log(ready, reason)
        self._endpoint.probed(ready, reason)
        self._replace_hung_server()
        self._report(ready)
        if ready and not self._is_identified:
            await self._ask_identity()
        elif not ready and self._is_identified:
            self._is_identified = False
            self._endpoint.server = None
            self._identify(None)
        return ready

    def _replace_hung_server(self) -> None:
        """Let an `UnresponsiveServer` reply while the server is hung."""
        if self._silent < _HUNG_SILENT:
            self._endpoint.service = self._server
        elif self._endpoint.service is self._server:
            self._endpoint.service = UnresponsiveServer(
                self._endpoint.name,
                self._server,
                self._on_trial_response,
                interval_s=self._interval_s,
                clock=self._clock,
            )

    def _on_trial_response(self) -> None:
        self._silent = 0
        self._endpoint.service = self._server

    async def _run(self) -> None:
        while True:
            ready = await self.probe()
            # Probe a starting server often, so that its clients do not wait a full interval.
            fast = min(_NOT_READY_INTERVAL_S, self._interval_s)
            await self._sleep(self._interval_s if ready and not self._silent else fast)

    async def _check(self) -> tuple[bool, str]:
        deadline = self._clock() + self._timeout_s
        call = self._endpoint.probe_call(context=Context(deadline=deadline))
        try:
            async with asyncio.timeout(self._timeout_s):
                ready = await self._service(call)
        except TimeoutError:
            return False, self._no_response
        except Unsupported:
            return True, ""
        except GatewayError as error:
            # A client of the server gives up just before the deadline.
            is_silent = isinstance(error, DeadlineExceeded) and error.origin is None
            return False, self._no_response if is_silent else error_text(error)
        except Exception as error:  # a defect must not stop the probes silently
            log.exception("probe failed", upstream=self._upstream, endpoint=self._endpoint.name)
            return False, repr(error)
        return ready, "" if ready else "the endpoint reports that it is not ready"

    async def _ask_identity(self) -> None:
        call = ServerMetadataRequest(context=Context(deadline=self._clock() + self._timeout_s))
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await self._service(call)
        except Unsupported:
            self._is_identified = True  # it has no such question
        except (TimeoutError, GatewayError) as error:
            log.debug("server not identified", upstream=self._upstream, reason=error_text(error))
        else:
            self._is_identified = True
            self._endpoint.server = found
            self._identify(found)

    def _log(self, ready: bool, reason: str) -> None:
        names = {"upstream": self._upstream, "endpoint": self._endpoint.name}
        if ready:
            log.info("endpoint ready", **names)
        else:
            log.warning("endpoint not ready", reason=reason, **names)


class UnresponsiveServer:
    """Rejects calls at once, but sends one trial call per interval to the server.

    Args:
        name: The address of the server, for errors.
        server: The service of the server.
        on_response: Called when the server responds to a trial call, also with an error.
        interval_s: Time between two trial calls.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        server: Service,
        on_response: Callable[[], None],
        *,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._server = server
        self._on_response = on_response
        self._interval_s = interval_s
        self._clock = clock
        self._next_trial = clock() + interval_s

    async def __call__(self, call: Call[R], /) -> R:
        """Reject *call*, unless it is a trial call.

        Raises:
            Unavailable: It is no trial call.
            GatewayError: The error of the server.
        """
        now = self._clock()
        if now < self._next_trial:
            raise Unavailable(
                f"endpoint {self._name!r} does not respond: its last probes had no response; "
                f"the next call is sent in {self._next_trial - now:.1f} s",
                model=call.model,
            )
        self._next_trial = now + self._interval_s
        try:
            reply = await self._server(call)
        except GatewayError as error:
            if error.origin is not None:
                self._on_response()
            raise
        if not is_streaming(call):  # an open stream does not show that the server responds
            self._on_response()
        return reply
