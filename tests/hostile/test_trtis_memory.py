"""Hostile use of shared memory: keys that are no segments, places that lie, segments that shrink."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.schema import tensorrt_v1_pb2 as pb
from tests.hostile.judge import Patient, check_text
from tests.hostile.wire import Answer, Raw, post

pytestmark = pytest.mark.hostile

FOLDER = Path("/dev/shm")  # noqa: S108  # where segments are
CONTROL = "/api/sharedmemorycontrol"
GOOD = (
    'batch_size: 1 input { name: "INPUT0" dims: 16 SHARED } input { name: "INPUT1" dims: 16 } '
    'output { name: "OUTPUT0" PLACED }'
)
PLACE = 'shared_memory { name: "r" offset: %d byte_size: %d }'
HUGE = (1 << 64) - 1


@pytest.fixture
def segment(patient: Patient) -> Iterator[Path]:
    """A segment of 4096 bytes; afterwards nothing is registered."""
    file = FOLDER / f"hostile-{os.getpid()}"
    file.write_bytes(bytes(4096))
    try:
        yield file
    finally:
        assert 200 == send(patient, f"{CONTROL}/unregisterall").status
        file.unlink()


def send(patient: Patient, path: str, header: str = "", body: bytes = b"") -> Answer:
    """Return the answer of the listener that has shared memory."""
    lines = [f"NV-InferRequest: {header}"] if header else []
    with Raw(patient.gateway.addresses["memory.http"]) as raw:
        raw.send([post(body, *lines, path=path)])
        answer = raw.answer()
    assert answer is not None
    return answer


def register(patient: Patient, key: str, name: str = "r", offset: int = 0, size: int = 4096) -> int:
    return send(patient, f"{CONTROL}/register/{name}/{key}/{offset}/{size}").status


def infer(patient: Patient, shared: str = PLACE % (0, 64), output_place: str = "") -> Answer:
    text = GOOD.replace("SHARED", shared).replace("PLACED", output_place)
    return send(patient, "/api/infer/simple?format=binary", text, bytes(64))


def status_text(answer: Answer) -> str:
    status = answer.get("nv-status") or ""
    check_text(status)
    return status


def regions(patient: Patient) -> list[str]:
    """Return the names of what is registered."""
    with Raw(patient.gateway.addresses["memory.http"]) as raw:
        raw.send([f"GET {CONTROL}/status?format=binary HTTP/1.1\r\nHost: x\r\n\r\n".encode()])
        answer = raw.answer()
    assert answer is not None
    found = pb.SharedMemoryStatus.FromString(answer.body).shared_memory_region
    return [region.name for region in found]


def test_a_good_region_is_good(patient: Patient, segment: Path) -> None:
    """What the lies are made from works, whether its name is still there or not."""
    assert 200 == register(patient, f"/{segment.name}")
    answer = infer(patient, output_place=PLACE % (64, 64))
    assert 200 == answer.status
    assert "batch_byte_size: 64" in (answer.get("nv-inferresponse") or "")
    assert ["r"] == regions(patient)


@pytest.mark.parametrize(
    "key",
    [
        "/..",
        "/.",
        "//",
        "/../../etc/passwd",
        "/../dev/shm/x",
        "//etc/passwd",
        "/etc/passwd",
        "/a/b",
        "/%2e%2e%2fetc%2fpasswd",
        "/absent",
        "/sem.x",
        "/triton_python_backend_shm_region_1",
        "/" + "n" * 300,
    ],
)
def test_keys_that_are_no_segments(patient: Patient, segment: Path, key: str) -> None:
    """No path leads out of the folder of segments."""
    assert 400 == register(patient, key)
    assert [] == regions(patient)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_files_that_are_no_segments(patient: Patient, segment: Path, kind: str) -> None:
    """Links, pipes and folders among the segments are refused, and at once."""
    place = segment.with_name(f"{segment.name}-{kind}")
    make: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to("/etc/passwd"),
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
    }
    make[kind](place)
    try:
        answer = send(patient, f"{CONTROL}/register/r//{place.name}/0/16")
    finally:
        (place.rmdir if kind == "folder" else place.unlink)()
    assert (400, True) == (answer.status, "INTERNAL" in status_text(answer))


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 4097), (4096, 1), (1, 4096), (HUGE, 1), (1, HUGE), (0, 0), (1 << 64, 1)],
)
def test_regions_that_lie(patient: Patient, segment: Path, offset: int, size: int) -> None:
    """A region that is not within its segment is not registered."""
    assert 400 == register(patient, f"/{segment.name}", offset=offset, size=size)
    assert [] == regions(patient)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 63), (0, 65), (4033, 64), (HUGE, 64), (0, HUGE), (HUGE, HUGE), (0, 0)]
)
def test_places_that_lie(patient: Patient, segment: Path, offset: int, size: int) -> None:
    """A place that is not within its region, or of another size than its tensor, is refused."""
    assert 200 == register(patient, f"/{segment.name}")
    answer = infer(patient, PLACE % (offset, size))
    assert (400, True) == (answer.status, "INVALID_ARG" in status_text(answer))


@pytest.mark.parametrize(("offset", "size"), [(0, 63), (0, 0)])
def test_outputs_that_do_not_fit(patient: Patient, segment: Path, offset: int, size: int) -> None:
    """An output is not written beyond its place: INTERNAL, as real servers say."""
    segment.write_bytes(b"x" * 4096)
    assert 200 == register(patient, f"/{segment.name}")
    answer = infer(patient, output_place=PLACE % (offset, size))
    assert (400, True) == (answer.status, "INTERNAL" in status_text(answer))
    assert b"x" * 4096 == segment.read_bytes()


def test_names_that_are_not_registered(patient: Patient, segment: Path) -> None:
    """NOT_FOUND, before and after."""
    assert "NOT_FOUND" in status_text(infer(patient))
    assert 200 == register(patient, f"/{segment.name}")
    assert 400 == register(patient, f"/{segment.name}")
    assert 200 == send(patient, f"{CONTROL}/unregister/r").status
    assert "NOT_FOUND" in status_text(infer(patient))


def test_a_thousand_regions_are_too_many(patient: Patient, segment: Path) -> None:
    """Registrations are bounded, and so are the descriptors that they take."""
    found = [register(patient, f"/{segment.name}", name=f"r{number}") for number in range(200)]
    assert [200] * 128 + [400] * 72 == found


def test_segments_that_shrink_while_they_are_used(patient: Patient, segment: Path) -> None:
    """A client that cuts its segment short, again and again, fails its own requests alone."""
    assert 200 == register(patient, f"/{segment.name}")
    over = threading.Event()

    def shrink() -> None:
        while not over.is_set():
            os.truncate(segment, 0)
            os.truncate(segment, 4096)

    thread = threading.Thread(target=shrink)
    thread.start()
    try:
        found = [infer(patient, output_place=PLACE % (64, 64)) for _ in range(200)]
    finally:
        over.set()
        thread.join()
    assert {answer.status for answer in found} <= {200, 400}
    assert patient.gateway.alive


def test_segments_cut_short_for_good(patient: Patient, segment: Path) -> None:
    """The error names the region and what is left of it."""
    assert 200 == register(patient, f"/{segment.name}")
    os.truncate(segment, 10)
    assert "shrank the segment: 10 bytes remain" in status_text(infer(patient))
