"""What travels beside an Open Inference message over HTTP, and the codec's name and needs."""

from __future__ import annotations

from typing import Any, Final

from gateway.ir.context import Context, Need
from gateway.wire.beside import http_context
from gateway.wire.http import HttpRequest

NAME: Final = "oip.http"
NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def context_of(wire: HttpRequest, form: Any) -> Context:
    """Return what travels beside a client's message; *form* is noted for the answer."""
    return http_context(wire, NAME, NEEDS, form)
