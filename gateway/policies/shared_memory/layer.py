"""The layer and the keys of shared memory; `policy.py` has what they build."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.policies.shared_memory.policy import SharedMemory, SharedMemoryMode
from gateway.service import Service
from gateway.settings.fields import OFF_OR_FALSE, Names, OrText
from gateway.settings.model import Model
from gateway.settings.setting import Setting


class SharedMemoryConfig(Model):
    """Tensors in shared memory. `shared_memory: map` is short for `{mode: map}`.

    Clients reach every segment that `keys` allows and the gateway, or the upstream, can open.
    """

    mode: Annotated[Literal["off", "forward", "map"], OFF_OR_FALSE] = "off"
    """`forward` registers the regions with the upstreams, which must run on this machine; a client
    that makes a segment smaller later ends the server. `map` copies from and to POSIX regions in
    the gateway. Default: `off`."""
    keys: Names = ()
    """Patterns of segments that clients may register, such as `myapp-*`. `forward` needs one.
    `map` without any allows all but Triton's own. Default: `[]`."""

    @model_validator(mode="before")
    @classmethod
    def _read_mode(cls, value: object) -> object:
        return {"mode": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_keys(self) -> "SharedMemoryConfig":
        if self.mode == "forward" and not self.keys:
            raise ValueError(
                "'forward' needs 'keys': the names of the segments that clients may register, such "
                "as {mode: forward, keys: ['myapp-*']}. Without them a client could write over "
                "memory of the server"
            )
        if self.mode == "off" and self.keys:
            raise ValueError("'keys' belong to 'forward' and 'map', and the mode is 'off'")
        return self


SHARED_MEMORY: Final = Setting[SharedMemoryConfig](
    key="shared_memory",
    type=Annotated[SharedMemoryConfig, OrText("off", "forward", "map")],
    default=SharedMemoryConfig(),
    help="Whether clients may pass tensors in shared memory. Default: `off`.",
    places=("listener",),
)
SHARED_REGIONS: Final = Setting[int](
    key="shared_regions",
    type=Annotated[int, Field(ge=1)],
    default=128,
    help="Most shared-memory regions of clients. Default: `128`.",
    places=("top",),
    needs_restart=True,
)


@dataclass(frozen=True, slots=True)
class SharedRegions:
    """How a listener treats shared memory."""

    mode: SharedMemoryMode


def _build(inner: Entries, at: LayerContext) -> Service:
    mode = at.part(SharedRegions).mode
    return SharedMemory(inner.questions, mode, inference=inner.inference)


SHARED_MEMORY_LAYER: Final = Layer(
    "SharedMemory",
    "rejects, forwards or copies regions of shared memory",
    "listener",
    _build,
    settings=(SHARED_MEMORY, SHARED_REGIONS),
)
