"""RollingLoad: loads a model at one endpoint after the other.

An endpoint gets no calls of the model while it loads it, and none after a load that failed. The
others keep the version that they have.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar, cast

import structlog

from gateway.api.layer import Entries, LayerContext
from gateway.concurrency.background import start_background
from gateway.ir.calls import Call, ModelLoadRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, LoadFailed
from gateway.routing.balancing.endpoint import Endpoint
from gateway.routing.balancing.endpoints import Endpoints
from gateway.routing.rolling.settings import RecordedCalls, RollingLoadConfig, TrialResult
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry import names
from gateway.telemetry.log.error_texts import error_text
from gateway.telemetry.usage.model_calls import ModelCalls

log = structlog.get_logger(__name__)

R = TypeVar("R")

STATES: Final = ("draining", "loading", "warming", "ready", "failed")
"""What an endpoint does with a model that is loaded."""

TrialOf = Callable[[Service, str], Awaitable[TrialResult]]
"""Sends recorded calls of a model to an endpoint."""
Report = Callable[[str, str, str], None]
"""Called with a model, an endpoint, and its state."""


class RollingLoad:
    """Loads a model at one endpoint after the other, when a client requests a load.

    Args:
        inner: The upstream.
        endpoints: Its endpoints.
        calls: The running calls of models at endpoints.
        rules: What the configuration says.
        trial: Tries a loaded model; None for no trial.
        report: Called when the state of an endpoint changes.
        clock: Monotonic seconds, that of the endpoints.
    """

    def __init__(
        self,
        inner: Service,
        endpoints: Endpoints,
        calls: ModelCalls,
        rules: RollingLoadConfig,
        trial: TrialOf | None,
        report: Report,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._endpoints = endpoints
        self._calls = calls
        self._rules = rules
        self._trial = trial
        self._report = report
        self._clock = clock
        self._lock = asyncio.Lock()
        self._running: set[asyncio.Task[None]] = set()

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Handle *call*.

        Raises:
            LoadFailed: The load of a model failed at an endpoint, and did not begin at the next.
        """
        if isinstance(call, ModelLoadRequest) and call.model is not None:
            return cast("ReplyCoroutine[R]", self._load(call, call.model))
        return self._inner(call)

    async def _load(self, call: ModelLoadRequest, model: ModelRef) -> None:
        # A client that leaves does not stop a load half-way.
        name = f"rolling load of {model.name}"
        task = start_background(self._load_all(call, model), name, self._running)
        try:
            await asyncio.shield(task)
        finally:
            del task  # it holds its error, whose traceback holds this frame

    async def _load_all(self, call: ModelLoadRequest, model: ModelRef) -> None:
        async with self._lock:
            # Endpoints without a working version come first: nobody misses them.
            order = sorted(
                self._endpoints.endpoints, key=lambda each: model.name not in each.closed_to
            )
            step = self._rules.at_once
            for first in range(0, len(order), step):
                chosen = order[first : first + step]
                self._check_ready(model, chosen)
                results = await asyncio.gather(
                    *(self._load_at(each, call, model) for each in chosen), return_exceptions=True
                )
                for number, result in enumerate(results, first + 1):
                    if isinstance(result, GatewayError):
                        raise self._stopped(model, number, result) from result
                    if isinstance(result, BaseException):
                        raise result

    def _check_ready(self, model: ModelRef, chosen: Sequence[Endpoint]) -> None:
        """Check that enough endpoints keep serving the model.

        Raises:
            LoadFailed: There are too few.
        """
        now, least = self._clock(), self._rules.min_ready
        if all(model.name in each.closed_to for each in chosen):
            return  # they serve nothing that could be missed
        serving = [
            each
            for each in self._endpoints.endpoints
            if each not in chosen and each.is_available(now) and model.name not in each.closed_to
        ]
        if len(serving) < least:
            raise LoadFailed(
                f"rolling load of model {model.name!r} is stopped: {len(serving)} other endpoints "
                f"serve it; expected at least {least} (rolling_load.min_ready)",
                model=model,
            )

    def _stopped(self, model: ModelRef, number: int, error: GatewayError) -> LoadFailed:
        total = len(self._endpoints.endpoints)
        return LoadFailed(
            f"rolling load of model {model.name!r} is stopped at endpoint {number} of {total}, "
            f"which gets no calls of it; the next ones keep what they have: {error.message}",
            model=model,
        )

    async def _load_at(self, endpoint: Endpoint, call: ModelLoadRequest, model: ModelRef) -> None:
        """Load a model at one endpoint, which gets calls of it again only if all is well."""
        set_state = partial(self._report, model.name, endpoint.name)
        labels = {"upstream": self._endpoints.name, "endpoint": endpoint.name, "model": model.name}
        self._endpoints.close_to(endpoint, model.name)
        try:
            set_state("draining")
            drain_s = self._rules.drain
            if not await self._calls.wait_until_ended(endpoint.name, model.name, drain_s):
                log.warning("calls still run while a model is loaded", **labels)
            set_state("loading")
            await self._endpoints.load_at(endpoint, call)
            set_state("warming")
            await self._try(endpoint, model)
        except BaseException as error:
            set_state("failed")
            log.warning("rolling load stopped", reason=error_text(error), **labels)
            raise
        self._endpoints.open_to(endpoint, model.name)
        set_state("ready")
        log.info("model loaded at endpoint", **labels)

    async def _try(self, endpoint: Endpoint, model: ModelRef) -> None:
        """Send recorded calls to a loaded model.

        Raises:
            LoadFailed: Their replies fail a condition, or they could not be sent in time.
        """
        warm_up = self._rules.warm_up
        if self._trial is None or warm_up is None:
            return
        try:
            async with asyncio.timeout(warm_up.timeout):
                result = await self._trial(endpoint.service, model.name)
        except TimeoutError:
            text = f"its recorded calls took longer than {warm_up.timeout:g} s"
            raise LoadFailed(f"{text} (rolling_load.warm_up.timeout)", model=model) from None
        except (OSError, LookupError, ValueError) as error:
            text = f"its recorded calls cannot be sent: {error}"
            raise LoadFailed(f"{text} (rolling_load.warm_up)", model=model) from error
        if result.failures:
            text = "; ".join(result.failures)
            raise LoadFailed(f"{text}, of {result.calls} recorded calls", model=model)
        if not result.calls:
            log.warning("no recorded calls of a loaded model", model=model.name)


def build(inner: Entries, at: LayerContext, rules: RollingLoadConfig) -> RollingLoad:
    """Return the layer before an upstream.

    Args:
        inner: The upstream.
        at: Publishes the metrics, and has the endpoints.
        rules: What the configuration says.
    """
    endpoints = at.part(Endpoints)
    trial: TrialOf | None = None
    if rules.warm_up is not None:
        recorded = at.part(RecordedCalls)
        trial = partial(recorded.find(), recorded.config, rules)

    def report(model: str, endpoint: str, state: str) -> None:
        labels = {"upstream": endpoints.name, "model": model, "endpoint": endpoint}
        for each in STATES:
            at.metric(names.ROLLING_LOAD, **labels, state=each).set(each == state)

    return RollingLoad(inner.questions, endpoints, at.part(ModelCalls), rules, trial, report)
