"""Real model servers with one model that does nothing: Triton, MLServer, KServe and MLflow.

They come from the environments of the interop tests. Each returns the outputs of the case for any
request, so the benchmark measures the server. The model of Triton is a backend in C, compiled here.
"""

import http.client
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.messages import Case, json_reply, signature
from benchmarks.processes import LARGE_BUFFERS, child, cores
from benchmarks.systems import SERVERS, Absent, Running

_HERE = Path(__file__).parent / "servers"
_READY_S = 60.0
_COMPILE_S = 60.0
_SAVE_S = 120.0
# TRITONSERVER_DataType; config.pbtxt uses the same names.
_TRITON_TYPES = {"INT32": 8, "FP32": 11}


@contextmanager
def triton(case: Case) -> Iterator[Running]:
    """Run Triton with a backend in C that returns constants."""
    _require("triton")
    from tests.interop.servers.triton.start import prepare  # noqa: PLC0415  # optional peer

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "server"
        repository = Path(name) / "models"
        write_triton_model(repository / case.model, case)
        ports = _ports()
        folder.mkdir()
        command = prepare(folder, ports)
        # The repository of the interop tests is not used.
        words = [
            f"--model-repository={repository}" if "--model-repository=" in word else word
            for word in command.words
        ]
        with _running(case, ports, words, folder, command.variables) as running:
            yield running


