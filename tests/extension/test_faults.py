"""A part of a package that raises costs only its own call, and the log names it."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.extension.kit import Serving, gateway, install, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGE = """
import asyncio
import sys
import time

from gateway.api import *
from gateway.api.tensors import Context, Datatype, ModelMetadata, ServerLiveRequest, TensorMetadata
from gateway.api.wire import HttpResponse, http_status_of

FAULT = Setting(key="fault", type=str, default="", places=("route",), help="A fault.")


RAISED = {
    "call": ZeroDivisionError,
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
}


class Failing:
    def __init__(self, inner, fault):
        self.inner = inner
        self.fault = fault

    async def __call__(self, call, /):
        if self.fault in RAISED:
            raise RAISED[self.fault]("of a policy")
        if self.fault == "thread":
            await asyncio.to_thread(sys.exit, 3)
        if self.fault == "task":
            await asyncio.create_task(self._leave())
        reply = await self.inner(call)
        return {"none": None, "text": "text"}.get(self.fault, reply)

    async def _leave(self):
        raise SystemExit(3)


class Transform:
    needs = frozenset()

    def before(self, request, /):
        return None

    def after(self, request, reply, /):
        return reply


class Authoriser:
    async def authorise(self, identity, call, /):
        if call.model is not None and call.model.name == "authoriser":
            raise SystemExit("of an authoriser")
        return True


class Authenticator:
    def authenticate(self, credentials, /):
        if dict(credentials.fields).get("x-fault"):
            raise SystemExit("of an authenticator")
        return Identity("guest")


class Model(Backend):
    def __init__(self, spec):
        self.fault = spec.options["fault"]

    metadata = ModelMetadata(
        name="",
        platform="",
        inputs=(TensorMetadata("INPUT0", Datatype.INT64, (-1,)),),
        outputs=(TensorMetadata("OUTPUT0", Datatype.INT64, (-1,)),),
    )

    def load(self):
        pass

    def unload(self):
        pass

    def infer(self, inputs, job, /):
        if self.fault == "hang":
            time.sleep(3600)
        raise RAISED[self.fault]("of a model")


class CodecThatLeaves(Codec):
    name = "leave.http"
    needs = frozenset()

    def decode_call(self, wire, request_id="", /):
        if wire.path == "/leave/decode":
            raise SystemExit("of a codec")
        return ServerLiveRequest(context=Context(self.name))

    def encode_reply(self, call, reply, /):
        raise KeyboardInterrupt("of a codec")

    def encode_error(self, call, error, /):
        return HttpResponse(http_status_of(error))

    def encode_call(self, call, /):
        raise SystemExit("of a codec")

    def decode_reply(self, call, wire, /):
        raise SystemExit("of a codec")


SPEC = ProtocolSpec(
    name="leave",
    title="Leave",
    page="https://leave.example",
    http=HttpBinding(codec=lambda _limits, _options: CodecThatLeaves(), prefixes=("/leave",)),
)


async def leave(request):
    raise SystemExit("of a page")


class Pages(LeadingPart):
    routes = (AdminRoute(path="/api/v1/leave", summary="Leaves.", handle=leave),)


class Wing(Extension):
    name = "wing"

    def lead(self, _processes, /):
        return Pages()


class Rule:
    def compare(self, old, new, /):
        raise ZeroDivisionError("of a rule")


def build(inner, at):
    fault = at.setting(FAULT)
    if fault == "build":
        raise ZeroDivisionError("of a builder")
    return Failing(inner.questions, fault) if fault else None


LAYER = Layer(name="Failing", purpose="fails", chain="route", build=build, settings=(FAULT,))


def check(config):
    raise SystemExit("of a check")


