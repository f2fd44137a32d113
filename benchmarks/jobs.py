"""What is measured: each job is a question, the systems that answer it, and how it is checked."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

from benchmarks import graphpipe, grps, messages, systems, tensorrt
from benchmarks.messages import Arrays, Case, Message
from benchmarks.systems import Running

Start = Callable[[str, int], AbstractContextManager[Running]]
"""Starts a system before an upstream: its carrier and port."""

_NATIVE = partial(systems.gateway, transport="native")

TRANSCODED_PATH = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Contender:
    """A system in a job.

    Attributes:
        start: None for the canned server itself, asked without anything between.
        front: Carrier it is asked by.
        back: Carrier of its upstream; None for a server that needs none.
        question: What it is asked.
        path: Of HTTP; of a gRPC method, "" for Open Inference's.
        read: Its answer's outputs.
        exact: Those are the canned ones.
    """

    name: str
    start: Start | None
    front: str
    back: str | None
    question: Message
    path: str
    read: Callable[[Message], Arrays]
    exact: bool = True


@dataclass(frozen=True)
class Job:
    """A question, and who answers it.

    Attributes:
        connections: Of the load.
        replies: Of the canned server, by carrier.
    """

    name: str
    case: Case
    connections: int
    contenders: tuple[Contender, ...]
    replies: dict[str, Message]


def all_jobs() -> list[Job]:
    """Return every job."""
    small, image = messages.small(), messages.image()
    return [
        _json_to_grpc("json-grpc small", small, 32),
        _grpc_to_http("grpc-http small", small, 32),
        _grpc_to_http("grpc-http 602KB", image, 8),
        _binary("binary-grpc small", small, 32, "grpc"),
        _binary("binary-grpc 602KB", image, 8, "grpc"),
        _binary("binary-http 602KB", image, 8, "http"),
        _json_to_grpc("json-grpc 150k floats", image, 8),
        _grpc_to_grpc("grpc-grpc small", small, 32),
        _grpc_to_grpc("grpc-grpc 602KB", image, 8),
    ]


def _json_to_grpc(name: str, case: Case, connections: int) -> Job:
    question = messages.json_request(case)
    path = f"/v2/models/{case.model}/infer"
    replies = {"grpc": messages.grpc_reply(case), "http": messages.json_reply(case)}
    http = partial(Contender, front="http", question=question, path=path, read=messages.read_http)
    return Job(
        name,
        case,
        connections,
        (
            http("gateway", systems.gateway, back="grpc"),
            http("gateway, native", _NATIVE, back="grpc"),
            http("card", systems.card, back="grpc"),
            Contender(
                "envoy transcoder",
                systems.envoy_transcoder,
                "http",
                "grpc",
                messages.transcoder_request(case),
                TRANSCODED_PATH,
                messages.read_transcoded,
            ),
            http("envoy proxy (nt)", systems.envoy_proxy, back="http"),
            http("direct (nt)", None, back="http"),
            http("mlserver itself", systems.mlserver, back=None, exact=case.name == "small"),
        ),
        replies,
    )


def _grpc_to_http(name: str, case: Case, connections: int) -> Job:
    grpc = partial(
        Contender,
        front="grpc",
        question=messages.grpc_request(case),
        path="",
        read=messages.read_grpc,
    )
    return Job(
        name,
        case,
        connections,
        (
            grpc("gateway", systems.gateway, back="http"),
            grpc("gateway, native", _NATIVE, back="http"),
            grpc("card", systems.card, back="http"),
            grpc("envoy proxy (nt)", systems.envoy_proxy, back="grpc"),
            grpc("direct (nt)", None, back="grpc"),
            grpc("mlserver itself", systems.mlserver, back=None, exact=case.name == "small"),
        ),
        {"http": messages.binary_reply(case), "grpc": messages.grpc_reply(case)},
    )


def _grpc_to_grpc(name: str, case: Case, connections: int) -> Job:
    """Grps over brpc and over gRPC beside Open Inference, all to Open Inference over gRPC."""
    grpc = partial(
        Contender,
        front="grpc",
        back="grpc",
        question=messages.grpc_request(case),
        path="",
        read=messages.read_grpc,
    )
    told = partial(systems.gateway, models={case.model: {"signature": messages.signature(case)}})
    return Job(
        name,
        case,
        connections,
        (
            grpc("gateway", systems.gateway),
            grpc("gateway, native", _NATIVE),
            Contender(
                "gateway, grps in",
                told,
                "grpc",
                "grpc",
                grps.grpc_request(case),
                grps.METHOD,
                grps.read_grpc,
            ),
            Contender(
                "gateway, brpc in",
                told,
                "brpc",
                "grpc",
                grps.brpc_request(case),
                "",
                grps.read_brpc,
            ),
            grpc("envoy proxy (nt)", systems.envoy_proxy),
            grpc("direct (nt)", None),
        ),
        {"grpc": messages.grpc_reply(case)},
    )


def _tensorrt(name: str, case: Case, back: str, transport: str) -> Contender:
    return Contender(
        name,
        tensorrt.start(case, transport),
        "http",
        back,
        tensorrt.request(case),
        tensorrt.path(case),
        tensorrt.read(case),
    )


def _binary(name: str, case: Case, connections: int, back: str) -> Job:
    http = partial(
        Contender,
        front="http",
        question=messages.binary_request(case),
        path=f"/v2/models/{case.model}/infer",
        read=messages.read_http,
    )
    return Job(
        name,
        case,
        connections,
        (
            http("gateway", systems.gateway, back=back),
            Contender(
                "gateway, graphpipe in",
                graphpipe.start(case),
                "http",
                back,
                graphpipe.request(case),
                f"/graphpipe/{case.model}",
                graphpipe.read(case),
            ),
            _tensorrt("gateway, tensorrt in", case, back, "reference"),
            http("gateway, native", _NATIVE, back=back),
            _tensorrt("gateway, native, tensorrt in", case, back, "native"),
            http("card", systems.card, back=back),
            http("envoy proxy (nt)", systems.envoy_proxy, back="http"),
            http("direct (nt)", None, back="http"),
        ),
        {"http": messages.binary_reply(case), "grpc": messages.grpc_reply(case)},
    )
