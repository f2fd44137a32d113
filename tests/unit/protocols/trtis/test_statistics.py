"""Tests of counters in ServerStatus: encoded for clients, and decoded from an old server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.calls import ModelStatisticsRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import ModelNotFound
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, ModelStatus, ServerStatus
from gateway.ir.statistics import ZERO, BatchStatistics, Duration, InferStatistics, ModelStatistics
from gateway.protocols.trtis.grpc.codec import GrpcCodec
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.protocols.trtis.options import TrtisOptions
from gateway.protocols.trtis.server_status import write_status
from gateway.protocols.trtis.statistics import read_counters
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.http import Headers, HttpResponse
from tests.cases.trtis_grpc import answer

HTTP: Any = HttpCodec(DEFAULT_LIMITS, {})
GRPC: Any = GrpcCodec(DEFAULT_LIMITS, {})
OLD = pb.ServerStatus()
for name, version in (("m", 1), ("m", 3), ("other", 1)):
    version_status = OLD.model_status[name].version_status[version]
    version_status.model_execution_count, version_status.model_inference_count = (
        5 * version,
        9 * version,
    )
    version_status.last_inference_timestamp_milliseconds = 1234
    for size, runs in ((1, 3), (2, 2)):
        stats = version_status.infer_stats[size]
        stats.success.count, stats.success.total_time_ns = runs, 1000 * runs
        stats.queue.count, stats.queue.total_time_ns = runs, 100 * runs
        stats.compute.count, stats.compute.total_time_ns = runs, 700 * runs
OLD.model_status["m"].version_status[1].infer_stats[2].failed.count = 1


def counters(found: ModelStatistics) -> pb.ModelVersionStatus:
    """Return the encoded status of the one version of a model."""
    metadata = ModelMetadata(name="m", versions=("1",))
    status = ServerStatus(is_ready=True, models=(ModelStatus(metadata, (), (found,)),))
    return write_status(status, TrtisOptions()).model_status["m"].version_status[1]


def ran(count: int, ns: int) -> BatchStatistics:
    return BatchStatistics(compute_infer=Duration(count, ns))


def test_counters_are_encoded_per_version() -> None:
    """Each size has its executions; size 1 has the requests that the server batched."""
    totals: dict[str, Any] = {"last_inference_ms": 77, "inference_count": 12, "execution_count": 5}
    inference, batches = InferStatistics(success=Duration(7, 70)), {2: ran(4, 40), 4: ran(1, 9)}
    found = counters(
        ModelStatistics(name="m", version="1", inference=inference, batches=batches, **totals)
    )
    assert (5, 12) == (found.model_execution_count, found.model_inference_count)
    assert 77 == found.last_inference_timestamp_milliseconds
    sizes = {
        size: (one.compute.count, one.success.count) for size, one in found.infer_stats.items()
    }
    assert {1: (0, 2), 2: (4, 4), 4: (1, 1)} == sizes
    assert pb.MODEL_READY == found.ready_state


def test_counters_of_one_batch_size_have_all_requests() -> None:
    """With one batch size, all requests belong to it."""
    inference = InferStatistics(success=Duration(7, 70), fail=Duration(1, 2), queue=ZERO)
    found = counters(
        ModelStatistics(name="m", version="1", inference=inference, batches={1: ran(7, 40)})
    )
    (stats,) = found.infer_stats.values()
    assert not stats.HasField("queue")
    durations = (stats.success, stats.failed, stats.compute)
    assert [(7, 70), (1, 2), (7, 40)] == [(one.count, one.total_time_ns) for one in durations]


def sums(entry: pb.ModelVersionStatus) -> dict[str, tuple[int, int]]:
    """Return the sums of all sizes, as `perf_client` computes them."""
    stats = entry.infer_stats.values()
    return {
        name: (
            sum(getattr(one, name).count for one in stats),
            sum(getattr(one, name).total_time_ns for one in stats),
        )
        for name in ("success", "failed", "queue")
    }


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.booleans()), max_size=12
    )
)
def test_counters_never_decrease_and_add_up_to_the_servers(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Between two readings, batches of any size may be executed."""
    batches: dict[int, BatchStatistics] = {}
    inference = InferStatistics()
    before: dict[tuple[int, str], tuple[int, int]] = {}
    for size, requests, fails in steps:
        ran = BatchStatistics(compute_infer=Duration(1, 10 * size), compute_input=Duration(1, 1))
        batches[size] = batches.get(size, BatchStatistics()) + ran
        inference += InferStatistics(
            success=Duration(requests, requests * (10 * size + 5)),
            queue=Duration(requests, 3 * requests),
            fail=Duration(int(fails), 2 * fails),
        )
        entry = counters(
            ModelStatistics(name="m", version="1", inference=inference, batches=dict(batches))
        )
        now = {
            (key, name): (getattr(stats, name).count, getattr(stats, name).total_time_ns)
            for key, stats in entry.infer_stats.items()
            for name in ("success", "failed", "queue", "compute")
        }
        for key, (count, ns) in before.items():
            assert count <= now[key][0]
            assert ns <= now[key][1]
        before = now
        for name, total in (
            ("success", inference.success),
            ("failed", inference.fail),
            ("queue", inference.queue),
        ):
            assert (total.count, total.ns) == sums(entry)[name]


def test_statistics_of_another_version_are_not_used() -> None:
    """A version without statistics has no counters."""
    version_status = counters(ModelStatistics(name="m", version="2", inference_count=12))
    assert (0, 0) == (version_status.model_inference_count, len(version_status.infer_stats))


@pytest.mark.parametrize(
    ("model", "versions"),
    [
        (None, [("m", "1"), ("m", "3"), ("other", "1")]),
        (ModelRef("m"), [("m", "1"), ("m", "3")]),
        (ModelRef("m", "3"), [("m", "3")]),
    ],
)
def test_counters_of_an_old_server_are_decoded(
    model: ModelRef | None, versions: list[tuple[str, str]]
) -> None:
    """Requests of all sizes are added up; executions are per size; over both carriers."""
    call = ModelStatisticsRequest(model=model)
    wire = HTTP.encode_call(call)
    assert ("GET", "/api/status/m" if model else "/api/status") == (wire.method, wire.path)
    headers = Headers((("NV-Status", "code: SUCCESS"),))
    found = HTTP.decode_reply(call, HttpResponse(200, headers, (OLD.SerializeToString(),)))
    assert versions == [(one.name, one.version) for one in found]
    message = pb.StatusRequest.FromString(bytes(GRPC.encode_call(call).view))
    assert ("m" if model else "") == message.model_name
    reply = pb.StatusResponse(request_status={"code": pb.SUCCESS}, server_status=OLD)
    assert found == GRPC.decode_reply(call, answer(reply))
    last = found[-1]
    assert (Duration(5, 5000), Duration(5, 500)) == (last.inference.success, last.inference.queue)
    assert Duration(5, 3500) == last.inference.compute_infer
    assert {1: Duration(3, 2100), 2: Duration(2, 1400)} == {
        size: one.compute_infer for size, one in last.batches.items()
    }
    assert 1234 == last.last_inference_ms


def test_counters_of_an_unknown_version_are_not_found() -> None:
    """An unknown version is an error, not a version without counters."""
    with pytest.raises(ModelNotFound, match="m version 2"):
        read_counters(ModelStatisticsRequest(model=ModelRef("m", "2")), OLD, DEFAULT_LIMITS)