UNSURE = Layer("Unsure", "fails", "route", build, settings=(FAULT,), check=check)
TIMEOUT = Setting(key="timeout", type=str, default="", places=("route",), help="A fault.")
TAKEN = Layer(name="Taken", purpose="fails", chain="route", build=build, settings=(TIMEOUT,))
KIND = Setting(key="kind", type=Failing, default=None, places=("route",), help="A fault.")
TYPED = Layer(name="Typed", purpose="fails", chain="route", build=build, settings=(KIND,))
"""
GROUPS = {
    "gateway.protocols": {"leave": "gateway_faulty:SPEC"},
    "gateway.extensions": {"wing": "gateway_faulty:Wing"},
    "gateway.authenticators": {"strict": "gateway_faulty:Authenticator"},
    "gateway.backends": {"failing": "gateway_faulty:Model"},
    "gateway.layers": {"failing": "gateway_faulty:LAYER"},
    "gateway.transforms": {"lost": "gateway_faulty:Transform"},
    "gateway.authorisers": {"unsure": "gateway_faulty:Authoriser"},
    "gateway.comparison_rules": {"broken": "gateway_faulty:Rule"},
}
KINDS = ("call", "exit", "interrupt", "generator", "cancelled", "thread", "task", "none", "text")
CONFIG = """version: 1
listeners: [{http: "127.0.0.1:0", authoriser: unsure, protocols: [oip, leave]}]
admin: {address: "127.0.0.1:0"}
security: {authenticator: strict}
telemetry: {log: {format: json}}
models:
  same: {backend: python, options: {callable: "gateway.backends.examples:identity_int64"}}
  MODELS
routes:
  ROUTES
  - {name: transform, match: {model: transform}, targets: [{model: same, transform: lost}]}
  - {name: plain, targets: [{model: same}]}
"""
CONFIG = CONFIG.replace(
    "  MODELS\n",
    "".join(
        f"  model-{kind}: {{backend: failing, options: {{fault: {kind}}}}}\n" for kind in KINDS[:5]
    ),
).replace(
    "  ROUTES\n",
    "".join(
        f"  - {{name: {kind}, match: {{model: {kind}}}, fault: {kind}, targets: [{{model: same}}]}}\n"
        f"  - {{name: m-{kind}, match: {{model: model-{kind}}}, fault: below, "
        f"targets: [{{model: model-{kind}}}]}}\n"
        for kind in KINDS[:5]
    )
    + "".join(
        f"  - {{name: {kind}, match: {{model: {kind}}}, fault: {kind}, targets: [{{model: same}}]}}\n"
        for kind in KINDS[5:]
    ),
)
PLAIN = """version: 1
listeners: [{http: "127.0.0.1:0", protocols: [oip]}]
models:
  same: {backend: python, options: {callable: "gateway.backends.examples:identity_int64"}}
