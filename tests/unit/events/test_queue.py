"""The queue of a sink: attempts, pauses, how many at a time, and sinks that are not reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from gateway.events.messages import EventNote
from gateway.events.sinks.queue import HeldCall, QueueOptions, SinkQueue
from tests.simulation.virtual_time import elapse, now, simulate
from tests.unit.events.kit import FakeSink

REQUEST, RESPONSE = 1, 2


class Queue:
    """A queue with a sink that the test steers."""

    def __init__(self, **options: float) -> None:
        self.sink = FakeSink()
        self.results: Counter[str] = Counter()
        self.times: list[float] = []
        made = QueueOptions(**options)  # type: ignore[arg-type]  # by their names
        self.queue = SinkQueue("audit", self.sink, made, self._done)

    def _done(self, _held: HeldCall, reason: str | None) -> None:
        self.results[reason or "delivered"] += 1
        self.times.append(now())

    def put(self, count: int = 1, number: int = 1) -> None:
        for place in range(count):
            note = EventNote(ce_id=f"{place}")
            self.queue.put(HeldCall((number, 7), note, b"", 1), [REQUEST])


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    simulate(main)


def test_an_event_that_fails_is_tried_again_after_growing_pauses() -> None:
    """Five attempts have pauses of 1, 2, 4 and 8 s; then the event is dropped."""

    async def test() -> None:
        made = Queue(attempts=5)
        made.sink.mode = "fail"
        made.put()
        await elapse(100)
        assert (5, {"attempts": 1}) == (made.sink.attempts["0", REQUEST], made.results)
        assert 15 == round(made.times[0], 3)

    run(test)


def test_pauses_are_at_most_a_minute() -> None:
    """The seventh pause and all later ones are 60 s."""

    async def test() -> None:
        made = Queue(attempts=9)
        made.sink.mode = "fail"
        made.put()
        await elapse(1000)
        assert 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60 == round(made.times[0], 3)

    run(test)


def test_a_refusal_ends_the_attempts() -> None:
    """An event that the sink refuses is not sent again."""

    async def test() -> None:
        made = Queue()
        made.sink.mode = "refuse"
        made.put(3)
        await elapse(100)
        assert ({"refused": 3}, 3) == (made.results, made.sink.attempts.total())

    run(test)


def test_an_event_that_fails_holds_up_no_other_one() -> None:
    """While one event pauses, the others are sent."""

    async def test() -> None:
        made = Queue(concurrency=1)
        made.sink.mode = "fail"
        made.put()
        await elapse(0.1)
        made.sink.mode = "deliver"
        made.put(10)
        await elapse(0.1)
        assert {"delivered": 10} == made.results
        await elapse(1)
        assert {"delivered": 11} == made.results

    run(test)


def test_attempts_at_the_same_time_are_bounded() -> None:
    """A slow sink gets `concurrency` events at a time."""

    async def test() -> None:
        made = Queue(concurrency=4)
        made.sink.takes_s = 1.0
        made.put(16)
        await elapse(3.9)
        assert (4, 12) == (made.sink.most, made.results["delivered"])
        await elapse(0.2)
        assert 16 == made.results["delivered"]

    run(test)


def test_an_attempt_without_a_reply_ends_at_the_timeout() -> None:
    """A sink that never replies costs its timeout for each attempt."""

    async def test() -> None:
        made = Queue(timeout_s=10.0, attempts=2)
        made.sink.mode = "hang"
        made.put()
        await elapse(50)
        assert ({"attempts": 1}, 21) == (made.results, round(made.times[0], 3))
        assert not made.sink.running

    run(test)


def test_a_sink_that_is_not_reached_gets_one_attempt_at_a_time() -> None:
    """A thousand events of a dead sink cost five attempts, and each of these counts for all."""

    async def test() -> None:
        made = Queue(attempts=5, concurrency=1)
        made.sink.mode = "unreachable"
        made.put(1000)
        await elapse(100)
        assert ({"attempts": 1000}, 5) == (made.results, made.sink.attempts.total())

    run(test)


def test_events_at_the_same_time_count_one_round() -> None:
    """Attempts that began together and did not reach the sink are one failure of it."""

    async def test() -> None:
        made = Queue(attempts=5, concurrency=8)
        made.sink.mode, made.sink.takes_s = "unreachable", 0.5
        made.put(8)
        await elapse(1)
        assert ({}, 8) == (made.results, made.sink.attempts.total())
        made.sink.mode = "deliver"
        await elapse(20)
        assert {"delivered": 8} == made.results

    run(test)


def test_a_sink_that_is_reached_again_gets_everything() -> None:
    """After the pause one attempt succeeds, and the others follow at once."""

    async def test() -> None:
        made = Queue(attempts=5, concurrency=8)
        made.sink.mode = "unreachable"
        made.put(100)
        await elapse(0.5)
        made.sink.mode = "deliver"
        await elapse(1)
        assert {"delivered": 100} == made.results
        made.sink.mode = "unreachable"
        made.put()
        await elapse(7.5)  # earlier failures do not count: 1 s, 2 s and 4 s
        assert {"delivered": 100} == made.results
        made.sink.mode = "deliver"
        await elapse(8)
        assert {"delivered": 101} == made.results

    run(test)


def test_a_batch_is_sent_when_it_is_full_or_old() -> None:
    """Objects have `batch` events, or those of `linger_s`, or those that fill the room."""

    async def test() -> None:
        made = Queue(batch=10, linger_s=60.0, batch_bytes=1 << 20)
        made.put(25)
        await elapse(59)
        assert [10, 10] == made.sink.batches
        await elapse(2)
        assert [10, 10, 5] == made.sink.batches
        note = EventNote(ce_id="large")
        made.queue.put(HeldCall((1, 7), note, bytes(1 << 20), 1), [REQUEST])
        await elapse(0.1)
        assert [10, 10, 5, 1] == made.sink.batches

    run(test)


def test_a_flush_sends_what_waits_for_a_batch() -> None:
    """Events that come later wait for others again."""

    async def test() -> None:
        made = Queue(batch=10, linger_s=60.0)
        made.put(3)
        await elapse(1)
        made.queue.flush()
        await elapse(0.1)
        made.put(2)
        await elapse(1)
        assert [3] == made.sink.batches
        await elapse(60)
        assert [3, 2] == made.sink.batches

    run(test)


def test_events_of_a_process_that_stops_are_dropped() -> None:
    """What waits of one process goes, what is being sent and the events of others stay."""

    async def test() -> None:
        made = Queue(concurrency=1)
        made.sink.takes_s = 1.0
        made.put(3, number=1)
        made.put(2, number=2)
        await elapse(0.5)
        made.queue.drop_sender((1, 7))
        assert {"shutdown": 2} == made.results
        await elapse(5)
        assert {"shutdown": 2, "delivered": 3} == made.results

    run(test)


def test_a_queue_that_closes_drops_everything_once() -> None:
    """Events that wait, pause and are being sent have one result each, and the sink is closed."""

    async def test() -> None:
        made = Queue(concurrency=2)
        made.sink.mode = "fail"
        made.put(1)
        await elapse(0.1)
        made.sink.mode = "hang"
        made.put(5)
        await elapse(0.1)
        await made.queue.close()
        assert ({"shutdown": 6}, True, True) == (
            made.results,
            made.queue.is_empty,
            made.sink.is_closed,
        )

    run(test)
