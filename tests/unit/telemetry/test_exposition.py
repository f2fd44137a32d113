"""The metrics page, in both formats, written in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from gateway.ir.context import Context
from gateway.telemetry import names
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.exposition import PageWriter, write_page
from gateway.telemetry.families import PIECE_SERIES, HistogramFamily
from gateway.telemetry.log.call_log import CallRecord
from gateway.telemetry.metrics import Metrics

OPEN = "application/openmetrics-text; version=1.0.0"
TEXTS = st.text(st.sampled_from('ab\\"\n{},=é\0 '), max_size=5)
NUMBERS = st.floats(allow_subnormal=False) | st.integers(0, 10**9)
COUNTS = st.lists(st.integers(0, 10**7), min_size=3, max_size=3)


class Given(Collector):
    """Has the families that the test gives it."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        """Return them."""
        return self.families


@st.composite
def families(draw: Any) -> list[Metric]:
    """Return a family of each kind."""
    found: list[Metric] = []
    for kind, ending in (("counter", "_total"), ("gauge", ""), ("info", "_info")):
        family = Metric(f"a_{kind}", draw(TEXTS), kind)
        for value in draw(st.lists(TEXTS, unique=True, max_size=3)):
            labels = {"model": value, "route": draw(TEXTS)}
            family.add_sample(family.name + ending, labels, draw(NUMBERS))
        found.append(family)
    histogram = HistogramFamily("a_time", draw(TEXTS), ("kind", "model"), ("0.1", "2.0", "+Inf"))
    for value in draw(st.lists(TEXTS, unique=True, max_size=3)):
        places = draw(st.lists(st.integers(0, 2), max_size=2))
        exemplars = {each: Exemplar({"trace_id": "ab"}, 0.5, 12.25) for each in places}
        numbers = [*draw(COUNTS), draw(NUMBERS)]
        histogram.rows.append(((draw(TEXTS), value), numbers, exemplars))
    return [*found, histogram]


@pytest.mark.parametrize("accept", ["", OPEN])
@given(found=families())
def test_a_page_is_as_the_library_writes_it(accept: str, found: list[Metric]) -> None:
    """Names, types, labels, numbers and exemplars, to the byte."""
    registry = CollectorRegistry()
    registry.register(Given(found))
    encode, content_type = choose_encoder(accept)
    page = PageWriter(accept)
    for each in found:
        page.add(each)
    assert (encode(registry), content_type) == (page.text(), page.content_type)


def test_pieces_of_a_family_are_one_family() -> None:
    """Whatever comes between them."""
    page = PageWriter("")
    for value in (1.0, 2.0):
        piece = Metric("a", "A.", "counter")
        piece.add_sample("a_total", {"model": str(value)}, value)
        page.add(piece)
        page.add(Metric("b", "B.", "gauge"))
    expected = '# HELP a_total A.\n# TYPE a_total counter\na_total{model="1.0"} 1.0\n'
    expected += 'a_total{model="2.0"} 2.0\n# HELP b B.\n# TYPE b gauge\n'
    assert expected == page.text().decode()


def many(models: int) -> Metrics:
    """Return metrics with series of so many models and endpoints."""
    metrics = Metrics("1", series=models)
    context = Context(protocol="oip.http")
    for number in range(models):
        path = CallPath(route="r", target="t", upstream_s=0.5)
        name = f"m{number}"
        metrics.call(CallRecord("InferRequest", name, "", context, path, "ok", None, 1.0, 1.0))
        metrics.attempts.of("u", name).record(Metrics, None, 1.0, "ok")
        metrics.upstream_ready("u", name, ready=True)
        metrics.sharing.batches(name).sent(rows=1, waits_s=[0.1])
        metrics.gauges.watch(names.ROUTE_IN_FLIGHT, {"route": name}, metrics, lambda _owner: 1.0)
        metrics.cell(names.PIPELINE_STEP_DURATION, pipeline=name, step="s", code="ok").observe(1.0)
    metrics.watch_counter(names.RETRIES, lambda: {(str(each), "", ""): 1 for each in range(models)})
    return metrics


def series_of(piece: Metric) -> int:
    """Return the number of series of a piece; a histogram is one."""
    if isinstance(piece, HistogramFamily):
        return len(piece.rows)
    return len({tuple(v for k, v in each.labels.items() if k != "le") for each in piece.samples})


def test_no_turn_of_the_loop_reads_more_than_a_piece() -> None:
    """However many models, endpoints and routes there are."""
    found: dict[str, int] = {}
    for piece in many(1000).registry.collect():
        assert series_of(piece) <= PIECE_SERIES
        found[piece.name] = found.get(piece.name, 0) + series_of(piece)
    assert len([each for each in found.values() if each >= 1000]) >= 12


async def test_series_that_come_and_go_meanwhile_disturb_no_page() -> None:
    """A page is written over many turns, between which calls are counted and endpoints leave."""
    metrics = many(200)

    def pieces() -> Iterator[Metric]:
        for number, piece in enumerate(metrics.registry.collect()):
            many_more = CallPath(route=f"new{number}", target="t")
            context = Context(protocol="oip.http")
            record = CallRecord("InferRequest", "m1", "", context, many_more, "ok", None, 1.0, 1.0)
            metrics.call(record)
            metrics.forget_endpoint("u", f"m{number}")
            yield piece

    text, _ = await write_page(pieces(), OPEN)
    assert text.decode().count("gateway_requests_total{") >= 200
