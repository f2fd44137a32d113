"""The context of an Open Inference message over HTTP, and the codec's name and needs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from gateway.ir.context import Context, Need, Origin
from gateway.protocols.oip.json.binary_tensors import told_length
from gateway.wire.http import Headers, HttpRequest
from gateway.wire.metadata import http_context, sender_metadata

NAME: Final = "oip.http"
NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def context_of(wire: HttpRequest, form: Any) -> Context:
    """Return the context of a client's message; *form* is kept for the response."""
    return http_context(wire, NAME, NEEDS, form)


class Fields(NamedTuple):
    """The parsed header fields of an inference request.

    Attributes:
        metadata: All of them, names in lower case.
        request_id: The client's; "" for none.
        json_bytes: Length of the JSON; None for that of the whole body.
    """

    metadata: tuple[tuple[str, str], ...]
    request_id: str
    json_bytes: int | None


def fields_of(headers: Headers) -> Fields:
    """Parse the header fields of an inference request.

    Raises:
        MalformedMessage: The length of the JSON is not a number.
    """
    return Fields(*sender_metadata(headers), told_length(headers))


def inference_context(
    wire: HttpRequest, fields: Fields, form: Any, request_id: str, *, has_bytes: bool = False
) -> Context:
    """Return the context of an inference with parsed *fields*; as `context_of`.

    Args:
        wire: The request.
        fields: Its own.
        form: Kept for the response.
        request_id: For a request without an id of the client.
        has_bytes: As in `Origin`.
    """
    metadata, found, _ = fields
    origin = Origin(NAME, wire, form, has_bytes)
    return Context(
        NAME, metadata, found or request_id, wire.deadline, None, NEEDS, origin, wire.client
    )
