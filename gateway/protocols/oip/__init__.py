"""Open Inference Protocol v2, over HTTP and gRPC.

Read `http/codec.py` and `grpc/codec.py` first; the modules here serve both, and `json/` has tensors
as JSON.  `options.py` describes the options of a listener: `not_ready_status` and the extensions,
each off by default.  An upstream has the option `dialect`.
"""

from typing import Final

from gateway.api.protocol import (
    GrpcBinding,
    HttpBinding,
    Options,
    OptionValue,
    ProtocolSpec,
    SidecarDefaults,
)
from gateway.protocols.oip.dialects import KSERVE, dialect_of
from gateway.protocols.oip.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.http.sagemaker import container_claims
from gateway.protocols.oip.options import UNKNOWN, check_options, extension_status
from gateway.protocols.oip.server_defects import DEFECTS
from gateway.wire.heads.sagemaker import REQUEST_HEADERS, RESPONSE_HEADERS


def choose_dialect(options: Options, server_name: str) -> Options:
    """Return *options* with a dialect: the configured one, or the one of the server's name.

    For an unknown name this is like Triton's dialect, which has the most features.
    """
    if options.get("dialect", "auto") != "auto":
        return options
    return {**options, "dialect": dialect_of(server_name) or UNKNOWN}


def example(url: str, model: str) -> str:
    """Return a command that asks for the metadata of *model*, or of the server without one."""
    return f"curl {url}/v2" + (f"/models/{model}" if model else "")


_YES: Final[frozenset[str | bool]] = frozenset({True, "true"})
_ONE_PROCESS: Final = (
    OptionValue(
        key="logging",
        values=frozenset({"gateway"}),
        reason="would change the log of one worker only",
    ),
    OptionValue(
        key="statistics",
        values=frozenset({"gateway"}),
        reason="would report one worker's counts only",
    ),
    OptionValue(
        key="model_control",
        values=_YES,
        reason="would load or unload model {model} in one worker only",
        needs="in_process",
    ),
    OptionValue(
        key="model_control",
        values=_YES,
        reason="would leave outdated replies of model {model} in all other workers",
        needs="cached",
    ),
    OptionValue(
        key="statistics",
        values=frozenset({"target"}),
        reason="would report one worker's counts of model {model} only",
        needs="in_process",
    ),
)

_KSERVE_V1: Final = ("/v1/models/*:predict", "/v1/models/*:explain")


def _own_posts(server: str, /) -> tuple[str, ...]:
    return _KSERVE_V1 if dialect_of(server) == KSERVE else ()


SPEC = ProtocolSpec(
    name="oip",
    title="Open Inference v2",
    page="open-inference.md",
    http=HttpBinding(
        codec=HttpCodec,
        prefixes=("/v2",),
        public=("/v2/health/live", "/v2/health/ready"),
        claims=container_claims,
        request_headers=REQUEST_HEADERS,
        response_headers=RESPONSE_HEADERS,
    ),
    grpc=GrpcBinding(
        codec=GrpcCodec,
        methods=METHODS,
        file_descriptors=file_descriptors,
        public=tuple(each for each in METHODS if each.endswith(("/ServerLive", "/ServerReady"))),
    ),
    options=check_options,
    resolve_dialect=choose_dialect,
    classifies=None,
    extension_status=extension_status,
    defects=DEFECTS,
    example=example,
    one_process=_ONE_PROCESS,
    sidecar=SidecarDefaults(
        options={
            "model_configuration": "true",
            "statistics": "target",
            "repository_index": "true",
        },
        own_options={"trace": "read", "logging": "read"},
    ),
    own_posts=_own_posts,
)