routes: [{name: policy, fault: call, targets: [{model: same}]}]
"""
BODY = '{"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1], "data": [1]}]}'


def installed(folder: Path, groups: dict[str, dict[str, str]]) -> Path:
    (folder / "gateway_faulty.py").write_text(PACKAGE)
    install(folder, "gateway-faulty", groups)
    return folder


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    site = installed(tmp_path_factory.mktemp("site"), GROUPS)
    config = site / "gateway.yaml"
    config.write_text(CONFIG)
    with serving(site, config) as found:
        yield found


def status(running: Serving, model: str) -> int:
    connection = HTTPConnection(str(running.addresses["main.http"]), timeout=60)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", BODY)
        return connection.getresponse().status
    finally:
        connection.close()


def get(running: Serving, server: str, path: str, headers: dict[str, str]) -> int:
    connection = HTTPConnection(str(running.addresses[server]), timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("model", "part"),
    [
        *((kind, "layer 'failing'") for kind in KINDS),
        ("transform", "transform 'lost'"),
        ("authoriser", "authoriser 'unsure'"),
    ],
)
def test_a_part_that_raises_costs_its_own_call(running: Serving, model: str, part: str) -> None:
    """The call fails as an internal error, others are served, and the log names the part."""
    before = len(running.log)
    assert 500 == status(running, model)
    assert "exception" in running.wait_for("internal error", after=before, part=part)
    assert "internal" == running.wait_for("call", after=before, model=model)["code"]
    assert 200 == status(running, "same")


@pytest.mark.parametrize("kind", ["call", "exit", "interrupt", "generator", "cancelled"])
def test_a_model_that_raises_costs_its_own_call(running: Serving, kind: str) -> None:
    """Its fault is none of the layer around it."""
    before = len(running.log)
    assert 500 == status(running, f"model-{kind}")
    assert "upstream" == running.wait_for("call", after=before, model=f"model-{kind}")["code"]
    assert not [line for line in running.log[before:] if line["event"] == "internal error"]
    assert 200 == status(running, "same")


@pytest.mark.parametrize(
    ("path", "headers", "expected", "keys"),
    [
        ("/leave/decode", {}, 500, {"part": "protocol 'leave'"}),
        ("/leave/encode", {}, 500, {"part": "protocol 'leave'"}),
        ("/v2", {"x-fault": "1"}, 500, {"part": "authenticator 'strict'"}),
    ],
)
def test_a_part_that_exits_does_not_end_the_gateway(
    running: Serving, path: str, headers: dict[str, str], expected: int, keys: dict[str, str]
) -> None:
    """It costs its own request."""
    before = len(running.log)
    assert expected == get(running, "main.http", path, headers)
    running.wait_for("internal error", after=before, **keys)
    assert 200 == status(running, "same")


def test_a_page_that_exits_does_not_end_the_gateway(running: Serving) -> None:
    """It costs its own request."""
    assert 500 == get(running, "admin", "/api/v1/leave", {})
    assert 200 == status(running, "same")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("signals", [1, 2])
def test_a_model_that_hangs_kept_the_process(tmp_path: Path, workers: int, signals: int) -> None:
    """The process ends within the grace; a second SIGTERM ends it at once."""
    site = installed(tmp_path, GROUPS)
    config = site / "gateway.yaml"
    drain = "1s" if signals == 1 else "1h"
    config.write_text(
        f"version: 1\nworkers: {workers}\nlifecycle: {{pre_stop: 0s, drain: {drain}}}\n"
        "admin: {address: off}\ntelemetry: {log: {format: json}}\n"
        'listeners: [{http: "127.0.0.1:0", protocols: [oip]}]\n'
        "models: {hang: {backend: failing, options: {fault: hang}}}\n"
    )
    with serving(site, config) as found:
        connection = HTTPConnection(str(found.addresses["main.http"]), timeout=60)
        connection.request("POST", "/v2/models/hang/infer", BODY)
        connection.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.getresponse()
        for number in range(signals):
            found.process.terminate()
            if number == 0:
                found.wait_for("not ready")
        found.process.wait(30)
        connection.close()


@pytest.mark.parametrize(
    ("entry", "config", "message"),
    [
        ("failing = LAYER", PLAIN.replace("fault: call", "fault: build"), "ZeroDivisionError"),
        ("unsure = UNSURE", PLAIN, "layer 'unsure' cannot check its keys: SystemExit: of a check"),
        ("failing = NOTHING", PLAIN, "module 'gateway_faulty' has no 'NOTHING'"),
        ("failing = Rule", PLAIN, "package 'gateway-faulty': layer 'failing' is a type; expected"),
        ("taken = TAKEN", PLAIN.replace(", fault: call", ""), "the key 'timeout' of 'route'"),
        ("typed = TYPED", PLAIN.replace(", fault: call", ""), "the key 'kind' of an installed"),
    ],
)
def test_a_package_that_cannot_be_used_is_named(
    tmp_path: Path, entry: str, config: str, message: str
) -> None:
    """The gateway does not start, and one line says which part is wrong, and how."""
    name, _, attribute = entry.split()
    site = installed(tmp_path, {"gateway.layers": {name: f"gateway_faulty:{attribute}"}})
    path = tmp_path / "gateway.yaml"
    path.write_text(config)
    found = gateway(site, "serve", str(path))
    assert 0 != found.returncode
    assert message in found.stderr
    assert "Traceback" not in found.stderr


STEP = """
from gateway.api import Extension, LeadingPart, ServingPart

class Serving(ServingPart):
    async def start(self):
        leave("serving")

class Leading(LeadingPart):
    async def start(self):
        leave("leading")

class Step(Extension):
    name = "step"
    def serve(self, process):
        leave("serve")
        return Serving()
    def lead(self, processes):
        leave("lead")
        return Leading()
    def warnings(self, config):
        leave("warnings")
        return []

def leave(step):
    if step == %r:
        raise SystemExit("of a step")
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("step", ["serve", "lead", "serving", "leading", "warnings"])
def test_a_step_of_an_extension_ended_the_gateway_without_a_word(
    tmp_path: Path, step: str, workers: int
) -> None:
    """One line names the extension; warnings that it cannot look for are a warning."""
    site = installed(tmp_path, {"gateway.extensions": {"step": "gateway_step:Step"}})
    (site / "gateway_step.py").write_text(STEP % step)
    path = tmp_path / "gateway.yaml"
    path.write_text(f"workers: {workers}\n{PLAIN.replace(', fault: call', '')}")
    command = ("validate", "--strict") if step == "warnings" else ("serve",)
    found = gateway(site, *command, str(path))
    does = "look for warnings" if step == "warnings" else "start"
    assert 1 == found.returncode
    shown = found.stdout + found.stderr
    assert f"extension 'step' cannot {does}: SystemExit: of a step" in shown
    assert "Traceback" not in shown
