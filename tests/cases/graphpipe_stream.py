"""Calls and answers of GraphPipe over byte streams: those over HTTP, with a size before each."""

from __future__ import annotations

import struct

from tests.cases import graphpipe_http
from tests.cases.graphpipe_http import CallCase, ReplyCase

MODEL = "m/3"


def framed(message: bytes) -> bytes:
    """Put the size of *message* before it."""
    return struct.pack("<I", len(message)) + message


# A stream serves one model, so calls to others cannot be told apart on it.
CALLS: list[CallCase] = [case for case in graphpipe_http.CALLS if case.name == "named"]
REPLIES: list[ReplyCase] = graphpipe_http.REPLIES
