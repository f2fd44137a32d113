from __future__ import annotations

import pytest

from gateway.registry import BACKENDS, PROTOCOLS, backend, load_dotted, protocol


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_of_the_table_exists(name: str) -> None:
    """A name in the table is a protocol of that name with at least one carrier."""
    spec = protocol(name)
    assert name == spec.name
    assert spec.http or spec.grpc or spec.stream


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_of_the_table_exists(name: str) -> None:
    """A name in the table is a function of a plan."""
    assert callable(backend(name))


def test_an_unknown_name_lists_those_there_are() -> None:
    """The error names what was asked for and what there is."""
    with pytest.raises(LookupError, match=r"unknown protocol .nope.; expected one of .*oip"):
        protocol("nope")


def test_a_dotted_name_is_loaded() -> None:
    """A protocol from outside the tree is found by its dotted name."""
    assert "oip" == protocol("gateway.protocols.oip:SPEC").name


def test_a_dotted_name_must_be_a_protocol() -> None:
    """Something else under a dotted name is refused."""
    with pytest.raises(LookupError, match="is a dict; expected a ProtocolSpec"):
        protocol("gateway.registry:PROTOCOLS")


@pytest.mark.parametrize(
    ("dotted", "reason"), [("gateway.nope:x", "cannot import"), ("gateway.registry:nope", "has no")]
)
def test_a_broken_dotted_name_says_why(dotted: str, reason: str) -> None:
    """A missing module and a missing attribute each say so."""
    with pytest.raises(LookupError, match=reason):
        load_dotted(dotted)
