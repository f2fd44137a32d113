"""Real clients through the gateway in front of real servers, judged by their output.

Every check has the result of Triton itself through the gateway, but for a table of
differences with their reasons. Behind MLServer and KServe the gateway gives a Triton client more
than these servers do by themselves; what is left is theirs, and listed as well.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.cli_kit import Running
from tests.interop.client import SCRIPT_WORDS, Client
from tests.interop.gateways import CARRIERS, gateway_before, serving
from tests.interop.judge import problems
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SCRIPTS = tuple(SCRIPT_WORDS)

# What is asked of a sidecar beyond inference, health and metadata is off unless a flag says so.
ENABLED = ("repository_index", "model_configuration", "statistics=target")
# Triton's own configuration, counts and labels: other servers have none.
TRITONS_OWN = frozenset({"model_config", "model_statistics", "classification"})
# Over HTTP Triton has `generate_stream` only, which carries no empty input.
STREAMS = frozenset({"stream_of_none"})
# The gateway asks a decoupled model with a stream, and has the one answer for who asks for one.
SINGLE = frozenset({"stream_model_without_stream"})
OWN = frozenset(
    {
        "server_metadata",  # the gateway says its own name
        "forwarded_header",  # headers cross when they are listed: test_listed_headers_are_forwarded
    }
)

ABSENT = frozenset(
    # Models and checks of models that the test servers other than Triton do not have.
    {"add_sub_string", "add_sub_string_json", "sequence", "sequence_not_started"}
)
NOT_CHECKED = frozenset(
    # These servers leave shapes, datatypes and names to the model, and word errors their own way.
    {"wrong_shape", "wrong_datatype", "missing_input", "unknown_model", "model_metadata_unknown"}
    | {"stream_model_without_stream", "model_metadata_version", "identity_bf16"}
)
NOT_IN_JSON = frozenset({"identity_fp16", "identity_fp32", "identity_fp64", "identity_bytes"})
NO_VERSIONS = frozenset({"versions", "model_ready_version"})

# MLServer marks no last answer, and has other words for a model it does not know; its test model
# knows no bad elements, and over gRPC it fails on none at all.
MLSERVER_STREAMS = frozenset({"stream_with_error", "stream_two_requests", "stream_unknown_model"})

# KServe has no streams: what its models answer comes through one, and of these it has none.
KSERVE_STREAMS = MLSERVER_STREAMS | {"stream", "stream_of_none"}

BEHIND = {
    ("mlserver", "grpc"): ABSENT
    | NOT_CHECKED
    | MLSERVER_STREAMS
    | {"stream_of_none"}
    | {"outputs_swapped"}  # in the order that was asked for
    | {"request_id"},  # an id beyond ASCII breaks MLServer's gRPC side
    ("mlserver", "http"): ABSENT
    | NOT_CHECKED
    | MLSERVER_STREAMS
    | {"outputs_swapped"}
    # JSON carries neither infinities nor bytes that are no text, and MLServer has nothing else.
    | NOT_IN_JSON,
    ("kserve", "grpc"): ABSENT
    | NOT_CHECKED
    | KSERVE_STREAMS
    | NO_VERSIONS
    # KServe hides what a failing model says over gRPC.
    | {f"model_error_{number}" for number in range(2, 9)},
    ("kserve", "http"): ABSENT
    | NOT_CHECKED
    | KSERVE_STREAMS
    | NO_VERSIONS
    | {"outputs_swapped"}
    | {"identity_bytes"}  # KServe's BYTES are text over HTTP
    | {"parameters"},  # KServe shows the model that binary answers were asked for
}

# MLServer's HTTP errors have no codes of their own: these two arrive as another code over gRPC.
CODES_LOST = frozenset({"model_error_6", "model_error_8"})


@contextmanager
def sidecar(server: RunningServer, carrier: str) -> Iterator[Running]:
    """Run a gateway in front of *server* that forwards what `ENABLED` names."""
    enabled = [word for name in ENABLED for word in ("--enable", name)]
    with gateway_before(server, carrier, *enabled) as gateway:
        yield gateway


def seen_through(gateway: Running, client: Client, script: str) -> set[str]:
    """Return the checks whose results through *gateway* differ from Triton's."""
    name = "main.http" if script.endswith("_http") else "main.grpc"
    return set(problems(client.checks(script, gateway.addresses[name]), script))


def _own(script: str, carrier: str) -> frozenset[str]:
    own = OWN | SINGLE
    if script.endswith("_http"):
        return own
    return own | (STREAMS if carrier == "http" else frozenset())


@pytest.mark.parametrize("carrier", CARRIERS)
def test_triton_through_the_gateway(
    triton_server: RunningServer, client: Client, carrier: str
) -> None:
    """Every tritonclient sees Triton through the gateway as it sees it directly."""
    with sidecar(triton_server, carrier) as gateway:
        for script in SCRIPTS:
            assert set(_own(script, carrier)) == seen_through(gateway, client, script), script


@pytest.mark.parametrize("carrier", CARRIERS)
def test_mlserver_through_the_gateway(
    mlserver_server: RunningServer, client: Client, carrier: str
) -> None:
    """A tritonclient, with binary tensors, uses MLServer like Triton."""
    with sidecar(mlserver_server, carrier) as gateway:
        for script in ("tritonclient_http", "tritonclient_grpc"):
            lost = CODES_LOST if (carrier, script) == ("http", "tritonclient_grpc") else frozenset()
            expected = BEHIND["mlserver", carrier] | TRITONS_OWN | _own(script, carrier) | lost
            unexpected = seen_through(gateway, client, script) - expected
            assert set() == unexpected, script


@pytest.mark.parametrize("carrier", CARRIERS)
def test_kserve_through_the_gateway(
    kserve_server: RunningServer, client: Client, carrier: str
) -> None:
    """A tritonclient uses KServe, with JSON without a content type."""
    with sidecar(kserve_server, carrier) as gateway:
        for script in ("tritonclient_http", "tritonclient_grpc"):
            expected = BEHIND["kserve", carrier] | TRITONS_OWN | _own(script, carrier)
            unexpected = seen_through(gateway, client, script) - expected
            assert set() == unexpected, script


FORWARDING = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
upstreams:
  triton: {{url: "oip+{carrier}://{address}", forward_headers: ["x-fwd-*"]}}
lifecycle: {{pre_stop: 0s}}
"""


@pytest.mark.parametrize("carrier", CARRIERS)
def test_listed_headers_are_forwarded(
    triton_server: RunningServer, client: Client, carrier: str, tmp_path: Path
) -> None:
    """A header listed in the configuration reaches the model."""
    address = triton_server.address(carrier)
    file = tmp_path / "gateway.yaml"
    file.write_text(FORWARDING.format(carrier=carrier, address=address))
    with serving(str(file)) as gateway:
        for script in SCRIPTS:
            name = "main.http" if script.endswith("_http") else "main.grpc"
            seen = client.checks(script, gateway.addresses[name], "forwarded_header")
            assert {} == problems(seen, script)
