"""Two versions of the demo's model compared on the 450 held-out scans, over every protocol."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import yaml
from typer.testing import CliRunner
from typer.testing import Result as CliResult

from gateway.app import Gateway, complete_service, connect
from gateway.cli.commands import command_line
from gateway.ir.calls import InferRequest
from gateway.ir.context import Context, ModelRef
from gateway.ir.tensors.tensor import array_tensor
from gateway.migration.captures.capture import Capture
from gateway.migration.compare.replies import Comparison, Result
from gateway.migration.compare.rules import EXACT, OutputRule, OutputRules
from gateway.migration.compare.tensors import Outcome
from gateway.migration.replay.replay import (
    Replay,
    ReplayOptions,
    ReplayOutcome,
    compare,
    recorded_result,
)
from gateway.migration.replay.selection import parse_selection
from gateway.settings.units import parse_url
from gateway.shadow.records.records import RecordedCall
from tests.integration.asking_kit import WHOLE, running, server_config, urls
from tests.integration.cli_kit import gateway as gateway_command
from tests.integration.migration.digits_kit import digits

pytestmark = pytest.mark.timeout(120)
in_module = pytest.mark.asyncio(loop_scope="module")
of_module = pytest_asyncio.fixture(scope="module", loop_scope="module")

DIFFERENT = [123, 125, 196, 198, 316, 388, 395, 407]
SOME = sorted([*DIFFERENT, *range(0, 120, 10)])
PROTOCOLS = ["graphpipe.http", "grps.grpc", "grps.http", "oip.grpc", "oip.http", "tfs.grpc"]
PROTOCOLS += ["tfs.http", "trtis.grpc", "trtis.http"]
LABEL = OutputRules(outputs={"label": EXACT, "probabilities": OutputRule(top_k=1)})


@pytest.fixture(scope="module")
def scans() -> npt.NDArray[np.float32]:
    rows: npt.NDArray[np.float32] = digits()[::4]
    return rows


@of_module
async def served() -> AsyncIterator[Gateway]:
    """Run a gateway with both versions of the model, which records nothing."""
    async with running(server_config()) as gateway:
        yield gateway


def capturing(directory: Path, *, wire: bool = False) -> str:
    """Return the configuration of a gateway that records its calls."""
    config = yaml.safe_load(server_config())
    config["capture"] = {"directory": str(directory), "payload": "full", "min_free": 0}
    config["capture"]["wire"] = wire
    return yaml.safe_dump(config)


async def classify(
    gateway: Gateway,
    protocol: str,
    version: str,
    scans: npt.NDArray[np.float32],
    rows: Sequence[int],
) -> None:
    """Send rows through a protocol, with their numbers as request ids."""
    name, _, carrier = protocol.partition(".")
    known = urls(gateway, "digits")
    own = f"{name}+{carrier}://{gateway.addresses[f'main.{carrier}']}"
    url = parse_url(known.get(protocol, own))
    connected = connect(url)
    service = complete_service(connected, url)
    try:
        for row in rows:
            context = Context(request_id=f"row-{row}", deadline=time.monotonic() + 20, needs=WHOLE)
            tensor = array_tensor("X", scans[row : row + 1])
            model = ModelRef("digits", version)
            await service(InferRequest(model=model, context=context, inputs=(tensor,)))
    finally:
        await connected.close()


async def different_rows(
    capture: Path, protocol: str, url: str, version: str, rules: OutputRules = LABEL
) -> tuple[int, list[int]]:
    """Replay the calls of a protocol; return their number, and the rows whose label differs."""
    address = parse_url(url)
    connected = connect(address)
    rows: list[int] = []

    def done(record: object, _outcome: ReplayOutcome, found: Comparison | None) -> None:
        assert found is not None
        assert found.outcome in {Outcome.MATCH, Outcome.MISMATCH}, found
        if found.outcome is Outcome.MISMATCH:
            rows.append(int(record.call.request_id.removeprefix("row-")))  # type: ignore[attr-defined]

    options = ReplayOptions(models={"digits": ModelRef("digits", version)}, concurrency=8)
    replay = Replay(complete_service(connected, address), options, rules, on_done=done)
    try:
        includes = parse_selection(f"protocol={protocol}").includes
        report = await replay.run(filter(includes, Capture(capture).calls()))
    finally:
        await connected.close()
    assert (report.failed, report.left_out, report.uncompared) == (0, {}, 0)
    return report.sent, sorted(rows)


@of_module
async def captured(
    scans: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a capture of some scans, sent to version 1 over every protocol.

    GraphPipe and Seldon name no version: they get the newest one, 2.
    """
    directory = tmp_path_factory.mktemp("captured")
    async with running(capturing(directory)) as gateway:
        for protocol in (*PROTOCOLS, "seldon.grpc", "seldon.http"):
            version = "" if protocol.startswith(("graphpipe", "seldon")) else "1"
            await classify(gateway, protocol, version, scans, SOME)
    return directory


