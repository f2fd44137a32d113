"""MLflow's scoring protocol over HTTP, and the container contract of SageMaker, which is the same.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import HttpBinding, ProtocolSpec, SidecarDefaults
from gateway.protocols.mlflow.declarations import read_declaration
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.protocols.mlflow.options import check_options
from gateway.protocols.mlflow.paths import claims
from gateway.protocols.mlflow.platform import PLATFORM
from gateway.wire.sagemaker import REQUEST_HEADERS, RESPONSE_HEADERS

SPEC = ProtocolSpec(
    name="mlflow",
    title="MLflow scoring and SageMaker containers",
    page="mlflow.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        request_headers=REQUEST_HEADERS,
        response_headers=RESPONSE_HEADERS,
    ),
    options=check_options,
    default_model="default_model",
    # Its server has one model, which no request names.
    sidecar=SidecarDefaults(default_model="model"),
    declaration=read_declaration,
    platform=PLATFORM,
)
