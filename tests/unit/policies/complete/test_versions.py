"""Resolving numeric versions: the meaning of version 1."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.metadata import ModelMetadata
from gateway.policies.complete.policy import Complete, resolve_version
from tests.fakes import ScriptedService


@pytest.mark.parametrize(
    ("version", "versions", "expected"),
    [
        ("1", ("1", "2"), "1"),
        ("1", (), ""),
        ("1", ("v1.2", "v2"), "v1.2"),
        ("1", ("2", "blue"), "blue"),
        ("1", ("2", "3"), "1"),
        ("2", (), "2"),
        ("2", ("v1.2",), "2"),
        ("2", ("1", "2"), "2"),
    ],
)
def test_version_one_may_resolve_to_a_version_without_number(
    version: str, versions: tuple[str, ...], expected: str
) -> None:
    """Version 1 may name a version that is no number; any other number is itself."""
    assert expected == resolve_version(version, versions)


@pytest.mark.parametrize(
    ("needs", "version", "sent"),
    [
        ({Need.NUMERIC_VERSIONS}, "1", "blue"),
        ({Need.NUMERIC_VERSIONS}, "7", "7"),
        ({Need.NUMERIC_VERSIONS}, "", ""),
        (set(), "1", "1"),
    ],
)
async def test_versions_resolve_only_for_callers_with_numeric_versions(
    needs: set[Need], version: str, sent: str
) -> None:
    """A caller that can name any version gets the version that it names."""

    def respond(call: Any) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return ModelMetadata(name="m", versions=("blue",))
        return InferResponse(model=call.model, outputs=())

    inner = ScriptedService(always=respond)
    call = InferRequest(model=ModelRef("m", version), context=Context(needs=frozenset(needs)))
    reply = await Complete(inner, frozenset())(call)
    assert ModelRef("m", sent) == reply.model
