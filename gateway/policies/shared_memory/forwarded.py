"""ForwardRegions: regions of shared memory that upstreams on this machine use themselves.

The tensors stay where they are. What is registered is checked first: a server that maps a wrong
segment ends, or lets a client write over the server's own memory.

A segment that its owner makes smaller after it was registered cannot be caught here. It ends the
server that touches it; `shared_memory: map` has no such weakness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.data import SharedMemoryData
from gateway.ir.errors import (
    Forbidden,
    GatewayError,
    RegionNotFound,
    Unsupported,
)
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensor import RequestedOutput, Tensor
from gateway.policies.shared_memory.policy import Release, references, with_data
from gateway.policies.shared_memory.regions import (
    SEGMENT_FOLDER,
    check_place,
    check_room,
    check_segment,
    segment_name,
)
from gateway.service import Service

_NO_UPSTREAM: Final = "no upstream here has shared memory"


class ForwardedRegions:
    """The regions that clients have registered with the upstreams; one table for all listeners.

    Args:
        most: Regions at once.
        is_shared: Other processes register regions too, so a region may be unknown here.
        folder: Where segments lie.
    """

    def __init__(
        self, most: int = 128, *, is_shared: bool = False, folder: str = SEGMENT_FOLDER
    ) -> None:
        self._most = most
        self._is_shared = is_shared
        self._folder = folder
        self._regions: dict[str, SharedRegion] = {}

    def check(self, region: SharedRegion, keys: Sequence[str]) -> None:
        """Refuse a region that a server must not be told of.

        Raises:
            InvalidRequest: Its key is no name of a segment, or it does not lie within the segment.
            Forbidden: None of *keys* allows its key.
            RegionUnusable: There is no such segment.
            TooLarge: There are as many regions as there may be.
            Unsupported: It has an offset that other processes would not know of.
        """
        if region.name not in self._regions:
            check_room(len(self._regions), self._most)
        if region.device is not None:
            return
        name = segment_name(region)
        if not any(fnmatchcase(name, pattern.removeprefix("/")) for pattern in keys):
            raise Forbidden(
                f"region {region.name!r} has the key {region.key!r}, which the listener does not "
                "allow (shared_memory: keys)"
            )
        check_segment(region, self._folder)
        if region.offset and self._is_shared:
            raise Unsupported(
                f"region {region.name!r} begins at byte {region.offset} of its segment: with "
                "several workers it must begin at byte 0 (workers: 1)"
            )

    def add(self, region: SharedRegion) -> None:
        """Remember a region that an upstream has taken."""
        self._regions[region.name] = region

    def remove(self, name: str) -> None:
        """Forget a region, or with "" all of them; one that is not known is no error."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def find(self, what: str, shared: SharedMemoryData) -> SharedRegion | None:
        """Return the region of a place, which lies within it; None where another process knows it.

        Raises:
            RegionNotFound: It is not registered.
            InvalidRequest: The place lies outside of it.
        """
        region = self._regions.get(shared.region)
        if region is not None:
            check_place(what, shared, region)
        elif not self._is_shared:
            raise RegionNotFound(
                f"no region of shared memory is registered as {shared.region!r}, which {what} names"
            )
        return region

    def offset_of(self, name: str) -> int:
        """Return the first byte of a region in its segment; 0 for one that is not known."""
        region = self._regions.get(name)
        return 0 if region is None else region.offset

    def as_registered(self, region: SharedRegion) -> SharedRegion:
        """Return a region as its client has registered it."""
        return self._regions.get(region.name, region)


