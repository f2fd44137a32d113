"""`gateway infer`, `models`, `health` and `demo` against a gateway in a process of its own."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.registry import protocol
from tests.integration.cli_kit import Running, gateway, serving
from tests.properties.carries import OF_TENSORS

pytestmark = pytest.mark.timeout(90)

CONFIG = Path(__file__).parents[2] / "config"
ROW = "[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]"
PAIR = ("--input", f"INPUT0={ROW}", "--input", f"INPUT1={ROW}")
WAYS = [
    (name, carrier)
    for name in sorted(OF_TENSORS)
    for carrier in ("http", "grpc")
    if getattr(protocol(name), carrier) is not None
]
TEXTS = {"openai.http"}
UNTYPED = {"mlflow.http"} | {
    f"{name}.{carrier}" for name in ("seldon", "torchserve") for carrier in ("grpc", "http")
}
STREAMS = {
    stream.codec(DEFAULT_LIMITS, {}).name
    for name in sorted(OF_TENSORS)
    if (stream := protocol(name).stream) is not None
}


@pytest.fixture(scope="module")
def testing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Serve config/testing.yaml on free ports."""
    path = tmp_path_factory.mktemp("config") / "testing.yaml"
    text = (CONFIG / "testing.yaml").read_text()
    path.write_text(text.replace(":8000", ":0").replace(":8001", ":0"))
    with serving(str(path)) as running:
        yield running


@pytest.fixture(params=WAYS, ids=".".join)
def url(request: pytest.FixtureRequest, testing: Running) -> str:
    """Return the gateway's URL in each protocol and carrier there is."""
    name, carrier = request.param
    return f"{name}+{carrier}://{testing.addresses[f'main.{carrier}']}"


@pytest.fixture
def nobody() -> str:
    """Return the URL of an address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def call(*arguments: str) -> Result:
    """Run a verb in this process."""
    return CliRunner().invoke(command_line(arguments[:1]), list(arguments))


def test_infer_prints_all_outputs(url: str) -> None:
    """Datatypes come from the model; outputs are printed with all their elements."""
    result = call("infer", url, "simple", *PAIR, "--output", "json")
    assert (0, "") == (result.exit_code, result.stderr)
    response = json.loads(result.stdout)
    assert response["model"] == "simple"
    expected = [
        {
            "name": "OUTPUT0",
            "datatype": "INT32",
            "shape": [1, 16],
            "data": [[2 * n for n in range(16)]],
        },
        {"name": "OUTPUT1", "datatype": "INT32", "shape": [1, 16], "data": [[0] * 16]},
    ]
    assert expected == response["outputs"]


def test_infer_reshapes_text_and_selects_an_output(url: str) -> None:
    """Flat lists of text get the model's shape; only the requested output is printed."""
    row = json.dumps([str(n) for n in range(16)])
    arguments = ("--input", f"INPUT0={row}", "--input", f"INPUT1={row}", "--request", "OUTPUT1")
    result = call("infer", url, "simple_string", *arguments)
    assert result.exit_code == 0
    head, line = result.stdout.splitlines()
    assert head.split() == ["output", "datatype", "shape", "data"]
    assert line.split()[:4] == ["OUTPUT1", "BYTES", "[1,", "16]"]
    assert line.endswith(json.dumps([["0"] * 16]))


def test_infer_with_datatypes_needs_no_metadata(url: str) -> None:
    """With `--datatype` no metadata is requested, and no shape is guessed."""
    if url.startswith("trtis"):
        pytest.skip("TensorRT v1 names every output and tells no datatype: it needs metadata")
    arguments = ("--input", "INPUT0=[1.5]", "--datatype", "INPUT0=FP64", "-o", "json")
    result = call("infer", url, "identity_fp64", *arguments)
    assert [1.5] == json.loads(result.stdout)["outputs"][0]["data"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nobody", *PAIR), "nobody"),
        (("simple", "--input", "X=[1]"), "model 'simple' has no input 'X'; its inputs are INPUT0"),
        (("simple", *PAIR[:2]), "INPUT1"),
        (("simple", *PAIR[:2], "-i", "INPUT1=[2147483648]"), "is out of range; INT32 is"),
        (("fail", "--input", "INPUT0=[1]"), "this model fails on purpose"),
    ],
)
def test_failed_call_is_one_line_on_stderr(
    url: str, arguments: tuple[str, ...], reason: str
) -> None:
    """The reason is one line on standard error, with status 1."""
    if arguments[0] == "fail" and url.startswith("trtis"):
        # A model of any rank has no form in TensorRT v1.
        reason = "'INPUT0' has no datatype or shape"
    result = call("infer", url, *arguments)
    assert (1, "") == (result.exit_code, result.stdout)
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_infer_stops_at_its_timeout(url: str) -> None:
    """The time limit is the caller's.

    The server knows the deadline too and may reply first. TensorRT v1 has no code for that.
    """
    result = call("infer", url, "slow", "--input", "INPUT0=[5000]", "--timeout", "300ms")
    assert (1, "") == (result.exit_code, result.stdout)
    assert "deadline" in result.stderr


