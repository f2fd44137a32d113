"""Refuses calls that the options of a listener do not enable.

A real server without explicit model control responds with UNAVAILABLE to load and unload.

Source: docs/protocols/tensorrt-v1.md, "16. Model control and index".
"""

from typing import Any

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
)
from gateway.ir.errors import Forbidden
from gateway.ir.limits import check_folder_name
from gateway.protocols.trtis.options import TrtisOptions

_CONTROL = (ModelLoadRequest, ModelUnloadRequest)


def check_allowed(call: Call[Any], options: TrtisOptions) -> None:
    """Refuse a call that the listener's options do not allow.

    Raises:
        Forbidden: Model control or the index of models is not enabled.
        InvalidRequest: A model's name is not allowed.
    """
    if isinstance(call, _CONTROL):
        if not options.model_control:
            raise Forbidden(
                "loading and unloading models is not enabled (option model_control)",
                model=call.model,
            )
        check_folder_name(call.model.name if call.model else "")
    if isinstance(call, RepositoryIndexRequest) and not options.repository_index:
        raise Forbidden("the index of models is not enabled (option repository_index)")
