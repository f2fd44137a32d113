"""The real servers start, and the real clients' checks describe each of them correctly.

No gateway is involved: this shows that the fixtures and the scripts work, and it is the record
of what each server does differently from Triton.
"""

import re

import pytest

from tests.interop.client import SCRIPT_WORDS, Client
from tests.interop.judge import problems
from tests.interop.scripts.checks import CHECKS, JSON_VALUES, VALUES
from tests.interop.servers.process import RunningServer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SCRIPTS = tuple(SCRIPT_WORDS)

HEALTH = frozenset({"live", "ready", "model_ready", "model_metadata"})
BINARY = frozenset(
    {"add_sub_binary_both", "add_sub_no_outputs_named", "large", "empty_bytes", "empty_int64"}
    | {"sum_and_empty", "at_once", "slow"}
    | {f"identity_{each.lower()}" for each in VALUES if each != "BF16"}
)
JSON = frozenset({"add_sub_json_both"} | {f"identity_{each.lower()}_json" for each in JSON_VALUES})
GRPC_COMPRESSION = frozenset(
    {"gzip_request", "gzip_response", "gzip_both_json"}
    | {"deflate_request", "deflate_response", "deflate_both_json"}
)

MLSERVER_AS_TRITON = {
    # MLServer knows no binary data over HTTP.
    "http": HEALTH | JSON | {"model_ready_version", "model_ready_unknown", "gzip_both_json"},
    "grpc": HEALTH
    | BINARY
    | GRPC_COMPRESSION
    | {"model_ready_version", "repository_index", "one_output", "versions", "parameters"}
    | {"client_timeout", "unknown_version", "unknown_output", "model_error_0"},
}
"""The checks that MLServer 1.7.1 answers as Triton does."""

MLSERVER_ODD = {
    ("http", "add_sub_binary_both"): "json_invalid",
    ("http", "repository_index"): "Field required",  # it wants a body
    # This client sends JSON as application/octet-stream, which MLServer does not parse.
    ("aio_http", "add_sub_json_both"): "model_attributes_type",
    ("http", "model_metadata_unknown"): "Model nope not found",
    ("grpc", "model_ready_unknown"): "Unexpected <class 'mlserver.errors.ModelNotFound'>",
    ("grpc", "identity_bf16"): "'BF16' is not a valid Datatype",
    ("grpc", "unknown_model"): "Model nope with version  not found",
    ("grpc", "stream_model_without_stream"): "predict() method not implemented",
}
"""What MLServer 1.7.1 says otherwise, by a part of it, beside what `test_certify.py` finds."""

KSERVE_AS_TRITON = {
    "http": HEALTH
    | (BINARY - {"identity_bytes"})
    | {"model_ready_unknown", "add_sub_binary_in_json_out", "one_output", "request_id"}
    | {"gzip_response", "deflate_response", "client_timeout", "unknown_output", "model_error_0"},
    "grpc": HEALTH
    | (BINARY - {"at_once"})
    | GRPC_COMPRESSION
    | {"outputs_swapped", "request_id", "parameters", "client_timeout", "model_error_0"},
}
"""The checks that the KServe ModelServer 0.21.0 answers as Triton does."""

KSERVE_ODD = {
    ("http", "identity_bytes"): "using UTF-8",
    ("http", "gzip_request"): "Unrecognized request format",
    ("http", "parameters"): "binary_data_output",  # the model is shown the client's wish
    ("http", "unknown_model"): "Model with name nope does not exist.",
    ("grpc", "model_ready_unknown"): "StatusCode.NOT_FOUND",
    ("grpc", "model_error_2"): "Internal server error",
    ("grpc", "repository_index"): "Method not found!",
    # The client says the second if the server has ended the stream before its next request.
    ("grpc", "stream"): "Method not found!|no longer in valid state",
}
"""What the KServe ModelServer 0.21.0 says otherwise, by a part of it, beside what `test_certify.py` finds."""


def _address(server: RunningServer, script: str) -> str:
    return server.http_address if script.endswith("_http") else server.grpc_address


def _transport(script: str) -> str:
    return "http" if script.endswith("_http") else "grpc"


@pytest.mark.parametrize("script", SCRIPTS)
def test_triton_passes_every_check(
    triton_server: RunningServer, client: Client, script: str
) -> None:
    """Every check of every tritonclient has the result in the table."""
    seen = client.checks(script, _address(triton_server, script))
    assert problems(seen, script) == {}
    assert seen.keys() == {
        name for name, check in CHECKS.items() if _transport(script) in check.transports
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_triton_results_are_repeatable(
    triton_server: RunningServer, client: Client, script: str
) -> None:
    """Two runs print the same, so a difference behind the gateway is the gateway's."""
    address = _address(triton_server, script)
    assert client.checks(script, address) == client.checks(script, address)


@pytest.mark.parametrize("script", SCRIPTS)
def test_mlserver_passes_its_checks(
    mlserver_server: RunningServer, client: Client, script: str
) -> None:
    """MLServer has the results of Triton for the checks that it supports."""
    names = HEALTH if script == "tritonclient_aio_http" else MLSERVER_AS_TRITON[_transport(script)]
    seen = client.checks(script, _address(mlserver_server, script), *sorted(names))
    assert problems(seen, script) == {}


@pytest.mark.parametrize(("transport", "check"), MLSERVER_ODD)
def test_mlserver_known_difference(
    mlserver_server: RunningServer, client: Client, transport: str, check: str
) -> None:
    """MLServer still differs from Triton in this check."""
    script = f"tritonclient_{transport}"
    seen = client.checks(script, _address(mlserver_server, script), check)
    assert MLSERVER_ODD[transport, check] in str(seen[check])


@pytest.mark.parametrize("script", SCRIPTS)
def test_kserve_passes_its_checks(
    kserve_server: RunningServer, client: Client, script: str
) -> None:
    """The KServe ModelServer has the results of Triton for the checks that it supports."""
    names = KSERVE_AS_TRITON[_transport(script)]
    seen = client.checks(script, _address(kserve_server, script), *sorted(names))
    assert problems(seen, script) == {}


@pytest.mark.parametrize(("transport", "check"), KSERVE_ODD)
def test_kserve_known_difference(
    kserve_server: RunningServer, client: Client, transport: str, check: str
) -> None:
    """The KServe ModelServer still differs from Triton in this check."""
    script = f"tritonclient_{transport}"
    seen = client.checks(script, _address(kserve_server, script), check)
    assert re.search(KSERVE_ODD[transport, check], str(seen[check]))
