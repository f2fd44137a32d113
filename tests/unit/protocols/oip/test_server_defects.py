"""The table of known weaknesses: affected servers, a test for each row, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip.server_defects import (
    CANCELLED_CALLS,
    WEAKNESSES,
    ends_at_empty_classes,
    weakness_lines,
    weaknesses_of,
    withholds_before,
)
from schemas.protection import PAGE, page_text

INTEROP = Path(__file__).parents[3] / "interop"


@pytest.mark.parametrize(
    ("name", "version", "affected"),
    [
        ("triton", "2.51.0", True),
        ("triton", "2.58.9", True),
        ("triton", "2.9.0", True),
        ("triton", "2.59.0", False),
        ("triton", "3.0", False),
        ("Triton", "2.51.0", True),
        ("triton", "nightly", True),
        ("tensor-gateway", "0.1", False),
        ("mlserver", "1.7.1", False),
    ],
)
def test_server_versions_are_compared_with_the_repair(
    name: str, version: str, affected: bool
) -> None:
    """A version that cannot be parsed counts as old."""
    server = ServerMetadata(name, version)
    assert affected == CANCELLED_CALLS.affects(server)
    assert affected == withholds_before(server)
    assert affected == (CANCELLED_CALLS in weaknesses_of(server))


def test_cancellation_is_withheld_from_unknown_servers() -> None:
    """A server may be an old one until its version is known."""
    assert withholds_before(None)


@pytest.mark.parametrize(
    ("server", "carrier", "ends"),
    [
        (ServerMetadata("triton", "2.51.0"), "http", True),
        (ServerMetadata("triton", "2.51.0"), "grpc", False),
        (ServerMetadata("mlserver", "1.7.1"), "http", False),
        (None, "http", True),
        (None, "grpc", False),
    ],
)
def test_empty_classifications_crash_triton_over_http(
    server: ServerMetadata | None, carrier: str, ends: bool
) -> None:
    """An unknown server may be a Triton."""
    assert ends == ends_at_empty_classes(server, carrier)


def test_each_weakness_has_an_interop_test() -> None:
    """The test confirms the weakness with a real server."""
    pages = [page.read_text("utf-8") for page in INTEROP.glob("test_shield*.py")]
    named = set(re.findall(r"""["'](\w+)["']""", "".join(pages)))
    assert [] == [row.name for row in WEAKNESSES if row.name not in named]
    assert len({row.name for row in WEAKNESSES}) == len(WEAKNESSES)


def test_the_page_is_current() -> None:
    """The page in docs is generated from the table (make regenerate writes it)."""
    assert page_text(WEAKNESSES) == PAGE.read_text("utf-8")


@pytest.mark.parametrize(
    ("carrier", "withheld", "end"),
    [
        (
            "grpc",
            True,
            "; cancellation is withheld: the call ends by itself, and its reply is dropped",
        ),
        ("grpc", False, "; cancellation is forwarded: use `cancellation: auto`"),
        ("http", True, None),
    ],
)
def test_each_weakness_of_a_server_is_one_line(
    carrier: str, withheld: bool, end: str | None
) -> None:
    """The line has the version of the server and the repaired version."""
    server = ServerMetadata("triton", "2.51.0")
    lines = weakness_lines(server, carrier, withheld=withheld)
    cancelled = [line for line in lines if "server 7368, 8034, repaired in 2.59.0" in line]
    assert [] == [line for line in lines if not line.startswith("triton 2.51.0: ")]
    assert ([] if end is None else [end]) == [line[line.index(";") :] for line in cancelled]
    expected = [row for row in weaknesses_of(server) if row.carrier in ("", carrier)]
    assert len(expected) == len(lines)
    assert [] == weakness_lines(ServerMetadata("ovms", "1"), carrier, withheld=withheld)