@in_module
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_captures_of_every_frontend_can_be_replayed(
    protocol: str, captured: Path, served: Gateway
) -> None:
    """Recorded over any protocol, the labels differ in the same rows."""
    new = "1" if protocol == "graphpipe.http" else "2"
    url = urls(served, "digits")["oip.grpc"]
    assert await different_rows(captured, protocol, url, new) == (len(SOME), DIFFERENT)


@in_module
@pytest.mark.parametrize("protocol", ["tfs.grpc", "tfs.http"])
async def test_calls_of_tensorflow_clients_match_open_inference(
    protocol: str, captured: Path, served: Gateway
) -> None:
    """Recorded calls of TensorFlow Serving's clients, sent in Open Inference, have no mismatch."""
    every = OutputRules(outputs={"label": EXACT, "probabilities": EXACT})
    url = urls(served, "digits")["oip.http"]
    assert (len(SOME), []) == await different_rows(captured, protocol, url, "1", every)


@in_module
@pytest.mark.parametrize("protocol", ["seldon.grpc", "seldon.http"])
async def test_calls_of_seldon_match_open_inference(
    protocol: str, captured: Path, served: Gateway
) -> None:
    """Calls without datatypes, recorded for the newest version, are sent in Open Inference."""
    every = OutputRules(outputs={"probabilities": EXACT})
    url = urls(served, "digits")["oip.grpc"]
    assert (len(SOME), []) == await different_rows(captured, protocol, url, "2", every)


