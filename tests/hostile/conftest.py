"""The gateway under attack: one process for each worker, looked at again when all is over."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.hostile.judge import CANARY, Patient, bugs_of, check_rejections, warmed
from tests.hostile.process import CONFIG, eventually, running

_MIB = 1 << 20
_GROWTH_BYTES = 64 * _MIB
_PEAK_BYTES = 96 * _MIB
_DESCRIPTORS = 4
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@pytest.fixture(scope="session")
def patient() -> Iterator[Patient]:
    """The gateway of this worker; after the last test it must be as it was."""
    with running(str(CONFIG)) as gateway:
        patient = Patient(gateway)
        warmed(patient)
        gateway.forget_peak()
        memory, descriptors = gateway.status("VmRSS"), gateway.descriptors()
        yield patient
        patient.close()
        assert gateway.alive
        check_rejections(gateway)
        assert eventually(lambda: gateway.descriptors() <= descriptors + _DESCRIPTORS)
        grown = gateway.status("VmRSS") - memory
        peak = gateway.status("VmHWM") - memory
        print(f"\nmemory: {memory / _MIB:.0f} MiB, +{grown / _MIB:.1f}, peak +{peak / _MIB:.1f}")
        assert grown <= _GROWTH_BYTES
        assert peak <= _PEAK_BYTES
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
    log = bugs_of(gateway)
    assert [] == [line for line in log.splitlines() if "Traceback" in line]
    assert [] == [line for line in log.splitlines() if CANARY in line]
    assert _CONTROL.findall(log.replace("\n", "")) == []


@pytest.fixture(autouse=True)
def looked_after(patient: Patient) -> Iterator[None]:
    """Check after each test that the gateway lives, logged no bug, and serves good requests."""
    start = len(patient.gateway.log)
    yield
    patient.check(start)
