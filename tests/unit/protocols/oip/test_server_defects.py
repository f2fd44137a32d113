"""The table of known defects: affected servers, a test for each row, and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.api.protocol import DefectKind
from gateway.app.build.server_identity import defect_lines
from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip import SPEC
from gateway.protocols.oip.server_defects import CANCELLED_CALLS, DEFECTS
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
    assert affected == SPEC.may_have(DefectKind.CANCELLED_CALLS, server, "grpc")


def test_cancellation_is_withheld_from_unknown_servers() -> None:
    """A server may be an old one until its version is known."""
    assert SPEC.may_have(DefectKind.CANCELLED_CALLS, None, "grpc")


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
    assert ends == SPEC.may_have(DefectKind.EMPTY_CLASSES, server, carrier)


def test_each_defect_has_an_interop_test() -> None:
    """The test confirms the weakness with a real server."""
    pages = [page.read_text("utf-8") for page in INTEROP.glob("test_shield*.py")]
    named = set(re.findall(r"""["'](\w+)["']""", "".join(pages)))
    assert [] == [row.name for row in DEFECTS if row.name not in named]
    assert len({row.name for row in DEFECTS}) == len(DEFECTS)


def test_the_page_is_current() -> None:
    """The page in docs is generated from the table (make regenerate writes it)."""
    assert page_text(DEFECTS) == PAGE.read_text("utf-8")


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
    lines = list(defect_lines(SPEC, server, carrier, withheld=withheld))
    cancelled = [line for line in lines if "server 7368, 8034, repaired in 2.59.0" in line]
    assert [] == [line for line in lines if not line.startswith("triton 2.51.0: ")]
    assert ([] if end is None else [end]) == [line[line.index(";") :] for line in cancelled]
    expected = [row for row in DEFECTS if row.affects(server, carrier)]
    assert len(expected) == len(lines)
    other = ServerMetadata("ovms", "1")
    assert [] == list(defect_lines(SPEC, other, carrier, withheld=withheld))
