"""The context of an Open Inference message over HTTP, and the codec's name and needs."""

from typing import Any, Final

from gateway.ir.context import Context, Need
from gateway.wire.heads.metadata import http_context
from gateway.wire.http import HttpRequest

NAME: Final = "oip.http"
NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def context_of(wire: HttpRequest, form: Any) -> Context:
    """Return the context of a client's message; *form* is kept for the response."""
    return http_context(wire, NAME, NEEDS, form)
