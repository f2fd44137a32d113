"""TensorFlow Serving over REST and gRPC, and KServe V1 as a dialect of its REST form.

Read `grpc/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from typing import Final

from gateway.api.platform import Platform
from gateway.api.protocol import GrpcBinding, HttpBinding, ProtocolSpec, SidecarDefaults
from gateway.protocols.tfs.declarations import read_declaration
from gateway.protocols.tfs.grpc.codec import METHODS, GrpcCodec, file_descriptors
from gateway.protocols.tfs.http.codec import HttpCodec
from gateway.protocols.tfs.http.events import EVENT_HEADERS
from gateway.protocols.tfs.http.paths import claims
from gateway.protocols.tfs.options import check_options, process_options

_FACTS: Final = (
    "MODE",
    "MODE_VERSION",
    "HTTP_PORT",
    "PREDICT_ROUTE",
    "HEALTH_ROUTE",
    "ENDPOINT_ID",
    "DEPLOYED_MODEL_ID",
    "PROJECT_NUMBER",
    "MACHINE_TYPE",
)

# The containers of Vertex AI. Source: docs/how-to/vertex.md.
PLATFORM: Final = Platform(
    name="Vertex AI",
    marker="AIP_MODE",
    facts={key.removeprefix("MODE_").lower(): f"AIP_{key}" for key in _FACTS},
    contract="AIP_MODE_VERSION",
    known_contract="1",
    storage="AIP_STORAGE_URI",
    port="AIP_HTTP_PORT",
    routes={
        "AIP_PREDICT_ROUTE": ("vertex", "predict"),
        "AIP_HEALTH_ROUTE": ("vertex", "health"),
    },
)

SPEC = ProtocolSpec(
    name="tfs",
    title="TensorFlow Serving",
    page="tensorflow-serving.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        request_headers=EVENT_HEADERS,
        response_headers=EVENT_HEADERS,
    ),
    grpc=GrpcBinding(codec=GrpcCodec, methods=METHODS, file_descriptors=file_descriptors),
    options=check_options,
    process_options=process_options,
    default_model="default_model",
    declaration=read_declaration,
    platform=PLATFORM,
    # Clients of KServe V1 ask there whether the server is alive.
    sidecar=SidecarDefaults(options={"root": True}),
    # Of a CloudEvent.
    varying=frozenset({"id", "time"}),
)
