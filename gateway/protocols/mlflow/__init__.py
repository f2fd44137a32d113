"""MLflow's scoring protocol over HTTP, and the container contract of SageMaker, which is the same.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams, and what
the configuration declares of a model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.api.platform import Platform
from gateway.api.protocol import HttpBinding, ProtocolSpec, SidecarDefaults
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.protocols.mlflow.options import check_options, read_declaration
from gateway.protocols.mlflow.paths import claims
from gateway.wire.heads.sagemaker import REQUEST_HEADERS, RESPONSE_HEADERS

_BASE_DIR: Final = "/opt/ml"


def _models(environment: Mapping[str, str], /) -> Path:
    """Return where the platform has unpacked the model archive."""
    return Path(environment.get("SAGEMAKER_BASE_DIR") or _BASE_DIR) / "model"


# The containers of SageMaker. Source: docs/how-to/sagemaker.md.
PLATFORM: Final = Platform(name="SageMaker", models=_models)

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
    # Of models of chats and of agents.
    varying=frozenset(
        {"id", "created", "created_at", "output.id", "choices.message.tool_calls.id"}
    ),
)
