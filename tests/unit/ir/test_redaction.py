"""Tests of redaction: names of shared-memory segments stay out of error texts."""

from __future__ import annotations

from time import process_time

import pytest

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import GatewayError, InvalidRequest, Unavailable, UpstreamError
from gateway.ir.redaction import brief_error, redact, redacted_error, without_addresses

# Triton 2.51.0's own words.
POOL = (
    "Failed to increase the shared memory pool size for key "
    "'triton_python_backend_shm_region_c765b9e6-24a1' to 1048576 bytes."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            POOL,
            "Failed to increase the shared memory pool size for key '...' to 1048576 bytes.",
        ),
        ("pool size for key 'srv8000c765", "pool size for key '...'"),
        ("cannot open /dev/shm/srv8000abc: gone", "cannot open ... gone"),
        ("region triton_python_backend_shm_region_a-1.b is", "region ... is"),
        ("unexpected key in the request", "unexpected key in the request"),
    ],
)
def test_names_of_segments_are_redacted(text: str, expected: str) -> None:
    """Names of any form are redacted, also where the text was cut within one."""
    assert expected == redact(text)


def test_redacted_error_loses_its_wire_form() -> None:
    """The wire form contains the name, too."""
    error = UpstreamError(POOL, model=ModelRef("m"), origin=Origin("oip.http", "wire"))
    redacted = redacted_error(error)
    assert type(redacted) is UpstreamError
    assert redact(POOL) == redacted.message == str(redacted)
    assert Origin("", None) == redacted.origin
    assert ModelRef("m") == redacted.model


def test_error_without_a_name_is_returned_unchanged() -> None:
    """The error is not copied."""
    error = UpstreamError("no", origin=Origin("oip.http", "wire"))
    assert error is redacted_error(error)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (UpstreamError("ValueError: secret"), "the model failed at its server; the log of the"),
        (InvalidRequest("InvalidInput : no x"), "no x"),
        (InvalidRequest("pkg.mod.OddError: shape"), "shape"),
        (InvalidRequest("Error: shape"), "Error: shape"),
        (InvalidRequest("no Input: a ValueError : b"), "no Input: a b"),
        (InvalidRequest("unexpected shape for input 'Error: x'"), "unexpected shape for input '"),
    ],
)
def test_brief_errors(error: GatewayError, text: str) -> None:
    """A failure loses its text, and other errors lose their class; the code stays."""
    error.origin = Origin("oip.http", None)
    brief = brief_error(error)
    assert brief.message.startswith(text)
    assert (type(error), brief.message == error.message) == (type(brief), brief is error)
    assert (brief.origin is error.origin) == (brief is error)


@pytest.mark.parametrize("name", ["A", "a.", "a_", "Error"])
def test_a_long_error_text_blocked_the_event_loop(name: str) -> None:
    """A server may repeat the data of a client in its error: 8 KiB took seconds."""
    started = process_time()
    error = InvalidRequest(name * 20_000, origin=Origin("oip.grpc", None))
    assert error is brief_error(error)
    assert process_time() - started < 1


def test_errors_of_the_gateway_are_not_shortened() -> None:
    """They contain no details of a server."""
    error = UpstreamError("ValueError: ours")
    assert error is brief_error(error)


@pytest.mark.parametrize(
    ("text", "public_text"),
    [
        (
            "cannot connect to upstream 127.0.0.1:9: Connect call failed ('127.0.0.1', 9)",
            "cannot connect to upstream ...: Connect call failed ...",
        ),
        ("no response from triton.prod:8001 in time", "no response from ... in time"),
        ("endpoint 'oip+grpc://[::1]:8001' does not respond", "endpoint '...' does not respond"),
        ("unix:/run/model.sock broke the connection", "... broke the connection"),
        ("[::1]:8001 refused ('::1', 8001, 0, 0)", "... refused ..."),
        ("12 requests are in flight, at most 12: none ended", None),
    ],
)
def test_addresses_of_servers_are_redacted(text: str, public_text: str | None) -> None:
    """Clients see no address of a server, in any form; the class of the error stays."""
    error = Unavailable(text)
    found = without_addresses(error)
    assert (public_text or text) == found.message
    assert type(found) is Unavailable
    assert (public_text is None) == (found is error)


@pytest.mark.parametrize("name", ["a-", "-", "a", "a.", "1.", "+", "('", "[1"])
def test_a_long_output_name_blocked_the_event_loop(name: str) -> None:
    """A requested output of 1 KiB took 1.3 s, and the time grew with the third power."""
    started = process_time()
    error = Unavailable(f"response lacks the requested output '{name * 2048}'")
    assert error is without_addresses(error)
    assert process_time() - started < 1


def test_errors_of_servers_and_requests_keep_addresses() -> None:
    """A server's own reply, and an error about the request, are unchanged."""
    reply = Unavailable("at 10.0.0.1:80", origin=Origin("oip.http", None))
    request = InvalidRequest("unknown option http://10.0.0.1:80")
    assert (reply, request) == (without_addresses(reply), without_addresses(request))
