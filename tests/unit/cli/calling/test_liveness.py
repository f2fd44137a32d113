"""`gateway health --live` asks the admin port of a gateway, and imports next to nothing."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.cli.calling.liveness import ask_live, live_address, run_live
from gateway.cli.commands import run

WAIT_S = 20.0
LIVE = b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"live": true}'


@contextmanager
def admin(*parts: bytes) -> Iterator[str]:
    """Serve one connection with *parts*, each in a packet of its own; return the address."""
    requests: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(65_536))
            for part in parts:
                connection.sendall(part)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(WAIT_S)
    assert requests[0].startswith(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1:")


@pytest.mark.parametrize(
    ("parts", "live"),
    [
        ([LIVE], True),
        ([LIVE[:9], LIVE[9:12], LIVE[12:]], True),
        ([b"HTTP/1.1 503 Service Unavailable\r\n\r\n"], False),
        ([b"HTTP/1.1 404 Not Found\r\n\r\n"], False),
        ([b"SSH-2.0-x 200 \r\n"], False),
        ([b"HTTP/1.1"], False),
        ([], False),
    ],
)
def test_only_status_200_means_live(
    parts: list[bytes], live: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any other response, or none, means that it is not a gateway that lives."""
    with admin(*parts) as address:
        assert run_live(address) == (0 if live else 1)
    assert ("live\n" if live else "not live\n", "") == capsys.readouterr()


def test_an_admin_port_without_a_listener_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the address and the reason, and the status is 1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert run_live(address) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"no admin port of a gateway at {address}: Connection refused" in err


def test_a_silent_admin_port_is_left_in_time() -> None:
    """A gateway that accepts and does not respond is not live."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with pytest.raises(TimeoutError):
            ask_live(host, port, 0.05)


@pytest.mark.parametrize("text", ["h", "h:", ":1", "h:0", "h:65536", "h:x", "https://h:1/x"])
def test_other_addresses_are_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error shows what was found and what is expected."""
    assert run_live(text) == 2
    assert f"{text!r}; expected HOST:PORT or unix:/path" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        (["health", "--live"], "127.0.0.1:9901"),
        (["health", "--live", "[::1]:7"], "[::1]:7"),
        (["health", "--live", "--admin", "h:1"], "h:1"),
        (["health", "--live", "--admin"], None),
        (["health", "--live", "--admin", "h:1", "h:1"], None),
        (["health", "--live", "https://h:1"], None),
        (["health", "--live", "--timeout"], None),
        (["health", "--live", "h:1", "--timeout", "1s"], None),
        (["health", "h:1"], None),
    ],
)
def test_only_the_plain_form_skips_the_command_line(
    arguments: list[str], address: str | None
) -> None:
    """Other flags are left to the command line, which knows all of them."""
    assert address == live_address(arguments)


@pytest.mark.parametrize("flags", [["--timeout", "10s"], []])
def test_the_command_line_knows_the_flag(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The order of the flags does not matter."""
    with admin(LIVE) as address:
        assert run(["health", *flags, address, "--live"]) == 0
    assert capsys.readouterr().out == "live\n"


@pytest.mark.parametrize("flags", [["--model", "m"], ["--output", "json"]])
def test_flags_about_models_are_refused(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The admin port has no model that could be live."""
    assert run(["health", "--live", *flags]) == 2
    assert "not allowed with --live" in capsys.readouterr().err


def imports_of(*arguments: str) -> tuple[set[str], int]:
    """Return the modules that a command imports: those of others than Python, and the number."""
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        "from gateway.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "new = set(sys.modules) - before\n"
        "own = [n for n in new if n.partition('.')[0] not in sys.stdlib_module_names]\n"
        "print(json.dumps([own, len(new)]))"
    )
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    own, count = json.loads(done.stdout.splitlines()[-1])
    return set(own), count


def test_liveness_imports_next_to_nothing() -> None:
    """A check costs what a bare Python with a socket costs: three modules, and a few of Python."""
    with admin(LIVE) as address:
        own, count = imports_of("health", "--live", address)
    assert {"gateway", "gateway.cli", "gateway.cli.calling", "gateway.cli.calling.liveness"} == own
    # signal, socket, selectors, math, select, errno, array, typing and what these import.
    assert count <= 35


def test_the_version_imports_only_the_extension() -> None:
    """`gateway --version` says which build is in use, and needs nothing else."""
    own, _ = imports_of("--version")
    of_cython = {name for name in own if name == "cython_runtime" or name.startswith("_cython_")}
    assert own - of_cython <= {
        "gateway",
        "gateway.cli",
        "gateway.accelerator",
        "gateway._accelerated",
    }


def test_a_refusal_names_the_variable_of_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    """An admin port whose probes are closed is not a gateway that is dead."""
    with admin(b"HTTP/1.1 401 Unauthorized\r\n\r\n") as address:
        assert 1 == run_live(address)
    found = capsys.readouterr()
    assert ("", True) == (found.out, "status 401; GATEWAY_ADMIN_TOKEN" in found.err)
