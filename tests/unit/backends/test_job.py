"""Job: a model can see at any time that its call is cancelled."""

from __future__ import annotations

import threading

from gateway.api.backend import Job
from gateway.ir.context import ModelRef

M = ModelRef("m", "1")


def test_an_event_read_before_cancellation_is_set() -> None:
    """An event read while the job runs is set by its cancellation."""
    job = Job(M)
    event = job.cancelled
    assert not event.is_set()
    job.cancel()
    assert event.is_set()


def test_an_event_read_after_cancellation_is_set() -> None:
    """Every read returns the same event."""
    job = Job(M)
    job.cancel()
    assert job.cancelled.is_set()
    assert job.cancelled is job.cancelled


def test_cancellation_wakes_a_waiting_thread() -> None:
    """A model may wait for the event on a thread of its own."""
    job = Job(M)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(job.cancelled.wait(10)))
    thread.start()
    job.cancel()
    thread.join(10)
    assert [True] == woken
