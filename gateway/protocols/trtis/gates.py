"""Calls that a listener does not pass on unless it is told to.

Refused in the protocol's own words: a real server without explicit control is UNAVAILABLE for
load and unload, and one where nothing is registered knows no region.

Source: dossier, sections 6 and 7.
"""

from __future__ import annotations

from typing import Any

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.errors import Forbidden, Unsupported
from gateway.ir.tensor import RequestedOutput
from gateway.protocols.trtis.errors import RegionNotFound
from gateway.protocols.trtis.header import InferHeader, InputEntry
from gateway.protocols.trtis.options import TrtisOptions

_CONTROL = (ModelLoadRequest, ModelUnloadRequest)
_SHARED = (SharedRegisterRequest, SharedUnregisterRequest, SharedStatusRequest)


def check_allowed(call: Call[Any], options: TrtisOptions) -> None:
    """Refuse a call that the listener's options do not allow.

    Raises:
        Forbidden: Models are not controlled here, or there is no index.
        Unsupported: There is no shared memory.
    """
    if isinstance(call, _CONTROL) and not options.model_control:
        raise Forbidden(
            "loading and unloading models is not enabled here (option model_control)",
            model=call.model,
        )
    if isinstance(call, RepositoryIndexRequest) and not options.repository_index:
        raise Forbidden("the index of models is not enabled here (option repository_index)")
    if isinstance(call, _SHARED) and options.shared_memory == "off":
        raise Unsupported("shared memory is not enabled here (option shared_memory)")


def check_regions(header: InferHeader, options: TrtisOptions) -> None:
    """Refuse an inference with tensors in shared memory where there is none.

    Raises:
        RegionNotFound: Naming the region.
    """
    if options.shared_memory != "off":
        return
    entries: tuple[InputEntry | RequestedOutput, ...] = (*header.inputs, *header.outputs)
    for entry in entries:
        if entry.shared is not None:
            raise RegionNotFound(
                f"no region of shared memory is registered as {entry.shared.region!r}, which "
                f"{entry.name!r} names: shared memory is not enabled here (option shared_memory)"
            )
