"""The books: every sampled event is delivered, dropped for a reason, or waits, whatever happens."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.virtual_time import elapse, simulate
from tests.unit.events.kit import Processes, definition

NAMES = ("live", "slow", "dead")
MODES = ("deliver", "refuse", "fail", "unreachable", "hang", "raise")
# Longer than five attempts of 10 s with all pauses, and than a dead process takes to be noticed.
LONG_S = 3000.0

STEPS = st.one_of(
    st.tuples(st.just("call"), st.sampled_from([*NAMES, ""]), st.sampled_from([16, 200_000])),
    st.tuples(st.just("mode"), st.sampled_from(NAMES), st.sampled_from(MODES)),
    st.tuples(st.just("wait"), st.floats(0.0, 20.0), st.none()),
    st.tuples(st.just("kill"), st.booleans(), st.booleans()),
    st.tuples(st.just("reload"), st.integers(1, 6), st.none()),
)


def sinks(attempts: int = 5) -> list[object]:
    return [
        definition(name, attempts=attempts, outbox_bytes=600_000, per_second=20) for name in NAMES
    ]


class Story:
    """Random steps, and what must hold after each."""

    def __init__(self) -> None:
        self._processes = Processes(*sinks())  # type: ignore[arg-type]  # definitions
        self._is_up = True
        self._deaths = 0

    async def run(self, steps: list[tuple[str, object, object]]) -> None:
        processes = self._processes
        processes.start()
        for kind, one, other in steps:
            await self._step(kind, one, other)
            self._check()
        if not self._is_up:
            processes.start_shadow()
        for fake in processes.fakes.values():
            fake.mode = "deliver"
        await elapse(LONG_S)
        self._check()
        for name, sink in processes.sinks.items():
            assert (0, 0) == (sink.books.in_flight, sink.used_bytes), name
            assert sink.books.delivered <= processes.fakes[name].delivered
            if not self._deaths:
                assert processes.fakes[name].delivered == sink.books.delivered
                assert not sink.books.dropped["worker_died"]
        await processes.outbox.close(1.0)
        await processes.stop_shadow()
        processes.close()

    async def _step(self, kind: str, one: object, other: object) -> None:
        processes = self._processes
        if kind == "call":
            processes.call(*((str(one),) if one else ()), size=int(str(other)))
        elif kind == "mode":
            processes.fakes[str(one)].mode = str(other)
        elif kind == "wait":
            await elapse(float(str(one)))
        elif kind == "reload":
            processes.change(*sinks(int(str(one))))  # type: ignore[arg-type]  # definitions
        elif self._is_up:
            self._deaths += 1
            processes.kill_shadow(reads=bool(one))
            self._is_up = bool(other)
            if self._is_up:
                processes.start_shadow()
        else:
            self._is_up = True
            processes.start_shadow()

    def _check(self) -> None:
        for name, sink in self._processes.sinks.items():
            books = sink.books
            assert self._processes.sampled[name] == books.sampled
            assert books.in_flight >= 0
            assert books.sampled == books.delivered + books.dropped.total() + books.in_flight
            assert 0 <= sink.used_bytes <= sink.limit_bytes
            assert bool(books.in_flight) == bool(sink.used_bytes)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_books_balance_whatever_happens(steps: list[tuple[str, object, object]]) -> None:
    """Sinks fail, processes die and files are reloaded: at rest nothing is in flight or missing."""
    simulate(lambda: Story().run(steps))
