"""The context of a TensorRT v1 message over HTTP, and the codec's name and needs."""

from typing import Any, Final

from gateway.ir.context import Context, Need
from gateway.protocols.trtis.infer_response import CALLER_NEEDS, REPLY_NEEDS
from gateway.wire.heads.metadata import http_context
from gateway.wire.http import HttpRequest

NAME: Final = "trtis.http"
NEEDS: Final = REPLY_NEEDS | {Need.OUTPUTS}

REQUEST, RESPONSE, STATUS = "NV-InferRequest", "NV-InferResponse", "NV-Status"

OWN: Final = "nv-"
"""Prefix of the headers that this protocol writes itself."""


def context_of(wire: HttpRequest, form: Any) -> Context:
    """Return the context of a client's message; *form* is kept for the response."""
    return http_context(wire, NAME, CALLER_NEEDS, form, has_bytes=False)
