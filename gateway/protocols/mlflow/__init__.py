"""MLflow's scoring protocol over HTTP, and the container contract of SageMaker, which is the same.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from gateway.api.protocol import HttpBinding, ProtocolSpec
from gateway.protocols.mlflow.declarations import read_declaration
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.protocols.mlflow.options import check_options, prefixed_path
from gateway.protocols.mlflow.paths import HEALTH, PATHS, PING, YIELDED

SPEC = ProtocolSpec(
    name="mlflow",
    title="MLflow scoring and SageMaker containers",
    page="mlflow.md",
    http=HttpBinding(
        codec=HttpCodec,
        prefixes=PATHS,
        own_paths=prefixed_path,
        yielded=YIELDED,
        keeps_if_listed=True,
        public=(PING, HEALTH),
    ),
    options=check_options,
    default_model="default_model",
    declaration=read_declaration,
)
