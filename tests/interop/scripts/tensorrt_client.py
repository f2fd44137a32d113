"""What the client `tensorrtserver` 1.11.0 sees of a server, as one JSON document.

Arguments: the address and "http" or "grpc"; further ones name checks, otherwise all are made.

The package's library needs OpenSSL 1.1, which comes with a wheel that carries one, and two shims:
names that numpy has dropped, and bytes where protobuf takes no ctypes arrays any more.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBRARIES = "LD_LIBRARY_PATH"
SERVER_READY = 2


def with_openssl() -> None:
    """Start this program again, where the loader finds OpenSSL 1.1."""
    if os.environ.get("TENSORRT_CLIENT_LIBRARIES"):
        return
    bundled = next(Path(sys.prefix).glob("lib/python*/site-packages/psycopg2_binary.libs"))
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ssl", "crypto"):
            (Path(folder) / f"lib{name}.so.1.1").symlink_to(next(bundled.glob(f"lib{name}-*")))
        paths = f"{folder}:{bundled}"
        env = {**os.environ, LIBRARIES: paths, "TENSORRT_CLIENT_LIBRARIES": paths}
        command = [sys.executable, "-P", *sys.argv]
        sys.exit(subprocess.run(command, check=False, env=env).returncode)


with_openssl()

import numpy as np  # noqa: E402

setattr(np, "object", object)  # noqa: B010  # the client says np.object

from tensorrtserver import api, shared_memory  # noqa: E402

RAW, CLASS = api.InferContext.ResultFormat.RAW, api.InferContext.ResultFormat.CLASS
Failure = api.InferenceServerException


class Message:
    """A message that takes ctypes arrays."""

    def __init__(self, kind: Any) -> None:
        self.message = kind()

    def ParseFromString(self, data: Any) -> None:  # noqa: N802
        """Read *data*."""
        self.message.ParseFromString(bytes(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.message, name)


Status, Index, Regions = api.ServerStatus, api.ModelRepositoryIndex, api.SharedMemoryStatus
api.ServerStatus = lambda: Message(Status)
api.ModelRepositoryIndex = lambda: Message(Index)
api.SharedMemoryStatus = lambda: Message(Regions)

LEFT, RIGHT = np.arange(16, dtype=np.int32), np.full(16, 3, np.int32)
PAIR = {"INPUT0": [LEFT, LEFT + 100], "INPUT1": [RIGHT, RIGHT]}
BOTH = {"OUTPUT0": RAW, "OUTPUT1": RAW}


def texts(values: Any) -> Any:
    """Return numbers as an array of text."""
    return np.array([str(value) for value in values], dtype=object)


def plain(result: Any) -> Any:
    """Return a result as JSON has it."""
    if isinstance(result, np.ndarray):
        return [item.decode() if isinstance(item, bytes) else item for item in result.tolist()]
    if isinstance(result, dict):
        return {name: [plain(item) for item in items] for name, items in result.items()}
    return [list(one) for one in result]


class Checks:
    """Everything that is done, with one address over one protocol."""

    def __init__(self, url: str, protocol: str) -> None:
        self.at = (url, api.ProtocolType.from_str(protocol))
        self.streams = protocol == "grpc"

    def context(self, model: str, **more: Any) -> Any:
        """Open a context for *model*."""
        return api.InferContext(*self.at, model, **more)

    def health(self) -> Any:
        """Ask whether the server lives and is ready."""
        health = api.ServerHealthContext(*self.at)
        return [health.is_live(), health.is_ready()]

    def status(self) -> Any:
        """Ask how the server is, and one of its models."""
        whole = api.ServerStatusContext(*self.at).get_server_status()
        one = api.ServerStatusContext(*self.at, "add_sub").get_server_status()
        config = one.model_status["add_sub"].config
        return {
            "listed": "add_sub" in whole.model_status and "add_sub_string" in whole.model_status,
            "one": list(one.model_status),
            "ready": whole.ready_state == SERVER_READY,
            "batches": config.max_batch_size > 0,
            "inputs": [[each.name, each.data_type, list(each.dims)] for each in config.input],
            "outputs": [[each.name, each.data_type, list(each.dims)] for each in config.output],
        }

    def sync(self) -> Any:
        """Send a batch of two."""
        return plain(self.context("add_sub").run(PAIR, BOTH, 2))

    def version(self) -> Any:
        """Ask for a version by its number."""
        context = self.context("add_sub", model_version=1)
        context.run(PAIR, BOTH, 2)
        return [context.get_last_request_model_name(), context.get_last_request_model_version()]

    def one_output(self) -> Any:
        """Ask for one output of two."""
        return plain(self.context("add_sub").run(PAIR, {"OUTPUT1": RAW}, 2))

    def strings(self) -> Any:
        """Send text."""
        inputs = {"INPUT0": [texts(LEFT), texts(LEFT + 100)], "INPUT1": [texts(RIGHT)] * 2}
        return plain(self.context("add_sub_string").run(inputs, BOTH, 2))

    def classes(self) -> Any:
        """Ask for the best two classes of each item."""
        outputs = {"OUTPUT0": (CLASS, 2), "OUTPUT1": RAW}
        return plain(self.context("add_sub").run(PAIR, outputs, 2))

    def asynchronous(self) -> Any:
        """Send four requests at once."""
        return self._at_once(self.context("add_sub"))

    def stream(self) -> Any:
        """Send four requests on a stream."""
        return self._at_once(self.context("add_sub", streaming=True)) if self.streams else None

    def stream_errors(self) -> Any:
        """Send a request that fails on a stream, among others that do not."""
        if not self.streams:
            return None
        context = self.context("add_sub_string", streaming=True)
        good = {"INPUT0": [texts(LEFT)], "INPUT1": [texts(RIGHT)]}
        bad = {"INPUT0": [texts(["x"] * 16)], "INPUT1": [texts(RIGHT)]}
        done: queue.Queue[int] = queue.Queue()
        outcomes = []
        for inputs in (good, bad, good):
            context.async_run(lambda _context, number: done.put(number), inputs, BOTH, 1)
        for _ in range(3):
            try:
                context.get_async_run_results(done.get(timeout=10))
                outcomes.append("answered")
            except Failure as error:
                outcomes.append("refused" if error.message() else "refused without a word")
        return outcomes

    def _at_once(self, context: Any) -> Any:
        done: queue.Queue[int] = queue.Queue()
        for number in range(4):
            pair = {"INPUT0": [LEFT + number], "INPUT1": [RIGHT]}
            context.async_run(
                lambda _context, request: done.put(request), pair, {"OUTPUT0": RAW}, 1
            )
        answers = [plain(context.get_async_run_results(done.get(timeout=10))) for _ in range(4)]
        return sorted(answer["OUTPUT0"][0][0] for answer in answers)

    def sequence(self) -> Any:
        """Send a sequence; its model adds one to the first request."""
        context = self.context("simple_sequence", correlation_id=2**62 + 5)
        status = api.ServerStatusContext(*self.at).get_server_status()
        batching_flags = [
            status.model_status[name].config.HasField("sequence_batching")
            for name in ("simple_sequence", "add_sub")
        ]
        start, end = 1, 2
        return batching_flags + [
            plain(
                context.run(
                    {"INPUT": [np.array([value], np.int32)]}, {"OUTPUT": RAW}, 1, flags=flags
                )
            )["OUTPUT"][0]
            for value, flags in ((10, start), (20, 0), (30, end))
        ]

    def long_sequence(self) -> Any:
        """Send a sequence whose number is over 63 bits; its model tells number, start and end."""
        number = 2**63 + 5
        context = self.context("simple_sequence", correlation_id=number)
        outputs = {"OUTPUT": RAW, "ID": RAW, "END": RAW}
        replies = [
            context.run({"INPUT": [np.array([value], np.int32)]}, outputs, 1, flags=flags)
            for value, flags in ((10, 1), (20, 0), (30, 2))
        ]
        return [
            [int(one["OUTPUT"][0][0]), int(one["ID"][0][0]) == number, bool(one["END"][0][0])]
            for one in replies
        ]

    def refused_sequence(self) -> Any:
        """Send a sequence whose number is over 63 bits to a server that has none of these."""
        context = self.context("simple_sequence", correlation_id=2**63 + 5)
        inputs = {"INPUT": [np.array([1], np.int32)]}
        return self.refusal_of(lambda: context.run(inputs, {"OUTPUT": RAW}, 1, flags=1))

    def labels(self) -> Any:
        """Ask for the best two classes of a model that has names for them."""
        found = self.context("labelled").run(PAIR, {"OUTPUT0": (CLASS, 2)}, 2)
        return plain(found)["OUTPUT0"]

    def full_batch(self) -> Any:
        """Send as many items as the model takes, and one more."""
        context = self.context("add_sub")
        most = api.ServerStatusContext(*self.at, "add_sub").get_server_status()
        size = most.model_status["add_sub"].config.max_batch_size
        inputs = {"INPUT0": [LEFT + number for number in range(size)], "INPUT1": [RIGHT] * size}
        found = plain(context.run(inputs, {"OUTPUT0": RAW}, size))["OUTPUT0"]
        return [size, [item[0] for item in found] == [3 + number for number in range(size)]]

    def counters(self) -> Any:
        """Look how much more a model has been used after a batch of two."""
        found = []
        for _ in range(2):
            status = api.ServerStatusContext(*self.at, "add_sub").get_server_status()
            (version,) = status.model_status["add_sub"].version_status.values()
            found.append(version)
            self.context("add_sub").run(PAIR, BOTH, 2)
        before, after = found
        more = after.model_inference_count - before.model_inference_count
        return [more, after.last_inference_timestamp_milliseconds > 0]

    def request_ids(self) -> Any:
        """Count what the server says it has answered."""
        context = self.context("add_sub")
        numbers = []
        for _ in range(3):
            context.run(PAIR, BOTH, 2)
            numbers.append(context.get_last_request_id())
        return numbers == sorted(set(numbers))

    def shared(self) -> Any:
        """Put one input and one output into shared memory, and the others into the message."""
        control = api.SharedMemoryControlContext(*self.at)
        name = f"trtis{os.getpid()}"
        regions = [
            shared_memory.create_shared_memory_region(f"{name}{end}", f"/{name}{end}", 2 * 64)
            for end in ("in", "out")
        ]
        input_region, output_region = regions
        try:
            shared_memory.set_shared_memory_region(input_region, PAIR["INPUT0"])
            for region in regions:
                control.register(region)
            listed = control.get_shared_memory_status().shared_memory_region
            again = self.refusal_of(lambda: control.register(input_region))
            inputs = {"INPUT0": (input_region, [16]), "INPUT1": PAIR["INPUT1"]}
            found = self.context("add_sub").run(
                inputs, {"OUTPUT0": (RAW, output_region), "OUTPUT1": RAW}, 2
            )
            output_values = np.fromfile(f"/dev/shm/{name}out", np.int32)  # noqa: S108
            control.unregister(input_region)
            after_removal = self.refusal_of(
                lambda: self.context("add_sub").run(inputs, {"OUTPUT1": RAW}, 2)
            )
            control.unregister_all()
            return {
                "listed": sorted(one.name.removeprefix(name) for one in listed),
                "again": again,
                "OUTPUT0": [output_values[:16].tolist(), output_values[16:].tolist()],
                "OUTPUT1": plain(found)["OUTPUT1"],
                "gone": after_removal,
                "left": len(control.get_shared_memory_status().shared_memory_region),
            }
        finally:
            control.unregister_all()
            for region in regions:
                shared_memory.destroy_shared_memory_region(region)

    def shared_is_off(self) -> Any:
        """Ask which regions there are where there can be none."""
        control = api.SharedMemoryControlContext(*self.at)
        return self.refusal_of(control.get_shared_memory_status)

    def control(self) -> Any:
        """Unload a model and load it again."""
        control = api.ModelControlContext(*self.at)
        control.unload("simple_int8")
        away = self._is_loaded()
        control.load("simple_int8")
        return [away, self._is_loaded(), self.refusal_of(lambda: control.load("nobody"))]

    def index(self) -> Any:
        """Look which models there are."""
        index = api.ModelRepositoryContext(*self.at).get_model_repository_index()
        names = [model.name for model in index.models]
        return ["add_sub" in names, "nobody" in names, len(names) == len(set(names))]

    def control_is_off(self) -> Any:
        """Ask for what is off."""
        control = api.ModelControlContext(*self.at)
        index = api.ModelRepositoryContext(*self.at)
        return [
            self.refusal_of(lambda: control.load("add_sub")),
            self.refusal_of(lambda: control.unload("add_sub")),
            self.refusal_of(index.get_model_repository_index),
        ]

    def _is_loaded(self) -> bool:
        """Tell whether the model that is controlled can be asked."""
        values = np.ones(16, np.int8)
        pair = {"INPUT0": [values], "INPUT1": [values]}
        try:
            self.context("simple_int8").run(pair, BOTH, 1)
        except Failure:
            return False
        return True

    @staticmethod
    def refusal_of(ask: Callable[[], Any]) -> str:
        """Return how the server refuses: whether with a word of its own."""
        try:
            ask()
        except Failure as error:
            return "refused" if error.message() and error.server_id() else str(error)
        return "answered"

    def unknown_model(self) -> Any:
        """Ask for a model that is not there."""
        try:
            self.context("nobody")
        except Failure as error:
            return "nobody" in error.message() and bool(error.server_id())
        return "answered"

    def large_batch(self) -> Any:
        """Send more than the model takes; the client itself knows."""
        try:
            self.context("add_sub").run({"INPUT0": [LEFT] * 4096, "INPUT1": [RIGHT] * 4096}, BOTH)
        except Failure as error:
            return "refused" if error.message() else ""
        return "answered"


NAMES = (
    "health",
    "status",
    "sync",
    "version",
    "one_output",
    "strings",
    "classes",
    "full_batch",
    "request_ids",
    "asynchronous",
    "stream",
    "stream_errors",
    "unknown_model",
    "large_batch",
)


def main() -> None:
    """Make the checks and print what was seen."""
    url, protocol, *names = sys.argv[1:]
    checks = Checks(url, protocol)
    seen: dict[str, Any] = {}
    for name in names or NAMES:
        check: Callable[[], Any] = getattr(checks, name)
        try:
            seen[name] = check()
        except Failure as error:
            seen[name] = {"error": str(error)}
    json.dump(seen, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # the library's threads outlive their contexts


if __name__ == "__main__":
    main()
