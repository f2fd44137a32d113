from __future__ import annotations

import pytest

from gateway.registry import BACKENDS, PROTOCOLS, backend, load_dotted, protocol


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_of_the_table_exists(name: str) -> None:
    """Each name loads a protocol of that name with at least one carrier."""
    spec = protocol(name)
    assert name == spec.name
    assert spec.http or spec.grpc or spec.stream


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_of_the_table_exists(name: str) -> None:
    """Each name loads a function."""
    assert callable(backend(name))


def test_an_unknown_name_lists_the_known_ones() -> None:
    """The error has the unknown name and all valid ones."""
    with pytest.raises(LookupError, match=r"unknown protocol .nope.; expected one of .*oip"):
        protocol("nope")


def test_a_dotted_name_is_loaded() -> None:
    """A protocol outside of the package is found by its dotted name."""
    assert "oip" == protocol("gateway.protocols.oip:SPEC").name


def test_a_dotted_name_must_be_a_protocol() -> None:
    """Any other object is rejected."""
    with pytest.raises(LookupError, match="is a dict; expected a ProtocolSpec"):
        protocol("gateway.registry:PROTOCOLS")


@pytest.mark.parametrize(
    ("dotted", "reason"), [("gateway.nope:x", "cannot import"), ("gateway.registry:nope", "has no")]
)
def test_an_invalid_dotted_name_reports_the_cause(dotted: str, reason: str) -> None:
    """The module or the attribute is missing."""
    with pytest.raises(LookupError, match=reason):
        load_dotted(dotted)