def write_triton_model(folder: Path, case: Case) -> None:
    """Write the configuration and the compiled backend of the model."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Absent("there is no C compiler (cc) to build Triton's no-op backend with")
    home = folder / "1"
    home.mkdir(parents=True)
    described: Mapping[str, Any] = signature(case)
    lines = [
        f'name: "{case.model}"',
        'backend: "noop"',
        "max_batch_size: 0",
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
    ]
    for kind, tensors in described.items():
        for each in tensors:
            of = f'name: "{each["name"]}" data_type: TYPE_{each["datatype"]} dims: {each["shape"]}'
            lines.append(f"{kind.removesuffix('s')} [ {{ {of} }} ]")
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")
    (home / "answer.h").write_text(_answer_header(case))
    words = [compiler, "-O2", "-shared", "-fPIC", f"-I{home}", str(_HERE / "triton_noop.c")]
    words += ["-o", str(home / "libtriton_noop.so")]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_COMPILE_S)
    if done.returncode:
        raise Absent(f"Triton's no-op backend cannot be compiled: {done.stderr[-500:]}")


def _answer_header(case: Case) -> str:
    """Return the outputs as C code."""
    parts, rows = [], []
    described: Mapping[str, Any] = signature(case)
    for index, each in enumerate(described["outputs"]):
        data = case.outputs[each["name"]].tobytes()
        numbers = ", ".join(map(str, data))
        dims = ", ".join(map(str, each["shape"]))
        parts.append(f"static const unsigned char data_{index}[] = {{{numbers}}};")
        parts.append(f"static const int64_t shape_{index}[] = {{{dims}}};")
        datatype, rank = _TRITON_TYPES[each["datatype"]], len(each["shape"])
        rows.append(
            f'{{"{each["name"]}", {datatype}, {rank}, shape_{index}, {len(data)}, data_{index}}}'
        )
    parts.append(f"static const struct constant outputs[] = {{{', '.join(rows)}}};")
    return "\n".join(parts) + "\n"


@contextmanager
def mlserver(case: Case) -> Iterator[Running]:
    """Run MLServer with a runtime that returns constants."""
    _require("mlserver")
    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), _ports()
        home = folder / "model"
        home.mkdir()
        settings = {
            "host": "127.0.0.1",
            "http_port": ports.http,
            "grpc_port": ports.grpc,
            "metrics_port": ports.metrics,
            "parallel_workers": 0,
            "gzip_enabled": False,
            "kafka_enabled": False,
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        model = {"name": case.model, "implementation": "mlserver_noop.NoOp"}
        (home / "model-settings.json").write_text(json.dumps(model | {"versions": ["1"]}))
        variables = {"PYTHONPATH": str(_HERE), "PYTHONDONTWRITEBYTECODE": "1"}
        words = [str(SERVERS / "mlserver" / "bin" / "mlserver"), "start", str(folder)]
        with _running(case, ports, words, folder, variables) as running:
            yield running


@contextmanager
def kserve(case: Case) -> Iterator[Running]:
    """Run KServe's ModelServer with a model that returns constants."""
    _require("kserve")
    from tests.interop.servers.kserve.start import SERVE  # noqa: PLC0415  # optional peer

    with tempfile.TemporaryDirectory() as name:
        folder, ports = Path(name), _ports()
        python = str(SERVERS / "kserve" / "bin" / "python")
        words = [python, "-P", str(_HERE / "kserve_noop.py")]
        words += [f"--http_port={ports.http}", f"--grpc_port={ports.grpc}"]
        variables = {"PYTHONPATH": str(SERVE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
        with _running(case, ports, words, folder, variables) as running:
            yield running


@contextmanager
def mlflow(case: Case) -> Iterator[Running]:
    """Run `mlflow models serve`, with one worker, with a model that returns constants."""
    _require("mlflow")
    with tempfile.TemporaryDirectory() as name:
        folder, ports, binaries = Path(name), _ports(), SERVERS / "mlflow" / "bin"
        inputs, described = folder / "inputs.json", signature(case)
        inputs.write_text(json.dumps(described["inputs"]))
        variables = {"PATH": f"{binaries}:/usr/bin:/bin", "MLFLOW_DISABLE_TELEMETRY": "true"}
        files = {"BENCH_ANSWER": str(_answer(case, folder)), "BENCH_INPUTS": str(inputs)}
        subprocess.run(
            [str(binaries / "python"), str(_HERE / "mlflow_noop.py"), str(folder / "model")],
            check=True,
            capture_output=True,
            env={**variables, **files, "HOME": name},
            cwd=folder,
            timeout=_SAVE_S,
        )
        words = [str(binaries / "mlflow"), "models", "serve", "-m", str(folder / "model")]
        words += ["-h", "127.0.0.1", "-p", str(ports.http), "--env-manager", "local"]
        words += ["--workers", "1"]
        with _running(case, ports, words, folder, variables, "/ping") as running:
            yield running


def _answer(case: Case, folder: Path) -> Path:
    """Return a file with the outputs."""
    found = folder / "answer.json"
    found.write_text(json.dumps(json.loads(json_reply(case).body)["outputs"]))
    return found


@contextmanager
def _running(
    case: Case,
    ports: Any,
    words: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    ready: str = "",
) -> Iterator[Running]:
    """Run a server on the first core and wait until its model, or the path *ready*, is ready."""
    answer, log = _answer(case, folder), folder / "log"
    ready = ready or f"/v2/models/{case.model}/ready"
    settings = {
        "BENCH_ANSWER": str(answer),
        "BENCH_MODEL": case.model,
        **LARGE_BUFFERS,
        **variables,
    }
    with child(words, cores()[0], log, variables=settings, folder=folder) as process:
        deadline = time.monotonic() + _READY_S
        while not _ready(ports.http, ready):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-1000:]
                raise RuntimeError(f"it was not ready within {_READY_S:g} s: {tail}")
            time.sleep(0.01)
        yield Running(process.pid, ports.http, ports.grpc)


def _ready(port: int, path: str) -> bool:
    with suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.client.OK
        finally:
            connection.close()
    return False


def _ports() -> Any:
    from tests.interop.servers.process import free_ports  # noqa: PLC0415  # optional peer

    return free_ports()


def _require(name: str) -> None:
    if not (SERVERS / name / ".ready").exists():
        raise Absent(f"{name} is not installed: `make interop` installs it")
