"""TritonNames: the sum over servers and processes, and the page under Triton's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed

from gateway.ir.statistics import Duration, InferStatistics, ModelStatistics
from gateway.telemetry import names
from gateway.telemetry.exposition import write_page
from gateway.telemetry.usage.triton_names import TritonNames, counters_of, rows_of

SUCCESS = names.TRITON_SUCCESS.name
PENDING = names.TRITON_PENDING.name


def statistics(calls: int, version: str = "1") -> ModelStatistics:
    """Return those of a model that took 3 us for each call."""
    times = InferStatistics(success=Duration(calls, 3000 * calls), fail=Duration(2, 10))
    return ModelStatistics(name="m", version=version, inference_count=calls, inference=times)


def server(calls: int, endpoint: str = "a", **other: Any) -> dict[str, Any]:
    """Return what an endpoint told."""
    return {
        "upstream": "t",
        "endpoint": endpoint,
        "is_stale": False,
        "counters": list(rows_of(counters_of(statistics(calls), is_cached=False))),
        "pending": None,
        "instances": [["m", "1", 1]],
        **other,
    }


def document(*servers: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    """Return what a process tells."""
    found = {"own": [], "pending": [], "arrived": {}, "sent": {}, "servers": list(servers)}
    return found | other


def value(metrics: Iterable[Metric], name: str, **labels: str) -> float:
    (found,) = [
        sample.value
        for metric in metrics
        for sample in metric.samples
        if sample.name == name and sample.labels.items() >= labels.items()
    ]
    return found


async def test_a_server_that_starts_again_leaves_no_counter_lower() -> None:
    """What it counted before is added to what it counts since."""
    found = TritonNames()
    for calls, total in ((5, 5), (7, 7), (1, 8), (3, 10)):
        found.update("process", document(server(calls)))
        assert total == value(await found.collect(), SUCCESS, model="m", version="1")


async def test_an_endpoint_that_is_gone_keeps_what_it_counted() -> None:
    """One that comes back goes on, and counts nothing twice."""
    found = TritonNames()
    found.update("process", document(server(5), server(4, "b")))
    found.update("process", document(server(6)))
    assert 10 == value(await found.collect(), SUCCESS)
    found.update("process", document(server(6), server(9, "b")))
    assert 15 == value(await found.collect(), SUCCESS)


async def test_many_endpoints_that_are_gone_keep_their_sum() -> None:
    """The memory for endpoints that change their addresses is bounded, and the sum is not."""
    found = TritonNames()
    for number in range(3000):
        found.update("process", document(server(1, str(number))))
    assert 3000 == value(await found.collect(), SUCCESS)


async def test_processes_are_added_and_servers_are_not() -> None:
    """Workers have the same servers, and one of them asks; each has calls of its own."""
    own = list(rows_of(counters_of(statistics(3, "7"), {"BACKEND": 1}, is_cached=False)))
    found = TritonNames()
    for worker, servers in (("one", [server(5)]), ("other", None)):
        found.update(worker, {**document(), "own": own, "servers": servers})
    metrics = list(await found.collect())
    assert (5, 6) == tuple(value(metrics, SUCCESS, version=each) for each in "17")
    await found.process_ended("other")
    found.update("third", document(own=own, servers=None))
    assert 9 == value(await found.collect(), SUCCESS, version="7")
    failure = names.TRITON_FAILURE.name
    assert 3 == value(await found.collect(), failure, version="7", reason="BACKEND")
    assert 2 == value(await found.collect(), failure, version="1", reason="OTHER")


async def test_pending_is_what_waits_here_and_beyond_the_instances() -> None:
    """Over two workers and two endpoints of one instance each: 4 wait here, 5 - 2 at the server."""
    found = TritonNames()
    servers = [server(0), server(0, "b")]
    found.update("one", document(*servers, arrived={"m": 6}, sent={"t": {"m": 3}}))
    found.update("other", document(arrived={"m": 3}, sent={"t": {"m": 2}}, servers=None))
    assert 4 + 3 == value(await found.collect(), PENDING, model="m", version="1")


async def test_pending_of_a_page_replaces_the_estimate() -> None:
    """Pages of two endpoints are added."""
    found = TritonNames()
    pages = [server(0, each, pending=[["m", "1", 2]]) for each in "ab"]
    found.update("one", document(*pages, arrived={"m": 9}))
    assert 4 == value(await found.collect(), PENDING, model="m", version="1")


async def test_one_stale_endpoint_makes_the_upstream_stale() -> None:
    """There is one gauge for each upstream that counts."""
    found = TritonNames()
    found.update("one", document(server(0), server(0, "b", is_stale=True)))
    assert 1 == value(await found.collect(), names.COMPAT_STALE.name, upstream="t")


async def test_counters_keep_their_names_in_each_format() -> None:
    """They have no `_total`: counters in the text format, unknown in OpenMetrics."""
    found = TritonNames()
    found.update("one", document(server(3)))
    text = (await write_page(await found.collect(), ""))[0].decode()
    assert f"# TYPE {SUCCESS} counter" in text
    assert f'{SUCCESS}{{model="m",version="1"}} 3.0' in text
    assert f"# TYPE {PENDING} gauge" in text
    other = (await write_page(await found.collect(), "application/openmetrics-text"))[0].decode()
    families = {family.name: family.type for family in parsed(other)}  # type: ignore[no-untyped-call]  # half typed
    assert ("unknown", "gauge") == (families[SUCCESS], families[PENDING])


def test_only_models_with_a_cache_have_its_counters() -> None:
    """Nanoseconds become microseconds."""
    times = InferStatistics(cache_hit=Duration(2, 5000), cache_miss=Duration(1, 3000))
    cached = counters_of(ModelStatistics(name="m", inference=times), is_cached=True)
    assert 5 == cached[names.TRITON_CACHE_HIT_DURATION.name, "m", "", ""]
    assert 1 == cached[names.TRITON_CACHE_MISSES.name, "m", "", ""]
    plain = counters_of(ModelStatistics(name="m"), is_cached=False)
    assert len(cached) == len(plain) + 4
