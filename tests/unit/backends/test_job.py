"""Job: a model learns that nobody waits any more, whenever it asks."""

from __future__ import annotations

import threading

from gateway.backends.job import Job
from gateway.ir.context import ModelRef

M = ModelRef("m", "1")


def test_who_asked_before_is_told() -> None:
    """An event taken while the job runs is set when the job is cancelled."""
    job = Job(M)
    event = job.cancelled
    assert not event.is_set()
    job.cancel()
    assert event.is_set()


def test_who_asks_after_is_told() -> None:
    """A model that looks for the first time after the end finds the event set, and always one."""
    job = Job(M)
    job.cancel()
    assert job.cancelled.is_set()
    assert job.cancelled is job.cancelled


def test_a_thread_that_waits_goes_on() -> None:
    """A model that waits on a thread of its own is woken."""
    job = Job(M)
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(job.cancelled.wait(10)))
    thread.start()
    job.cancel()
    thread.join(10)
    assert [True] == woken