@of_module
async def recorded(
    scans: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a capture of all held-out scans, sent to version 1 by a TensorRT v1 client."""
    directory = tmp_path_factory.mktemp("capture")
    async with running(capturing(directory)) as gateway:
        await classify(gateway, "trtis.http", "1", scans, range(len(scans)))
    return directory


@in_module
async def test_every_upstream_protocol_finds_the_same_rows(captured: Path, served: Gateway) -> None:
    """The labels of some scans differ in exactly the same 8 rows, over every protocol."""
    found = urls(served, "digits")
    assert sorted(found) == PROTOCOLS
    for url in found.values():
        rows = await different_rows(captured, "trtis.http", url, "2")
        assert rows == (len(SOME), DIFFERENT)


Replayed = Sequence[tuple[RecordedCall, Result, Result]]


@of_module
async def replayed(recorded: Path, served: Gateway) -> Replayed:
    """Return each held-out scan with the results of version 1, as recorded, and of version 2."""
    results: list[tuple[RecordedCall, Result, Result]] = []

    def done(call: RecordedCall, new: ReplayOutcome, found: Comparison | None) -> None:
        old = recorded_result(call)
        assert (old, found) != (None, None)
        results.append((call, old or Result(), new.result))

    address = parse_url(urls(served, "digits")["oip.grpc"])
    connected = connect(address)
    options = ReplayOptions(models={"digits": ModelRef("digits", "2")}, concurrency=8)
    replay = Replay(complete_service(connected, address), options, LABEL, on_done=done)
    await replay.run(Capture(recorded).calls())
    await connected.close()
    return results


@pytest.mark.parametrize(
    ("rule", "count"),
    [
        (OutputRule(atol=0.1), 100),
        (OutputRule(atol=0.25), 33),
        (OutputRule(atol=0.5), 2),
        (OutputRule(cosine=0.95), 29),
        (OutputRule(top_k=1), 8),
        (OutputRule(top_k=3), 206),
    ],
    ids=str,
)
def test_differences_match_the_specification(
    replayed: Replayed, rule: OutputRule, count: int
) -> None:
    """Each rule of `probabilities` finds the number of differences that is specified."""
    rules = OutputRules(outputs={"label": OutputRule(ignore=True), "probabilities": rule})
    found = [compare(*each, rules).outcome for each in replayed]
    assert {Outcome.MATCH: 450 - count, Outcome.MISMATCH: count} == Counter(found)


def command(*arguments: str) -> CliResult:
    return CliRunner().invoke(command_line(arguments[:1]), list(arguments))


@of_module
async def wires(scans: npt.NDArray[np.float32], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a capture with the messages of two calls in every protocol, and of a refused one."""
    directory = tmp_path_factory.mktemp("wires")
    async with running(capturing(directory, wire=True)) as gateway:
        for protocol in PROTOCOLS:
            version = "" if protocol == "graphpipe.http" else "1"
            await classify(gateway, protocol, version, scans, [123, 1])
        address = f"http://{gateway.addresses['main.http']}/v2/models/digits/infer"
        async with aiohttp.ClientSession() as session, session.post(address, data="{") as found:
            assert found.status == 400
    return directory


@in_module
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_wire_replay_gets_the_recorded_replies(
    protocol: str, wires: Path, served: Gateway
) -> None:
    """`--wire` sends recorded messages; the replies of the same protocol are identical."""
    limits = ("--fail-if", "mismatch>0", "--fail-if", "refused>50%")
    flags = ("--wire", "--where", f"protocol={protocol}", *limits)
    url = urls(served, "digits")[protocol]
    arguments = ("replay", str(wires), "--against", url, *flags, "--output", "json")
    result = await asyncio.to_thread(gateway_command, *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    assert (document["sent"], document["outcomes"]["match"]) == (2, 2)
    refused = {"refused by the gateway": 1} if protocol == "oip.http" else {}
    assert (document["left_out"], document["refused"]) == (refused, len(refused))


@in_module
async def test_messages_of_another_protocol_are_skipped(
    wires: Path, recorded: Path, served: Gateway
) -> None:
    """A server gets only messages of its own protocol, and only recorded ones."""
    found = urls(served, "digits")
    others = await asyncio.to_thread(
        gateway_command, "replay", str(wires), "--against", found["oip.http"],
        "--wire", "--where", "protocol=trtis.*",
    )  # fmt: skip
    absent = await asyncio.to_thread(
        gateway_command, "replay", str(recorded), "--against", found["trtis.http"],
        "--wire", "--limit", "1",
    )  # fmt: skip
    assert others.returncode == absent.returncode == 1
    assert "2 calls: recorded over trtis.http; the server is oip.http" in others.stdout
    assert "message not recorded (capture: {wire: true, payload: full})" in absent.stdout


def test_wire_replay_rejects_renaming_and_references(wires: Path) -> None:
    """Another model name would change the messages; a reference has its own protocol."""
    against = ("replay", str(wires), "--against", "oip+http://127.0.0.1:1", "--wire")
    assert command(*against, "--model", "digits=other").exit_code == 2
    assert command(*against, "--reference", "oip+http://127.0.0.1:1").exit_code == 2


RULES = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
upstreams: {triton: {url: "oip+grpc://127.0.0.1:9001"}}
migrations: {digits: {compare: {outputs: {label: exact, probabilities: {top_k: 1}}}}}
"""


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--fail-if", "mismatch"), 2),
        (("--pace", "slow"), 2),
        (("--speed", "0x"), 2),
        (("--where", "speed=1"), 2),
        (("--compare", "nothing"), 2),
        (("--compare", "missing.yaml#digits"), 2),
        (("--report", "page.html", "--reference", "oip+http://127.0.0.1:1"), 2),
    ],
)
def test_wrong_usage_of_replay_is_rejected(
    tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    """Invalid flags exit with their status."""
    result = command("replay", str(tmp_path), "--against", "oip+http://127.0.0.1:1", *arguments)
    assert result.exit_code == status


NAMED = """
version: 1
listeners: [{{http: "127.0.0.1:0"}}]
upstreams: {{old: {{url: "trtis+http://127.0.0.1:1"}}, new: {{url: "{url}"}}}}
routes:
  - name: digits
    targets:
      - upstream: old
      - upstream: new
        model: next
        version: ""
        weight: 0
        tensors: {{inputs: {{X: pixels}}, outputs: {{label: class, probabilities: scores}}}}
models:
  next:
    signature:
      inputs: [{{name: pixels, datatype: FP32, shape: [-1, 64]}}]
      outputs:
        - {{name: class, datatype: INT64, shape: [-1]}}
        - {{name: scores, datatype: FP32, shape: [-1, 10]}}
migrations:
  digits: {{route: {route}, old: old, new: new/next, compare: {{outputs: {{probabilities: ignore}}}}}}
"""


async def test_names_and_signatures_of_the_configuration_are_enough(
    recorded: Path, tmp_path: Path
) -> None:
    """A server that tells nothing of its model gets its own names; results have those of clients."""
    config = yaml.safe_load(server_config())
    names = {"inputs": {"pixels": "X"}, "outputs": {"class": "label", "scores": "probabilities"}}
    config["listeners"][0]["default_model"] = "next"
    target = {"model": "digits", "version": "2", "tensors": names}
    config["routes"] = [{"match": {"model": "next"}, "targets": [target]}]
    file = tmp_path / "gateway.yaml"
    results = str(tmp_path / "results")
    async with running(yaml.safe_dump(config)) as gateway:
        url = f"mlflow+http://{gateway.addresses['main.http']}"
        file.write_text(NAMED.format(url=url, route="digits"))
        compare = ("--compare", f"{file}#digits")
        against = ("replay", str(recorded), "--against", url, *compare, "-o", results)
        replayed = await asyncio.to_thread(gateway_command, *against, "--output", "json")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    document = json.loads(replayed.stdout)
    outcomes = {key: count for key, count in document["outcomes"].items() if count}
    assert {"match": 450 - len(DIFFERENT), "mismatch": len(DIFFERENT)} == outcomes
    found = command("diff", str(recorded), results, *compare, "--output", "json")
    assert outcomes.items() <= json.loads(found.stdout)["outcomes"].items()
    file.write_text(NAMED.format(url=url, route="other"))
    wrong = command(*against)
    assert (wrong.exit_code, "unknown route 'other'" in wrong.output) == (2, True)


def test_directory_without_a_capture_is_a_usage_error(tmp_path: Path) -> None:
    """Both commands exit with status 2; `replay` names the missing capture."""
    result = command("replay", str(tmp_path), "--against", "oip+http://127.0.0.1:1")
    assert (result.exit_code, "no capture there" in result.output) == (2, True)
    assert command("diff", str(tmp_path), str(tmp_path)).exit_code == 2


def test_replay_and_diff_print_a_verdict(recorded: Path, tmp_path: Path) -> None:
    """An unreachable server fails the replay; its results can be compared."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    arguments = ("--against", "oip+http://127.0.0.1:1", "--limit", "3", "--output", "json")
    results = str(tmp_path / "results")
    result = command("replay", str(recorded), *arguments, "-o", results)
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["failed"] == document["outcomes"]["new_error"] == 3
    assert document["verdict"] == "failed, 3 calls could not be sent"
    found = command(
        "diff", str(recorded), str(recorded), "--compare", f"{rules}#digits", "--fail-if",
        "mismatch>0", "--fail-unless", "errors<1%@95%",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert found.stdout.endswith("verdict: passed\n")
    failed = command("diff", str(recorded), results, "--fail-if", "errors>0")
    assert failed.exit_code == 1
    assert "verdict: failed, errors 100.00% > 0.00%" in failed.stdout


def test_calls_that_fail_at_the_new_server_are_no_agreement(recorded: Path, tmp_path: Path) -> None:
    """No condition on replies passes; text, JSON and page begin with the failed calls."""
    results, page = tmp_path / "results", tmp_path / "page.html"
    against = ("--against", "oip+http://127.0.0.1:1", "--limit", "3")
    replayed = command("replay", str(recorded), *against, "-o", str(results), "--report", str(page))
    assert re.search(
        r"^3 calls in .* s \(--pace max\), 3 failed, 0 left out$", replayed.stdout, re.MULTILINE
    )
    assert re.search(r"^3 new_error unavailable: .+ \(call [^ ]+\)$", replayed.stdout, re.MULTILINE)
    assert "3 of 3 calls failed at the new server. No reply was compared." in page.read_text()
    found = command("diff", str(recorded), str(results), "--fail-unless", "mismatch<1%@95%")
    assert found.exit_code == 1
    assert "0 calls compared, 3 failed, 447 in one capture only" in found.stdout
    assert "mismatch is not shown to be below 1.000% at 95%: 0 of 0 calls" in found.stdout
    unjudged = command("diff", str(recorded), str(results), "--output", "json")
    document = json.loads(unjudged.stdout)
    assert unjudged.exit_code == 1
    assert document["verdict"].startswith("undecided, 3 of 3 calls failed at the new server")
    assert (3, 0, 3) == tuple(document[key] for key in ("calls", "compared", "failed"))
    assert ("unavailable", 3) == tuple(document["reasons"][0][key] for key in ("code", "count"))


@pytest.mark.parametrize("verb", ["replay", "diff"])
def test_every_mismatching_call_is_listed(recorded: Path, tmp_path: Path, verb: str) -> None:
    """`--mismatches` names each of the calls, which `capture show` finds by any of its ids."""
    against = ("replay", str(recorded), "--against", "oip+http://127.0.0.1:1", "--limit", "3")
    results, file = str(tmp_path / "results"), tmp_path / "calls.json"
    listed = ("--mismatches", str(file))
    command(*against, "-o", results, *(listed if verb == "replay" else ()))
    if verb == "diff":
        command("diff", str(recorded), results, *listed)
    found = json.loads(file.read_text())
    assert ["new_error"] * 3 == [each["outcome"] for each in found]
    for each in found:
        assert re.fullmatch(r"[a-f][0-9a-f]{3}-[0-9a-f]+", each["id"])
        for name in (each["id"], each["request_id"]):
            shown = command("capture", "show", str(recorded), "--id", name, "--output", "json")
            assert each["id"] == json.loads(shown.stdout)["id"]
    refused = command("diff", str(recorded), results, "--mismatches", str(tmp_path / "calls.txt"))
    assert (2, True) == (refused.exit_code, "neither JSON nor CSV" in refused.output)


@pytest.mark.parametrize("keeps_results", [True, False])
def test_replay_report_is_the_page_of_gateway_report(
    recorded: Path, tmp_path: Path, *, keeps_results: bool
) -> None:
    """`--report` writes the page of `gateway report`, with or without saved results."""
    page, again = tmp_path / "page.html", tmp_path / "again.html"
    results = tmp_path / "results"
    flags = ("-o", str(results)) if keeps_results else ()
    against = ("--against", "oip+http://127.0.0.1:1", "--limit", "3", "--fail-if", "errors>0")
    result = command("replay", str(recorded), *against, "--report", str(page), *flags)
    assert result.exit_code == 1
    assert "errors 100.00% &gt; 0.00%" in page.read_text()
    assert results.exists() == keeps_results
    if keeps_results:
        words = ("report", str(recorded), str(results), "-o", str(again), "--fail-if", "errors>0")
        assert command(*words).exit_code == 1
        assert page.read_bytes() == again.read_bytes()
