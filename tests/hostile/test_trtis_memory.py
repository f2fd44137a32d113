"""Hostile use of shared memory: invalid keys, offsets and sizes, and segments that shrink."""

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
    """Return the response of the listener that has shared memory."""
    lines = [f"NV-InferRequest: {header}"] if header else []
    with Raw(patient.gateway.addresses["memory.http"]) as raw:
        raw.send([post(body, *lines, path=path)])
        response = raw.answer()
    assert response is not None
    return response


def register(patient: Patient, key: str, name: str = "r", offset: int = 0, size: int = 4096) -> int:
    return send(patient, f"{CONTROL}/register/{name}/{key}/{offset}/{size}").status


def infer(patient: Patient, shared: str = PLACE % (0, 64), output_place: str = "") -> Answer:
    text = GOOD.replace("SHARED", shared).replace("PLACED", output_place)
    return send(patient, "/api/infer/simple?format=binary", text, bytes(64))


def status_text(response: Answer) -> str:
    status = response.get("nv-status") or ""
    check_text(status)
    return status


def regions(patient: Patient) -> list[str]:
    """Return the names of the registered regions."""
    with Raw(patient.gateway.addresses["memory.http"]) as raw:
        raw.send([f"GET {CONTROL}/status?format=binary HTTP/1.1\r\nHost: x\r\n\r\n".encode()])
        response = raw.answer()
    assert response is not None
    found = pb.SharedMemoryStatus.FromString(response.body).shared_memory_region
    return [region.name for region in found]


def test_good_region_is_usable(patient: Patient, segment: Path) -> None:
    """The region that the hostile ones are made from is used and listed."""
    assert 200 == register(patient, f"/{segment.name}")
    response = infer(patient, output_place=PLACE % (64, 64))
    assert 200 == response.status
    assert "batch_byte_size: 64" in (response.get("nv-inferresponse") or "")
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
def test_invalid_keys_are_rejected(patient: Patient, segment: Path, key: str) -> None:
    """No path leads out of the folder of segments."""
    assert 400 == register(patient, key)
    assert [] == regions(patient)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_files_other_than_segments_are_rejected(patient: Patient, segment: Path, kind: str) -> None:
    """Links, pipes and folders among the segments are rejected at once."""
    place = segment.with_name(f"{segment.name}-{kind}")
    make: dict[str, Callable[[Path], object]] = {
        "link": lambda path: path.symlink_to("/etc/passwd"),
        "pipe": os.mkfifo,
        "folder": Path.mkdir,
    }
    make[kind](place)
    try:
        response = send(patient, f"{CONTROL}/register/r//{place.name}/0/16")
    finally:
        (place.rmdir if kind == "folder" else place.unlink)()
    assert (400, True) == (response.status, "INTERNAL" in status_text(response))


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 4097), (4096, 1), (1, 4096), (HUGE, 1), (1, HUGE), (0, 0), (1 << 64, 1)],
)
def test_regions_outside_their_segment_are_rejected(
    patient: Patient, segment: Path, offset: int, size: int
) -> None:
    """A region that exceeds its segment is not registered."""
    assert 400 == register(patient, f"/{segment.name}", offset=offset, size=size)
    assert [] == regions(patient)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 63), (0, 65), (4033, 64), (HUGE, 64), (0, HUGE), (HUGE, HUGE), (0, 0)]
)
def test_inputs_outside_their_region_are_rejected(
    patient: Patient, segment: Path, offset: int, size: int
) -> None:
    """An input that exceeds its region, or of another size than its tensor, is rejected."""
    assert 200 == register(patient, f"/{segment.name}")
    response = infer(patient, PLACE % (offset, size))
    assert (400, True) == (response.status, "INVALID_ARG" in status_text(response))


@pytest.mark.parametrize(("offset", "size"), [(0, 63), (0, 0)])
def test_outputs_larger_than_their_space_are_rejected(
    patient: Patient, segment: Path, offset: int, size: int
) -> None:
    """Nothing is written beyond the space; the code is INTERNAL, as of real servers."""
    segment.write_bytes(b"x" * 4096)
    assert 200 == register(patient, f"/{segment.name}")
    response = infer(patient, output_place=PLACE % (offset, size))
    assert (400, True) == (response.status, "INTERNAL" in status_text(response))
    assert b"x" * 4096 == segment.read_bytes()


def test_unregistered_regions_are_not_found(patient: Patient, segment: Path) -> None:
    """The code is NOT_FOUND before the registration and after the removal."""
    assert "NOT_FOUND" in status_text(infer(patient))
    assert 200 == register(patient, f"/{segment.name}")
    assert 400 == register(patient, f"/{segment.name}")
    assert 200 == send(patient, f"{CONTROL}/unregister/r").status
    assert "NOT_FOUND" in status_text(infer(patient))


def test_number_of_regions_is_limited(patient: Patient, segment: Path) -> None:
    """The limit also bounds the descriptors that regions use."""
    found = [register(patient, f"/{segment.name}", name=f"r{number}") for number in range(200)]
    assert [200] * 128 + [400] * 72 == found


def test_shrinking_segment_fails_only_its_own_requests(patient: Patient, segment: Path) -> None:
    """The gateway survives a segment that a client truncates again and again."""
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
    assert {response.status for response in found} <= {200, 400}
    assert patient.gateway.alive


def test_truncated_segment_is_named_in_the_error(patient: Patient, segment: Path) -> None:
    """The error has the bytes that remain."""
    assert 200 == register(patient, f"/{segment.name}")
    os.truncate(segment, 10)
    assert "shrank the segment: 10 bytes remain" in status_text(infer(patient))
