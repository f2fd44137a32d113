"""Tests of redaction: names of shared-memory segments stay out of error texts."""

from __future__ import annotations

import pytest

from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import UpstreamError
from gateway.ir.redaction import redact, redacted_error

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
def test_names_of_segments_are_left_out(text: str, expected: str) -> None:
    """Whatever form they have, also where the text was cut within one."""
    assert expected == redact(text)


def test_an_error_with_a_name_loses_its_wire_form() -> None:
    """The wire form has the name too."""
    error = UpstreamError(POOL, model=ModelRef("m"), origin=Origin("oip.http", "wire"))
    redacted = redacted_error(error)
    assert type(redacted) is UpstreamError
    assert redact(POOL) == redacted.message == str(redacted)
    assert Origin("", None) == redacted.origin
    assert ModelRef("m") == redacted.model


def test_an_error_without_a_name_stays_itself() -> None:
    """Nothing is copied."""
    error = UpstreamError("no", origin=Origin("oip.http", "wire"))
    assert error is redacted_error(error)