def test_models_lists_version_and_state(url: str) -> None:
    """Models are listed with version and state, as text and as JSON."""
    result = call("models", url, "--output", "json")
    if url.startswith("tfs"):  # its servers do not list their models
        assert (1, True) == (result.exit_code, "is not supported over tfs" in result.stderr)
        return
    assert result.exit_code == 0
    names = [entry["name"] for entry in json.loads(result.stdout)]
    any_rank = set() if url.startswith("trtis") else {"identity_bf16"}  # it has no form there
    assert {"simple", "slow"} | any_rank <= set(names)
    lines = call("models", url).stdout.splitlines()
    assert lines[0].split() == ["model", "version", "state", "reason"]
    assert names == [line.split()[0] for line in lines[1:]]


@pytest.mark.parametrize(
    ("arguments", "status", "output"),
    [
        ((), 0, "ready\n"),
        (("--model", "simple"), 0, "ready\n"),
        (("--model", "simple", "--version", "1"), 0, "ready\n"),
    ],
)
def test_health_reports_readiness(
    url: str, arguments: tuple[str, ...], status: int, output: str
) -> None:
    """The readiness of a server and of its models is printed."""
    result = call("health", url, *arguments)
    assert (status, output) == (result.exit_code, result.stdout)


def test_unknown_model_is_not_ready(url: str) -> None:
    """The status is 1, whatever a protocol returns for an unknown model."""
    assert call("health", url, "--model", "nobody").exit_code == 1


def test_unreachable_server_is_status_1(nobody: str) -> None:
    """Each command prints one line and exits with status 1."""
    for verb in (("health", nobody), ("models", nobody), ("infer", nobody, "m", "-i", "x=[1]")):
        result = call(*verb)
        assert (1, "") == (result.exit_code, result.stdout)
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("health", "h:1"), "'h:1' is not an upstream URL"),
        (("health", "nonsense+http://h:1"), "nonsense"),
        (("health", "--timeout", "5"), "'5' is not a duration"),
        (("infer", "m"), "--input"),
        (("infer", "m", "-i", "x"), "--input is 'x'; expected NAME=VALUE"),
        (("infer", "m", "-i", "x=?"), "--input x: '?' is not JSON"),
        (("infer", "m", "-i", "x=1", "-i", "x=2"), "duplicate --input 'x'"),
        (
            ("infer", "m", "-i", "x=1", "--datatype", "x=INT"),
            "--datatype is 'INT'; expected one of BOOL",
        ),
        (("infer", "a", "b", "c", "-i", "x=1"), "too many arguments: 3"),
    ],
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...], reason: str) -> None:
    """Wrong arguments are named before any request is sent."""
    result = call(*arguments)
    assert (2, "") == (result.exit_code, result.stdout)
    assert reason in result.stderr


def test_demo_prints_a_row_for_each_protocol() -> None:
    """The table has each protocol with its result; all results agree, and the status is 0."""
    done = gateway(
        "demo", "--once", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off"
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "(" in line and "." in line.split()[0]]
    assert {".".join(way) for way in WAYS} | STREAMS | TEXTS | UNTYPED == {
        row.split()[0] for row in rows
    }
    assert len({row.split("(")[0].split()[-1] for row in rows}) == 1
    assert "results agree" in done.stdout
    assert "█" in done.stdout
    assert "Traceback" not in done.stderr


def test_demo_as_json() -> None:
    """The JSON has the same content; a protocol that is off is missing."""
    flags = ("--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off", "--digit", "7")
    done = gateway("demo", "--once", "-o", "json", *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["agreed"] is True
    assert {trip["protocol"] for trip in found["trips"]} == {
        ".".join(way) for way in WAYS if way[1] == "http"
    } | STREAMS | TEXTS | {each for each in UNTYPED if each.endswith(".http")}
    for trip in found["trips"]:
        assert trip["digit"] == 7
        assert trip["request_bytes"] > 64
        assert trip["microseconds"] > 0


def test_demo_names_the_flag_of_a_port_in_use() -> None:
    """The line on standard error names the flag for another port; the status is 1."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        done = gateway("demo", "--once", "--http", address, "--grpc", "127.0.0.1:0")
    assert (1, "") == (done.returncode, done.stdout)
    assert "choose another address with --http HOST:PORT" in done.stderr
    assert "Traceback" not in done.stderr
