"""CloudEvents of KServe V1: requests that are events, and replies to them.

Source: docs/protocols/tensorflow-serving.md, "10. KServe V1"; CloudEvents 1.0, HTTP binding.
"""

import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

import orjson
from msgspec import Struct

from gateway.protocols.tfs.options import TfsOptions
from gateway.wire.http import Headers

STRUCTURED_TYPE: Final = "application/cloudevents+json"
_VERSION: Final = "1.0"
_BINARY: Final = ("ce-specversion", "ce-id", "ce-source", "ce-type")
EVENT_HEADERS: Final = (*_BINARY, "ce-time")
"""The attributes of an event that are headers."""
_ATTRIBUTES: Final = frozenset({"specversion", "id", "source", "type", "time", "data"})


class CloudEventForm(Struct, frozen=True):
    """The form of the reply to an event.

    Attributes:
        is_structured: The reply is one object that has all of the event; otherwise its attributes
            are headers.
    """

    is_structured: bool


def event_form(headers: Headers, content_type: str) -> CloudEventForm | None:
    """Return the form of the reply to a request; None for a plain reply."""
    if content_type == STRUCTURED_TYPE:
        return CloudEventForm(is_structured=True)
    if all(headers.get(name) is not None for name in _BINARY):
        return CloudEventForm(is_structured=False)
    return None


def is_event(members: Mapping[str, Any]) -> bool:
    """Return whether a document is a whole event, whose `data` is the request."""
    return members.keys() >= _ATTRIBUTES


def reply_event(
    form: CloudEventForm, body: bytes, model: str, options: TfsOptions
) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Return the headers and the body of a reply that is an event.

    Args:
        form: What the request asked for.
        body: The JSON of the reply.
        model: Name of the model.
        options: The options of the listener.
    """
    attributes = {
        "specversion": _VERSION,
        "id": str(uuid.uuid4()),
        "source": options.event_source.replace("{model}", model),
        "type": options.event_type,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if not form.is_structured:
        return tuple([(f"ce-{key}", value) for key, value in attributes.items()]), body
    document = {**attributes, "datacontenttype": "application/json", "data": orjson.Fragment(body)}
    return (), orjson.dumps(document)
