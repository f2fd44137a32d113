"""The migration kit: how fast calls are recorded, read, sent again and compared.

Recording writes calls of 602 KB with all elements, as fast as the disk takes them, and seals the
segments. It is measured twice: alone, and through the socket between a serving process and the
shadow process. The CPU time of the latter is that of the shadow process, which limits it. Replay
sends small calls of a capture to the canned server and compares the replies, in this process, at
the pace `max`. Reading alone shows the part of the capture's format in it. `mirroring.py` measures
the mirror, and `recording_cost.py` what a capture costs clients.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import uvloop

from benchmarks import messages, mirroring, recording_cost, systems
from benchmarks.processes import cores
from benchmarks.progress import Say
from benchmarks.rates import Row
from gateway.app import complete_service, connect
from gateway.config.load import load_text
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, raw_tensor
from gateway.migration.captures.capture import Capture
from gateway.migration.captures.recorder import CaptureRecorder
from gateway.migration.captures.sampling import CaptureOptions, CaptureSampler
from gateway.migration.captures.segment_writer import SegmentWriter
from gateway.migration.compare.rules import OutputRules
from gateway.migration.mirror.outbox import Outbox
from gateway.migration.mirror.shadow_evidence import NAME, ShadowEvidence
from gateway.migration.options import CAPTURE_CHANNEL
from gateway.migration.replay.replay import Replay, ReplayOptions, ReplayReport
from gateway.processes.process import freeze_startup_objects
from gateway.settings.private_files import make_directory
from gateway.settings.units import parse_url
from gateway.shadow.keeper import ShadowKeeper
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import Recordable, record_of
from gateway.shadow.records.transfer import (
    Confirmation,
    SampleMessage,
    decode_message,
    encode_message,
)

_LARGE_CALLS = 1000
_FLOATS = 150_528
_SMALL_CALLS = 20_000
_WAIT_S = 0.0005
_MB = 1e6

RECORDING, READING, REPLAY = "recording, calls of 602 KB", "reading, small calls", "replay"
RECORDING_COST = "99th percentile at half load, 10 % recorded"
SOCKET = f"{RECORDING}, through the socket"
_WAITING_BYTES = 32 << 20
_SHADOW = """
version: 1
listeners: [{{http: 0}}]
telemetry: {{log: {{level: error}}}}
capture: {{directory: "{directory}", payload: full, min_free: 0}}
"""


def run(rounds: int, say: Say) -> list[Row]:
    """Measure everything; a row is the best of its rounds, which other load disturbs least."""
    freeze_startup_objects()  # as the command does
    found: dict[str, Row] = {}
    for _ in range(rounds):
        for row in _round(say):
            if row.what not in found or row.rate > found[row.what].rate:
                found[row.what] = row
    p99, cpu = recording_cost.measure(say)
    # Lower is better: the requirement is a limit.
    return [*found.values(), Row(RECORDING_COST, "times that without", p99, cpu, 1.02)]


def _round(say: Say) -> Iterator[Row]:
    say("  recording")
    with tempfile.TemporaryDirectory(dir=".") as name:
        yield _recording(Path(name))
    with tempfile.TemporaryDirectory(dir=".") as name:
        yield uvloop.run(_recording_by_socket(Path(name).resolve()))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        _record_small(directory)
        say("  reading")
        yield _reading(directory)
        for carrier in ("http", "grpc"):
            say(f"  replay over {carrier}")
            yield _replay(directory, carrier)
    say("  mirror")
    yield from mirroring.rows()


def _recording(directory: Path) -> Row:
    """Measure calls on their way from a serving process to sealed segments, without the socket."""
    image = array_tensor("x", np.zeros((1, _FLOATS), np.float32))
    label = array_tensor("y", np.zeros((1, 1000), np.float32))
    call = _recordable([image], [label], 0)
    privacy = Privacy(payload="full")
    confirmed: list[Confirmation] = []
    recorder = CaptureRecorder(
        CaptureOptions(directory=directory, privacy=privacy, min_free=0.0),
        lambda _socket, confirmation: confirmed.append(confirmation),
    )
    recorder.start()
    timer = _Timer()
    for number in range(_LARGE_CALLS):
        while not recorder.has_room:
            time.sleep(_WAIT_S)
        message = SampleMessage(record_of(call, privacy, None))
        view = memoryview(b"".join(encode_message(message)))
        recorder.put((1, 1), number, decode_message(view), view.nbytes)
    recorder.close()
    assert sum(each.recorded for each in confirmed) == _LARGE_CALLS, confirmed[-1]
    return timer.row(RECORDING, "MB/s", sum(each.nbytes for each in confirmed) / _MB, 150.0)


async def _recording_by_socket(directory: Path) -> Row:
    """Measure calls from the outbox of a serving process to segments of the shadow process."""
    image = raw_tensor("x", Datatype.FP32, (1, _FLOATS), memoryview(bytes(4 * _FLOATS)))
    label = raw_tensor("y", Datatype.FP32, (1, 1000), memoryview(bytes(4 * 1000)))
    call = _recordable([image], [label], 0)
    privacy = Privacy(payload="full")
    loaded = load_text(_SHADOW.format(directory=directory / "capture"))
    keeper = ShadowKeeper(loaded, 1)
    ShadowEvidence(loaded, keeper)
    await keeper.start()
    assert keeper.pid is not None
    sampler = CaptureSampler(CaptureOptions(directory=directory, privacy=privacy))
    outbox = Outbox(keeper.setup(NAME, 1).sockets[CAPTURE_CHANNEL], sampler)
    outbox.start()
    started, cpu = time.perf_counter(), _cpu_s(keeper.pid)
    for _ in range(_LARGE_CALLS):
        await _until(lambda: outbox.used_bytes <= _WAITING_BYTES)
        assert sampler.samples("x", "r")
        outbox.put(record_of(call, privacy, None))
    await _until(lambda: not sampler.counts.in_flight)
    seconds, cpu = time.perf_counter() - started, _cpu_s(keeper.pid) - cpu
    assert sampler.counts.recorded == _LARGE_CALLS, sampler.counts.left_out
    await outbox.close(5.0)
    await keeper.stop()
    amount = sampler.counts.nbytes / _MB
    return Row(SOCKET, "MB/s", amount / seconds, amount / cpu, 150.0)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # counts have no event
        await asyncio.sleep(_WAIT_S)


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _record_small(directory: Path) -> None:
    case = messages.small()
    make_directory(directory)
    writer = SegmentWriter(directory, {})
    writer.begin()
    inputs = [array_tensor(name, array) for name, array in case.inputs.items()]
    outputs = [array_tensor(name, array) for name, array in case.outputs.items()]
    for number in range(_SMALL_CALLS):
        call = _recordable(inputs, outputs, number)
        writer.add(record_of(call, Privacy(payload="full"), None))
    writer.commit()
    writer.seal({})


def _recordable(inputs: Sequence[Tensor], outputs: Sequence[Tensor], number: int) -> Recordable:
    model = ModelRef(messages.small().model)
    context = Context(protocol="oip.http", request_id=f"r{number}")
    request = InferRequest(model=model, context=context, inputs=tuple(inputs))
    return Recordable(
        started_us=1_700_000_000_000_000 + number,
        request=request,
        kind="InferRequest",
        context=context,
        took_us=1000,
        items=[(900, InferResponse(model=model, outputs=tuple(outputs)))],
    )


def _reading(directory: Path) -> Row:
    timer = _Timer()
    count = sum(1 for _ in Capture(directory).calls())
    return timer.row(READING, "calls/s", count, None)


def _replay(directory: Path, carrier: str) -> Row:
    case = messages.small()
    answer = messages.binary_reply(case) if carrier == "http" else messages.grpc_reply(case)
    with systems.canned(carrier, answer, cores()[1]) as server:
        port = server.http_port if carrier == "http" else server.grpc_port
        timer = _Timer()
        report = uvloop.run(_replayed(directory, f"oip+{carrier}://127.0.0.1:{port}"))
    assert (report.sent, report.failed) == (_SMALL_CALLS, 0), report
    assert report.summary.outcomes, report
    return timer.row(f"{REPLAY} over {carrier}", "calls/s", report.sent, 5000.0)


async def _replayed(directory: Path, text: str) -> ReplayReport:
    url = parse_url(text)
    connected = connect(url, options={"dialect": "unknown"})
    replay = Replay(complete_service(connected, url), ReplayOptions(), OutputRules())
    try:
        return await replay.run(Capture(directory).calls())
    finally:
        await connected.close()


class _Timer:
    """The clock and the CPU time since its creation."""

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def row(self, what: str, unit: str, amount: float, required: float | None) -> Row:
        """Return the rates of *amount*."""
        seconds = time.perf_counter() - self._started
        cpu = time.process_time() - self._cpu
        return Row(what, unit, amount / seconds, amount / cpu, required)


def _text(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2f}"  # ratios


def table(rows: list[Row]) -> str:
    """Return the rows as a table of Markdown."""
    lines = ["| migration | by the clock | by CPU time | required |", "|---|---:|---:|---:|"]
    for row in rows:
        required = "" if row.required is None else f"{_text(row.required)} {row.unit}"
        lines.append(
            f"| {row.what} | {_text(row.rate)} {row.unit} | {_text(row.cpu_rate)} {row.unit} | "
            f"{required} |"
        )
    return "\n".join(lines)
