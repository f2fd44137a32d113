"""The jobs: each has a request, the systems that process it, and a check of their responses."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial

from benchmarks import graphpipe, grps, messages, model_servers, noop, systems, tensorrt
from benchmarks.applications import KINDS
from benchmarks.messages import Arrays, Case, Message
from benchmarks.systems import Running

Start = Callable[[str, int], AbstractContextManager[Running]]
"""Starts a system before an upstream: its carrier and port."""

DIFFERING = "differing forms"
REPEATED = "repeated"
TRANSCODED_PATH = "/inference.GRPCInferenceService/ModelInfer"

SIZES = tuple(1 << bits for bits in (10, 13, 16, 18, 20, 22, 24))
ENDPOINTS = (1, 4, 16, 64)
SIZE, ENDPOINT = "sizes", "endpoints"
"""The jobs of a curve have this name and a size, or a number of endpoints."""

ROWS, COLUMNS = "gateway, rows in", "gateway, mlflow in"
"""Contenders with clients of TensorFlow Serving, and of MLflow."""

_REFERENCE = partial(systems.gateway, transport="reference")


@dataclass(frozen=True)
class Contender:
    """A system in a job.

    Attributes:
        start: Starts it. None means the canned server itself, or the server of the job.
        front: Carrier of its clients.
        back: Carrier of its upstream; None for a server that needs none.
        question: The request.
        path: HTTP path, or gRPC method with "" for Open Inference's.
        read: Reads the outputs of its response.
        others: Further requests, sent in turn with the first.
        kind: Of requests as applications send them, in place of those; "" for none.
        exact: The outputs must equal the canned ones.
        with_back: The CPU time of its upstream counts as well.
    """

    name: str
    start: Start | None
    front: str
    back: str | None
    question: Message
    path: str
    read: Callable[[Message], Arrays]
    others: tuple[Message, ...] = ()
    kind: str = ""
    exact: bool = True
    with_back: bool = False


@dataclass(frozen=True)
class Job:
    """A request and the systems that process it.

    Attributes:
        connections: Connections of the load.
        replies: Responses of the canned server, by carrier.
        server: Replaces the canned server, on the core of the systems.
        addresses: On which the canned server listens.
    """

    name: str
    case: Case
    connections: int
    contenders: tuple[Contender, ...]
    replies: dict[str, Message]
    server: Callable[[], AbstractContextManager[Running]] | None = None
    addresses: int = 1


@cache
def all_jobs() -> tuple[Job, ...]:
    """Return every job, whose messages take seconds to make."""
    small, image, huge = messages.small(), messages.image(), messages.huge()
    return (
        *(_as_sent(_json_to_grpc("", small, 32), "json-grpc", kind) for kind in KINDS),
        *(_as_sent(_grpc_to_http("", small, 32), "grpc-http", kind) for kind in KINDS),
        _json_to_grpc("json-grpc small", small, 32),
        _grpc_to_http("grpc-http small", small, 32),
        _binary("binary-grpc small", small, 32, "grpc"),
        _grpc_to_grpc("grpc-grpc small", small, 32),
        _binary("binary-http 602KB", image, 8, "http"),
        _binary("binary-grpc 602KB", image, 8, "grpc"),
        _grpc_to_http("grpc-http 602KB", image, 8),
        _grpc_to_grpc("grpc-grpc 602KB", image, 8),
        _binary("binary-http 16MB", huge, 4, "http"),
        _json_to_grpc("json-grpc 150k floats", image, 8),
        _served("json-noop small", small, 32, "json"),
        _served("grpc-noop small", small, 32, "grpc"),
        _served("binary-noop 602KB", image, 8, "binary"),
        _served("grpc-noop 602KB", image, 8, "grpc"),
        _served("json-noop 150k floats", image, 8, "json"),
        _rows_to_grpc("rows-grpc small", small, 32),
        _rows_to_grpc("rows-grpc 150k floats", image, 8),
        _rows_served("rows-noop small", small, 32),
        _before_triton("json-triton small", small, 32),
        _before_triton("json-triton 150k floats", image, 8),
        _differing_forms("forms json-grpc small", small, 32),
        *(_of_size(nbytes) for nbytes in SIZES),
        *(_balanced(small, count, 32) for count in ENDPOINTS),
    )


Make = Callable[..., Contender]


def _http(case: Case, question: Message) -> Make:
    """Return a function that creates contenders with HTTP clients."""
    return partial(
        Contender,
        front="http",
        question=question,
        path=f"/v2/models/{case.model}/infer",
        read=messages.read_http,
    )


def _json(case: Case) -> Make:
    """Return the same for JSON. Its small requests differ from one to the next."""
    varied = _varied(case, messages.json_request)
    return partial(_http(case, messages.json_request(case)), others=varied)


def _varied(case: Case, write: Callable[[Case], Message]) -> tuple[Message, ...]:
    if case.name != messages.SMALL:
        return ()
    return tuple(write(each) for each in messages.variations(case))


def _grpc(case: Case) -> Make:
    """Return a function that creates contenders with gRPC clients."""
    question = messages.grpc_request(case)
    return partial(Contender, front="grpc", question=question, path="", read=messages.read_grpc)


def _json_to_grpc(name: str, case: Case, connections: int) -> Job:
    http = _json(case)
    transcoder = Contender(
        "envoy transcoder",
        systems.envoy_transcoder,
        "http",
        "grpc",
        messages.transcoder_request(case),
        TRANSCODED_PATH,
        messages.read_transcoded,
        _varied(case, messages.transcoder_request),
    )
    contenders = (
        http("gateway", systems.gateway, back="grpc"),
        http("gateway, reference", _REFERENCE, back="grpc"),
        http("card", systems.card, back="grpc"),
        transcoder,
        http("envoy proxy (nt)", systems.envoy_proxy, back="http"),
        http("nginx proxy (nt)", systems.nginx_proxy, back="http"),
        http("direct (nt)", None, back="http"),
    )
    replies = {"grpc": messages.grpc_reply(case), "http": messages.json_reply(case)}
    return Job(name, case, connections, contenders, replies)


def _grpc_to_http(name: str, case: Case, connections: int) -> Job:
    grpc = _grpc(case)
    contenders = (
        grpc("gateway", systems.gateway, back="http"),
        grpc("gateway, reference", _REFERENCE, back="http"),
        grpc("card", systems.card, back="http"),
        grpc("envoy proxy (nt)", systems.envoy_proxy, back="grpc"),
        grpc("nginx proxy (nt)", systems.nginx_proxy, back="grpc"),
        grpc("direct (nt)", None, back="grpc"),
    )
    return Job(name, case, connections, contenders, _binary_replies(case))


def _grpc_to_grpc(name: str, case: Case, connections: int) -> Job:
    """Compare grps over brpc and over gRPC with Open Inference, all to Open Inference over gRPC."""
    grpc = partial(_grpc(case), back="grpc")
    start = partial(systems.gateway, models={case.model: {"signature": messages.signature(case)}})
    over_grpc, over_brpc = grps.grpc_request(case), grps.brpc_request(case)
    contenders = (
        grpc("gateway", systems.gateway),
        grpc("gateway, reference", _REFERENCE),
        Contender(
            "gateway, grps in", start, "grpc", "grpc", over_grpc, grps.METHOD, grps.read_grpc
        ),
        Contender("gateway, brpc in", start, "brpc", "grpc", over_brpc, "", grps.read_brpc),
        grpc("envoy proxy (nt)", systems.envoy_proxy),
        grpc("direct (nt)", None),
    )
    return Job(name, case, connections, contenders, {"grpc": messages.grpc_reply(case)})


def _binary(name: str, case: Case, connections: int, back: str) -> Job:
    http = _http(case, messages.binary_request(case))
    graph = Contender(
        "gateway, graphpipe in",
        graphpipe.start(case),
        "http",
        back,
        graphpipe.request(case),
        f"/graphpipe/{case.model}",
        graphpipe.read(case),
    )
    tensor = Contender(
        "gateway, tensorrt in",
        tensorrt.start(case),
        "http",
        back,
        tensorrt.request(case),
        tensorrt.path(case),
        tensorrt.read(case),
    )
    others = (
        http("card", systems.card, back=back),
        http("envoy proxy (nt)", systems.envoy_proxy, back="http"),
        http("nginx proxy (nt)", systems.nginx_proxy, back="http"),
    )
    contenders = (
        http("gateway", systems.gateway, back=back),
        *((graph, tensor) if case.name != messages.HUGE else ()),
        http("gateway, reference", _REFERENCE, back=back),
        # Systems that only forward have one protocol on both sides: they are compared in that job.
        *(others if back == "http" else ()),
        http("direct (nt)", None, back="http"),
    )
    return Job(name, case, connections, contenders, _binary_replies(case))


def _served(name: str, case: Case, connections: int, form: str) -> Job:
    """Return servers with a model that does nothing. The one of the gateway runs in its process."""
    make = _maker(case, form)
    servers = {
        "triton": model_servers.triton,
        "mlserver": model_servers.mlserver,
        "kserve": model_servers.kserve,
    }
    contenders = (
        make("gateway", _noop(case, None), back=None),
        make("gateway, reference", _noop(case, "reference"), back=None),
        *(make(name, _alone(server, case), back=None) for name, server in servers.items()),
    )
    return Job(name, case, connections, contenders, {})


def _row_clients(case: Case, start: Start, back: str | None) -> tuple[Contender, Contender]:
    """Return clients of TensorFlow Serving and MLflow, which send rows without datatypes."""
    read = partial(messages.read_rows, case)
    predict, varied = f"/v1/models/{case.model}:predict", partial(_varied, case)
    rows, columns = messages.rows_request, messages.columns_request
    return (
        Contender(ROWS, start, "http", back, rows(case), predict, read, varied(rows)),
        Contender(
            COLUMNS, start, "http", back, columns(case), "/invocations", read, varied(columns)
        ),
    )


def _rows_to_grpc(name: str, case: Case, connections: int) -> Job:
    """Compare rows with the same request of Open Inference as JSON."""
    models = {case.model: {"signature": messages.signature(case)}}
    start = partial(systems.gateway, models=models, default_model=case.model)
    base = _json(case)("gateway", start, back="grpc")
    contenders = (base, *_row_clients(case, start, "grpc"))
    return Job(name, case, connections, contenders, {"grpc": messages.grpc_reply(case)})


def _rows_served(name: str, case: Case, connections: int) -> Job:
    """Return servers of rows with a model that does nothing."""
    first, second = _row_clients(case, _noop(case, None), None)
    contenders = (
        replace(first, name="gateway"),
        second,
        replace(first, name="kserve", start=_alone(model_servers.kserve, case)),
        replace(second, name="mlflow", start=_alone(model_servers.mlflow, case)),
    )
    return Job(name, case, connections, contenders, {})


def _maker(case: Case, form: str) -> Make:
    if form == "grpc":
        return _grpc(case)
    return _http(case, messages.binary_request(case)) if form == "binary" else _json(case)


def _before_triton(name: str, case: Case, connections: int) -> Job:
    """Return Triton with JSON clients, and the gateway with Triton. Both share the core."""
    http = _json(case)
    contenders = (
        http("gateway", systems.gateway, back="grpc", with_back=True),
        http("gateway, without triton's share", systems.gateway, back="grpc"),
        http("triton itself", None, back=None),
    )
    server = partial(model_servers.triton, case)
    return Job(name, case, connections, contenders, {}, server)


def _differing_forms(name: str, case: Case, connections: int) -> Job:
    """Return systems that get requests of one form, and of many."""
    job = _json_to_grpc(name, case, connections)
    writers = {"gateway": messages.json_request, "envoy transcoder": messages.transcoder_request}
    found: list[Contender] = []
    for each in job.contenders:
        if each.name in writers:
            first, *others = messages.differing(case, writers[each.name])
            many = replace(
                each, name=f"{each.name}, {DIFFERING}", question=first, others=tuple(others)
            )
            found += [each, many]
    return replace(job, contenders=tuple(found))


def _as_sent(job: Job, name: str, kind: str) -> Job:
    """Return a job with requests as applications send them, and the gateway with repeated ones."""
    found = []
    for each in job.contenders:
        if each.name in ("gateway", "envoy transcoder", "envoy proxy (nt)"):
            if (each.front, each.back) == ("http", "http"):
                continue  # a proxy reads no JSON
            found.append(replace(each, kind=kind, others=()))
    repeated = replace(found[0], name=f"gateway, {REPEATED}", kind=REPEATED)
    contenders = (found[0], repeated, *found[1:])
    return replace(job, name=f"{name} {kind}", contenders=contenders)


def _of_size(nbytes: int) -> Job:
    """Return what forwards a binary tensor of a size."""
    case = messages.sized(nbytes)
    connections = 32 if nbytes <= 1 << 16 else 8 if nbytes <= 1 << 20 else 4
    name = f"{SIZE} {messages.size_name(nbytes)}"
    return _forwarding(_binary(name, case, connections, "http"))


def _balanced(case: Case, count: int, connections: int) -> Job:
    """Return what balances small binary requests over a number of endpoints."""
    name = f"{ENDPOINT} {count}"
    starts: dict[str, Callable[..., AbstractContextManager[Running]]] = {
        "gateway": systems.gateway,
        "envoy proxy (nt)": systems.envoy_proxy,
        "nginx proxy (nt)": systems.nginx_proxy,
    }
    http = _http(case, messages.binary_request(case))
    contenders = tuple(
        http(system, partial(start, addresses=count), back="http")
        for system, start in starts.items()
    )
    return Job(name, case, connections, contenders, _binary_replies(case), addresses=count)


def _forwarding(job: Job) -> Job:
    """Return a job without the other protocols and implementations of the gateway."""
    found = tuple(each for each in job.contenders if each.name == "gateway" or "(nt)" in each.name)
    return replace(job, contenders=found)


def _noop(case: Case, transport: str | None) -> Start:
    """Return a function that starts a gateway whose model does nothing."""
    sections = {"models": noop.models(case)}
    return lambda _carrier, _port: systems.serving(sections, transport)


def _alone(server: Callable[[Case], AbstractContextManager[Running]], case: Case) -> Start:
    """Return a function that starts a server without an upstream."""
    return lambda _carrier, _port: server(case)


def _binary_replies(case: Case) -> dict[str, Message]:
    return {"http": messages.binary_reply(case), "grpc": messages.grpc_reply(case)}
