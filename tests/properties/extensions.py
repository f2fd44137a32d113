"""Drawn calls of Open Inference's extensions, and replies to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gateway.ir.calls import (
    Call,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.metadata import ModelConfiguration, SharedRegion
from gateway.ir.statistics import (
    BatchStatistics,
    Duration,
    InferStatistics,
    MemoryUsage,
    ModelStatistics,
    ResponseStatistics,
)

EXTENSIONS: frozenset[type[Call[Any]]] = frozenset(
    {
        LogSettingsRequest,
        ModelConfigRequest,
        ModelLoadRequest,
        ModelStatisticsRequest,
        ModelUnloadRequest,
        SharedRegisterRequest,
        SharedStatusRequest,
        SharedUnregisterRequest,
        TraceSettingRequest,
    }
)

_COUNTS = st.integers(0, (1 << 64) - 1)
_SIZES = st.integers(0, (1 << 63) - 1)
_DURATIONS = st.builds(Duration, _COUNTS, _COUNTS)
_WORDS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=8)
# A model that is loaded or unloaded has the plain name of a folder.
_FOLDERS = st.sampled_from(["x", "INPUT0", "a-b_c.d"]) | _WORDS
_LOGGED: SearchStrategy[Any] = st.booleans() | st.integers(0, (1 << 32) - 1) | _WORDS
_BATCHES = st.builds(BatchStatistics, compute_infer=_DURATIONS, compute_output=_DURATIONS)
_FILES = st.sampled_from(["file:1/model.onnx", "file:labels.txt"])


def extension_calls(
    kind: type[Call[Any]], names: SearchStrategy[str], versions: SearchStrategy[str]
) -> SearchStrategy[Any]:
    """Draw a call of *kind*, one of `EXTENSIONS`."""
    models = st.builds(ModelRef, names, versions)
    bare = st.builds(ModelRef, names)
    folders = st.builds(ModelRef, _FOLDERS)
    drawn: dict[type[Call[Any]], SearchStrategy[Any]] = {
        ModelConfigRequest: st.builds(ModelConfigRequest, model=models),
        ModelStatisticsRequest: st.builds(ModelStatisticsRequest, model=st.none() | models),
        ModelLoadRequest: st.builds(ModelLoadRequest, model=folders, parameters=_loading()),
        ModelUnloadRequest: st.builds(ModelUnloadRequest, model=folders, dependents=st.booleans()),
        TraceSettingRequest: st.builds(
            TraceSettingRequest, model=st.none() | bare, changes=_traced(0)
        ),
        LogSettingsRequest: st.builds(
            LogSettingsRequest, changes=st.dictionaries(_WORDS, _LOGGED, max_size=3)
        ),
        SharedRegisterRequest: st.builds(SharedRegisterRequest, region=_system() | _cuda()),
        SharedUnregisterRequest: st.builds(
            SharedUnregisterRequest, region=_WORDS | st.just(""), is_cuda=st.booleans()
        ),
        SharedStatusRequest: st.builds(SharedStatusRequest, is_cuda=st.booleans()),
    }
    return drawn[kind]


def extension_replies(call: Call[Any]) -> SearchStrategy[Any]:
    """Draw a reply to *call*."""
    if isinstance(call, ModelConfigRequest):
        sizes = st.integers(0, (1 << 31) - 1)
        return st.builds(
            lambda name, size: ModelConfiguration({"name": name, "max_batch_size": size}),
            _WORDS,
            sizes,
        )
    if isinstance(call, ModelStatisticsRequest):
        return st.lists(_statistics(), max_size=3).map(tuple)
    if isinstance(call, TraceSettingRequest):
        return _traced(1)
    if isinstance(call, LogSettingsRequest):
        return st.dictionaries(_WORDS, _LOGGED, max_size=5)
    if isinstance(call, SharedStatusRequest):
        regions = _listed() if call.is_cuda else _system()
        return st.lists(regions, max_size=3, unique_by=lambda region: region.name).map(
            lambda found: tuple(sorted(found, key=lambda region: region.name))
        )
    return st.none()


def _loading() -> SearchStrategy[Any]:
    others = st.dictionaries(_WORDS.filter(lambda word: word != "config"), _LOGGED, max_size=2)
    files = st.dictionaries(_FILES, st.binary(max_size=9), max_size=2)
    config = st.sampled_from([{}, {"config": '{"max_batch_size": 4}'}])
    return st.builds(
        lambda *parts: {k: v for part in parts for k, v in part.items()}, config, files, others
    )


def _traced(least: int) -> SearchStrategy[Any]:
    values = st.lists(_WORDS, min_size=least, max_size=3).map(tuple)
    return st.dictionaries(_WORDS | st.just("trace_level"), values, max_size=3)


def _system() -> SearchStrategy[SharedRegion]:
    return st.builds(SharedRegion, name=_WORDS, key=_WORDS, offset=_SIZES, size_bytes=_SIZES)


def _listed() -> SearchStrategy[SharedRegion]:
    return st.builds(SharedRegion, name=_WORDS, device=st.integers(0, 64), size_bytes=_SIZES)


def _cuda() -> SearchStrategy[SharedRegion]:
    handle = st.binary(min_size=64, max_size=64)
    return st.builds(
        SharedRegion, name=_WORDS, device=st.integers(0, 64), size_bytes=_SIZES, handle=handle
    )


def _statistics() -> SearchStrategy[ModelStatistics]:
    return st.builds(
        ModelStatistics,
        name=_WORDS,
        version=_WORDS,
        last_inference_ms=_COUNTS,
        inference_count=_COUNTS,
        execution_count=_COUNTS,
        inference=st.builds(InferStatistics, success=_DURATIONS, queue=_DURATIONS),
        batches=st.dictionaries(_COUNTS, _BATCHES, max_size=2),
        memory=st.lists(st.builds(MemoryUsage, _WORDS, st.integers(0, 9), _COUNTS), max_size=2).map(
            tuple
        ),
        responses=st.dictionaries(
            _WORDS, st.builds(ResponseStatistics, fail=_DURATIONS), max_size=2
        ),
    )
