"""Keys of models that may hold a version, and which model each means."""

from __future__ import annotations

import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    RepositoryIndexRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelMetadata, ModelState, RepositoryEntry
from gateway.routing.model_keys import ModelKeyIndex, ResolveModelKeys
from tests.fakes import FakeClock, ScriptedService

ENTRIES = tuple(
    RepositoryEntry(name, version, ModelState.READY)
    for name, version in (
        ("simple", "1"),
        ("simple", "2"),
        ("a-b", "2-rc"),
        ("resnet-50", ""),
        ("x", "1"),
        ("x-1", "7"),
    )
)


def key_index(
    *indexes: tuple[RepositoryEntry, ...], clock: FakeClock | None = None
) -> ModelKeyIndex:
    index = ScriptedService(*(indexes or (ENTRIES,)))
    return ModelKeyIndex(index, lambda name: name != "nobody", clock=clock or FakeClock())


@pytest.mark.parametrize(
    ("key", "model"),
    [
        ("simple", ModelRef("simple")),
        ("simple-1", ModelRef("simple", "1")),
        ("simple-3", ModelRef("simple", "3")),  # a version the router may refuse, by its name
        ("simple-beta", ModelRef("simple", "beta")),
        ("a-b-2-rc", ModelRef("a-b", "2-rc")),
        ("a-b", ModelRef("a-b")),
        ("resnet-50", ModelRef("resnet-50")),
        ("resnet-50-1", ModelRef("resnet-50", "1")),
        ("x-1", ModelRef("x", "1")),  # a whole key before a plain name
        ("x-1-7", ModelRef("x-1", "7")),
        ("new-1.0", ModelRef("new", "1.0")),
        ("brand-new", ModelRef("brand-new")),
        ("nobody-1", ModelRef("nobody-1")),
        ("-1", ModelRef("-1")),
        ("simple-", ModelRef("simple-")),
    ],
)
async def test_keys_resolve_to_name_and_version(key: str, model: ModelRef) -> None:
    """A listed key precedes a listed name, and both the last "-" of an unlisted key."""
    assert model == await key_index().find(key)


async def test_a_key_without_a_dash_needs_no_index() -> None:
    """Most names contain no "-"."""
    index = ScriptedService()
    assert ModelRef("m") == await ModelKeyIndex(index, lambda _name: True).find("m")
    assert [] == index.calls


async def test_an_unknown_key_refreshes_the_index() -> None:
    """The index is requested again at most once a second."""
    clock = FakeClock()
    listed = (RepositoryEntry("late-x", "", ModelState.READY),)
    finds = key_index((), listed, clock=clock)
    assert ModelRef("late", "9") == await finds.find("late-9")
    assert ModelRef("late-x") == await finds.find("late-x")  # as well a name, listed or not
    clock.advance(1.0)
    assert ModelRef("late-x", "9") == await finds.find("late-x-9")


async def test_known_keys_are_cached() -> None:
    """The index is not requested for every call."""
    clock = FakeClock()
    index = ScriptedService(ENTRIES, ())
    finds = ModelKeyIndex(index, lambda _name: True, clock=clock)
    for _ in range(3):
        clock.advance(1.0)
        assert ModelRef("simple", "1") == await finds.find("simple-1")
    assert [RepositoryIndexRequest] == [type(call) for call in index.calls]
    clock.advance(5.0)
    await finds.find("simple-1")
    assert 2 == len(index.calls)


REPLY = InferResponse(model=ModelRef("simple"), outputs=())
METADATA = ModelMetadata(name="simple-1")


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (InferRequest(model=ModelRef("simple-1")), ModelRef("simple", "1")),
        (InferRequest(model=ModelRef("simple-1", "2")), ModelRef("simple-1", "2")),
        (ModelMetadataRequest(model=ModelRef("simple-1")), ModelRef("simple-1")),
    ],
    ids=["key", "version", "metadata"],
)
async def test_only_inferences_without_a_version_have_keys(
    call: Call[object], expected: ModelRef
) -> None:
    """Metadata calls use the plain name, and an explicit version is kept."""
    inner = ScriptedService(REPLY)
    await ResolveModelKeys(inner, key_index())(call)
    assert [expected] == [seen.model for seen in inner.calls]


async def test_the_request_of_a_stream_is_resolved_too() -> None:
    """Stream and request have the same name and version."""
    inner = ScriptedService(REPLY)
    request = InferRequest(model=ModelRef("simple-1"))
    await ResolveModelKeys(inner, key_index())(
        StreamInferRequest(model=request.model, request=request)
    )
    (seen,) = inner.calls
    assert isinstance(seen, StreamInferRequest)
    assert (ModelRef("simple", "1"), ModelRef("simple", "1")) == (seen.model, seen.request.model)
