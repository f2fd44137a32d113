"""ShedLoad: refuses new inferences while the process itself is overloaded.

Source: Envoy, "Overload manager".
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeVar

import structlog
from pydantic import BeforeValidator, Field

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.ir.calls import Call, InferRequest, inference_of
from gateway.ir.errors import Overloaded
from gateway.service import ReplyCoroutine, Service
from gateway.settings.fields import MEMORY, Duration, Text
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.settings.units import parse_size

log = structlog.get_logger(__name__)

R = TypeVar("R")

_STATM: Final = Path("/proc/self/statm")
# Load is shed until a value is below this part of its bound: it would switch on and off else.
_RELEASE_FACTOR: Final = 0.9


def resident_bytes() -> int:
    """Return the memory of this process in bytes; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _check_memory(value: object) -> object:
    if isinstance(value, str) and not value.endswith("%"):
        parse_size(value)
    return value


class OverloadConfig(Model):
    """When a worker refuses new inferences, because the process itself is overloaded."""

    memory: (
        Annotated[
            Text,
            BeforeValidator(_check_memory),
            Field(pattern=MEMORY),
        ]
        | None
    ) = None
    """Memory of the process: a size, or a percentage of the limit of the cgroup, or of the
    machine, divided by the workers. Default: no limit."""
    loop_lag: Duration | None = None
    """Delay of the event loop, twice in a row; it is measured twice a second. Default: no limit."""


OVERLOAD: Final = Setting[OverloadConfig | None](
    key="overload",
    type=OverloadConfig | None,
    default=None,
    help="Refusal of new inferences while the gateway is overloaded. Default: none.",
    places=("policies",),
)


class ProcessLoad:
    """The load of this process, measured twice a second.

    Args:
        read_memory: Returns the memory of the process in bytes.
        bound: Returns the bytes that a bound in YAML means for this process.

    Attributes:
        lag_s: The delay of the event loop, if two measurements in a row had at least that.
        memory_bytes: The memory of the process.
    """

    def __init__(
        self,
        read_memory: Callable[[], int] = resident_bytes,
        bound: Callable[[str], int] = parse_size,
    ) -> None:
        self.bound = bound
        self.lag_s = 0.0
        self.memory_bytes = 0
        self._read_memory = read_memory
        self._last_lag_s = 0.0

    def measure(self, lag_s: float) -> None:
        """Add a delay of the event loop, and measure the memory."""
        # One long step of one request is not overload.
        self.lag_s, self._last_lag_s = min(lag_s, self._last_lag_s), lag_s
        self.memory_bytes = self._read_memory()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShedRules:
    """When load is shed; None for never.

    Attributes:
        memory_bytes: Memory of the process.
        lag_s: Delay of the event loop.
    """

    memory_bytes: int | None = None
    lag_s: float | None = None


class ShedLoad:
    """Refuses inferences while the process has too much memory or too little time.

    Questions about health and metadata are still answered.

    Args:
        inner: The service to call.
        load: The load of the process.
        rules: The bounds.
    """

    def __init__(self, inner: Service, load: ProcessLoad, rules: ShedRules) -> None:
        self._inner = inner
        self._load = load
        self._rules = rules
        self._shedding: str | None = None

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*, unless an inference is refused."""
        if self._reason() is None:
            return self._inner(call)
        is_inference = type(call) is InferRequest or inference_of(call) is not None
        return self._refuse(call) if is_inference else self._inner(call)

    async def _refuse(self, call: Call[R]) -> R:
        reason, load = self._shedding or "", self._load
        found = f"{load.memory_bytes} bytes" if reason == "memory" else f"{load.lag_s:.3f} s"
        raise Overloaded(
            f"the gateway is overloaded: {reason} is {found} (policies.overload.{reason})",
            model=call.model,
            limit=reason,
        )

    def _reason(self) -> str | None:
        """Return the bound that is exceeded, and log changes."""
        rules, load, current = self._rules, self._load, self._shedding
        reason: str | None = None
        for name, value, bound in (
            ("memory", load.memory_bytes, rules.memory_bytes),
            ("loop_lag", load.lag_s, rules.lag_s),
        ):
            if bound is not None and value > (
                bound * _RELEASE_FACTOR if name == current else bound
            ):
                reason = name
                break
        if reason != current:
            self._shedding = reason
            if reason is None:
                log.info("load is no longer shed", reason=current)
            else:
                log.warning("load is shed", reason=reason)
        return reason


def _build(inner: Entries, at: LayerContext) -> Service | None:
    config = at.setting(OVERLOAD)
    if config is None:
        return None
    load = at.part(ProcessLoad)
    memory = None if config.memory is None else load.bound(config.memory)
    return ShedLoad(inner.questions, load, ShedRules(memory_bytes=memory, lag_s=config.loop_lag))


LAYER: Final = Layer(
    "ShedLoad",
    "refuses inferences while the gateway is overloaded, if configured",
    "listener",
    _build,
    settings=(OVERLOAD,),
)
