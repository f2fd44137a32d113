"""ForwardRegions: regions of shared memory that upstreams on this machine access directly.

The gateway copies no tensors. It checks every region before registration: a server that maps a
wrong segment crashes, or lets a client overwrite the server's memory.

The gateway cannot detect a segment that its owner shrinks after registration; the server crashes
when it accesses the missing part. `shared_memory: map` is not affected.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.errors import (
    Forbidden,
    GatewayError,
    RegionNotFound,
    Unsupported,
)
from gateway.ir.metadata import SharedRegion
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import RequestedOutput, Tensor
from gateway.policies.shared_memory.policy import Release, references, with_data
from gateway.policies.shared_memory.regions import (
    SEGMENT_FOLDER,
    check_key,
    check_place,
    check_room,
    check_segment,
    is_own,
)
from gateway.service import Service

_NO_UPSTREAM: Final = "no upstream here has shared memory"


class ForwardedRegions:
    """The regions that clients registered with the upstreams; one table for all listeners.

    Args:
        most: Maximum number of regions.
        is_shared: Whether other worker processes register regions that are unknown here.
        folder: Directory of the segments.
    """

    def __init__(
        self, most: int = 128, *, is_shared: bool = False, folder: str = SEGMENT_FOLDER
    ) -> None:
        self._most = most
        self._is_shared = is_shared
        self._folder = folder
        self._regions: dict[str, SharedRegion] = {}

    def check(self, region: SharedRegion, keys: Sequence[str]) -> None:
        """Reject a region that must not be registered with a server.

        Raises:
            InvalidRequest: Its key is not the name of a segment, or it exceeds the segment.
            Forbidden: None of *keys* allows its key, or its name is one of the gateway's own.
            RegionUnusable: The segment does not exist.
            TooLarge: The maximum number of regions is registered.
            Unsupported: It has an offset, which other worker processes would not know.
        """
        if is_own(region.name):
            raise Forbidden(
                f"region {region.name!r} has the name of a region of the gateway; expected another "
                "name"
            )
        if region.name not in self._regions:
            check_room(len(self._regions), self._most)
        if region.device is not None:
            return
        check_key(region, keys)
        check_segment(region, self._folder)
        if region.offset and self._is_shared:
            raise Unsupported(
                f"region {region.name!r} starts at byte {region.offset} of its segment; with "
                "several workers it must start at byte 0 (workers: 1)"
            )

    def add(self, region: SharedRegion) -> None:
        """Store a region that an upstream accepted."""
        self._regions[region.name] = region

    def remove(self, name: str, is_cuda: bool | None) -> None:
        """Remove a region, or all regions with ""; ignores an unknown region.

        Args:
            name: The name of the region.
            is_cuda: Remove only regions of CUDA, or only those of system memory; None for both.
        """
        for region in [*self._regions.values()]:
            if name in ("", region.name) and is_cuda in (None, region.device is not None):
                del self._regions[region.name]

    def has_cuda(self, name: str) -> bool:
        """Return whether the region is of CUDA; with "", whether any is."""
        return any(
            name in ("", region.name) and region.device is not None
            for region in self._regions.values()
        )

    def find(self, what: str, shared: SharedMemoryData) -> SharedRegion | None:
        """Return the region of a reference; None if another process may know the region.

        Raises:
            RegionNotFound: The region is not registered.
            InvalidRequest: The reference exceeds the region.
        """
        region = self._regions.get(shared.region)
        if region is not None:
            check_place(what, shared, region)
        elif not self._is_shared or is_own(shared.region):
            raise RegionNotFound(
                f"{what} refers to the unregistered shared memory region {shared.region!r}"
            )
        return region

    def offset_of(self, name: str) -> int:
        """Return the offset of a region in its segment; 0 for an unknown region."""
        region = self._regions.get(name)
        return 0 if region is None else region.offset

    def as_registered(self, region: SharedRegion) -> SharedRegion:
        """Return a region as its client registered it."""
        return self._regions.get(region.name, region)


class ForwardRegions:
    """The mode in which upstreams on this machine access the regions; the gateway copies nothing.

    A region is registered with every upstream, and one must accept it. An upstream that did not
    rejects the inferences that use the region. Regions are registered from the start of their
    segment, and their offset is added to that of each tensor: Triton before 2.61 adds the offset
    of a region twice (CVE-2025-23333).

    Args:
        upstreams: Services of the upstreams.
        keys: Patterns of the keys of segments that clients may register.
        regions: The regions of the process.
    """

    extensions: tuple[str, ...] = ("system_shared_memory", "cuda_shared_memory")

    def __init__(
        self, upstreams: Sequence[Service], keys: Sequence[str], regions: ForwardedRegions
    ) -> None:
        self._upstreams = tuple(upstreams)
        self._keys = tuple(keys)
        self._regions = regions

    async def control(self, call: Call[Any], /) -> Any:
        """Send *call* to every upstream.

        Raises:
            GatewayError: The first error, if all upstreams failed, or the region is rejected.
            Unsupported: No upstream supports shared memory.
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
            await self._call_all(call)
            self._regions.add(region)
            return None
        if isinstance(call, SharedUnregisterRequest) and is_own(call.region):
            return None  # as for any region that is not registered
        calls = [found for each in self._by_kind(call) for found in await self._without_own(each)]
        replies = [reply for each in calls for reply in await self._call_all(each)]
        if isinstance(call, SharedUnregisterRequest):
            self._regions.remove(call.region, call.is_cuda)
        if not isinstance(call, SharedStatusRequest):
            return None
        regions = [region for region in _merge(replies) if not is_own(region.name)]
        return tuple([self._regions.as_registered(region) for region in regions])

    async def _without_own(self, call: Call[Any]) -> list[Call[Any]]:
        """Return calls that do not unregister the regions in which gateways hand tensors over."""
        if not isinstance(call, SharedUnregisterRequest) or call.region or call.is_cuda:
            return [call]
        try:
            question = SharedStatusRequest(context=call.context, is_cuda=False)
            listed = _merge(await self._call_all(question))
        except GatewayError:
            return [call]  # without a list there are no regions of a gateway either
        if not any(is_own(region.name) for region in listed):
            return [call]
        return [call.changed(region=each.name) for each in listed if not is_own(each.name)]

    def _by_kind(self, call: Call[Any]) -> list[Call[Any]]:
        """Return the calls for the regions of system memory and of CUDA, which Triton separates."""
        if (
            isinstance(call, SharedUnregisterRequest | SharedStatusRequest)
            and call.is_cuda is None
            and self._regions.has_cuda(call.region)
        ):
            cuda: Call[Any] = call.changed(is_cuda=True)
            return [cuda] if call.region else [call, cuda]
        return [call]

    async def _call_all(self, call: Call[Any]) -> list[Any]:
        results = await asyncio.gather(
            *(upstream(call) for upstream in self._upstreams), return_exceptions=True
        )
        errors: list[GatewayError] = []
        replies: list[Any] = []
        for result in results:
            if isinstance(result, GatewayError):
                errors.append(result)
            elif isinstance(result, BaseException):
                raise result
            else:
                replies.append(result)
        if not replies:
            errors.sort(key=lambda error: isinstance(error, Unsupported))
            raise errors[0]
        return replies

    async def load_inputs(self, call: InferRequest, /) -> tuple[InferRequest, Release]:
        """Return *call* with references as registered with the upstreams.

        Raises:
            RegionNotFound, InvalidRequest: A reference is not valid.
        """
        found = [self._regions.find(what, shared) for what, shared in references(call)]
        if not any(region is not None and region.offset for region in found):
            return call, _ignore
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
        return call.changed(inputs=inputs, outputs=outputs), _ignore

    def _at_upstream(self, shared: SharedMemoryData) -> SharedMemoryData:
        offset = self._regions.offset_of(shared.region) + shared.offset
        return SharedMemoryData(shared.region, offset, shared.size_bytes)

    async def store_outputs(self, call: InferRequest, reply: InferResponse, /) -> InferResponse:
        """Return *reply* with references as its client sent them.

        Raises:
            Unsupported: The target does not support shared memory, and the reply has an output.
        """
        requested = {output.name: output.shared for output in call.outputs if output.shared}
        has_offset = False
        for tensor in reply.outputs:
            shared = requested.get(tensor.name)
            if shared is None:
                continue
            if not isinstance(tensor.data, SharedMemoryData):
                raise Unsupported(
                    f"output {tensor.name!r} is requested in shared memory, which the target of "
                    f"model {str(call.model)!r} does not support",
                    model=call.model,
                )
            has_offset = has_offset or self._regions.offset_of(shared.region) > 0
        if not has_offset:
            return reply
        outputs = tuple([self._as_requested(tensor, requested) for tensor in reply.outputs])
        return reply.changed(outputs=outputs)

    def _as_requested(self, tensor: Tensor, requested: Mapping[str, SharedMemoryData]) -> Tensor:
        shared = requested.get(tensor.name)
        if shared is None or not isinstance(tensor.data, SharedMemoryData):
            return tensor
        return with_data(
            tensor, SharedMemoryData(shared.region, shared.offset, tensor.data.size_bytes)
        )


def _ignore() -> None: ...


def _merge(replies: Sequence[Sequence[SharedRegion]]) -> tuple[SharedRegion, ...]:
    regions = {region.name: region for reply in reversed(replies) for region in reply}
    return tuple(sorted(regions.values(), key=lambda region: region.name))