class ForwardRegions:
    """The regions are the upstreams', which run on this machine; tensors stay where they are.

    A region is registered with every upstream. It is enough that one takes it: what cannot be used
    there is said by the upstream that an inference goes to. A region is registered from the
    beginning of its segment, and its offset is added to that of each tensor: Triton before 2.61
    adds the offset of a region twice (CVE-2025-23333).

    Args:
        upstreams: Services of the upstreams.
        keys: Patterns of the keys of segments that clients may register.
        regions: Those of the process.
    """

    extensions: tuple[str, ...] = ("system_shared_memory", "cuda_shared_memory")

    def __init__(
        self, upstreams: Sequence[Service], keys: Sequence[str], regions: ForwardedRegions
    ) -> None:
        self._upstreams = tuple(upstreams)
        self._keys = tuple(keys)
        self._regions = regions

    async def control(self, call: Call[Any], /) -> Any:
        """Ask every upstream.

        Raises:
            GatewayError: What the first one said, where none has done it, or the region is refused.
            Unsupported: None has shared memory.
        """
        if not self._upstreams:
            raise Unsupported(_NO_UPSTREAM)
        if isinstance(call, SharedRegisterRequest):
            region = call.region
            self._regions.check(region, self._keys)
            if region.offset:
                size = region.offset + region.size_bytes
                whole = SharedRegion(name=region.name, key=region.key, size_bytes=size)
                call = call.changed(region=whole)
            await self._ask_all(call)
            self._regions.add(region)
            return None
        done = await self._ask_all(call)
        if isinstance(call, SharedUnregisterRequest):
            self._regions.remove(call.region)
        if not isinstance(call, SharedStatusRequest):
            return None
        return tuple([self._regions.as_registered(region) for region in _joined(done)])

    async def _ask_all(self, call: Call[Any]) -> list[Any]:
        asked = await asyncio.gather(
            *(upstream(call) for upstream in self._upstreams), return_exceptions=True
        )
        refusals: list[GatewayError] = []
        done: list[Any] = []
        for found in asked:
            if isinstance(found, GatewayError):
                refusals.append(found)
            elif isinstance(found, BaseException):
                raise found
            else:
                done.append(found)
        if not done:
            refusals.sort(key=lambda error: isinstance(error, Unsupported))
            raise refusals[0]
        return done

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Return *call* with places as the upstream has them: it finds the tensors.

        Raises:
            RegionNotFound, InvalidRequest: A place is in no region.
        """
        found = [self._regions.find(what, shared) for what, shared in references(call)]
        if not any(region is not None and region.offset for region in found):
            return call, _nothing
        inputs = tuple(
            [
                with_data(one, self._at_upstream(one.data))
                if isinstance(one.data, SharedMemoryData)
                else one
                for one in call.inputs
            ]
        )
        outputs = tuple(
            [
                RequestedOutput(
                    one.name, one.classes, one.parameters, self._at_upstream(one.shared)
                )
                if one.shared is not None
                else one
                for one in call.outputs
            ]
        )
        return call.changed(inputs=inputs, outputs=outputs), _nothing

    def _at_upstream(self, shared: SharedMemoryData) -> SharedMemoryData:
        offset = self._regions.offset_of(shared.region) + shared.offset
        return SharedMemoryData(shared.region, offset, shared.size_bytes)

    async def store_outputs(self, call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return *reply*, with places as its client has them.

        Raises:
            Unsupported: Its target has no shared memory, and an output is in the answer itself.
        """
        wanted = {output.name: output.shared for output in call.outputs if output.shared}
        moved = False
        for tensor in reply.outputs:
            shared = wanted.get(tensor.name)
            if shared is None:
                continue
            if not isinstance(tensor.data, SharedMemoryData):
                raise Unsupported(
                    f"output {tensor.name!r} was to be put into shared memory, and what answers "
                    f"for model {str(call.model)!r} has none",
                    model=call.model,
                )
            moved = moved or self._regions.offset_of(shared.region) > 0
        if not moved:
            return reply
        outputs = tuple([self._as_wanted(tensor, wanted) for tensor in reply.outputs])
        return reply.changed(outputs=outputs)

    def _as_wanted(self, tensor: Tensor, wanted: Mapping[str, SharedMemoryData]) -> Tensor:
        shared = wanted.get(tensor.name)
        if shared is None or not isinstance(tensor.data, SharedMemoryData):
            return tensor
        return with_data(
            tensor, SharedMemoryData(shared.region, shared.offset, tensor.data.size_bytes)
        )


def _nothing() -> None: ...


def _joined(listed: Sequence[Sequence[SharedRegion]]) -> tuple[SharedRegion, ...]:
    regions = {region.name: region for found in reversed(listed) for region in found}
    return tuple(sorted(regions.values(), key=lambda region: region.name))
