"""grps over HTTP, gRPC and brpc.

Read `methods.py` and `content.py` first; the codecs are `http/codec.py`, `grpc.py` and
`brpc/codec.py`.  `options.py` describes the options of listeners and upstreams.  Customised routes
are mounted in addition to the prefixes here.  The page at `/` is served where no other protocol
claims that path.
"""

from gateway.api.protocol import (
    GrpcBinding,
    HttpBinding,
    OptionValue,
    ProtocolSpec,
    SidecarDefaults,
    StreamBinding,
)
from gateway.protocols.grps.brpc.codec import SERVICE, SHORT_SERVICE, BrpcCodec
from gateway.protocols.grps.brpc.framing import (
    BaiduFramer,
    credentials,
    looks_like,
    server_framer,
    without_credentials,
)
from gateway.protocols.grps.grpc import BRPC_METHODS, METHODS, GrpcCodec, file_descriptors
from gateway.protocols.grps.http.codec import HttpCodec
from gateway.protocols.grps.http.paths import BRPC_PREFIXES, PREFIX, PUBLIC_PATHS
from gateway.protocols.grps.methods import HEALTH
from gateway.protocols.grps.options import DEFAULT_DAG, check_options, custom_claims

SPEC = ProtocolSpec(
    name="grps",
    title="grps",
    page="grps.md",
    http=HttpBinding(
        codec=HttpCodec,
        prefixes=(PREFIX, *BRPC_PREFIXES),
        root=True,
        public=PUBLIC_PATHS,
        claims=custom_claims,
    ),
    grpc=GrpcBinding(
        codec=GrpcCodec,
        methods=METHODS,
        file_descriptors=file_descriptors,
        public=tuple(each for each in (*METHODS, *BRPC_METHODS) if each.endswith(HEALTH)),
    ),
    stream=StreamBinding(
        codec=BrpcCodec,
        server_framer=server_framer,
        client_framer=BaiduFramer,
        is_ordered=False,
        carriers=("brpc",),
        names_models=True,
        is_frame=looks_like,
        http_prefixes=BRPC_PREFIXES,
        grpc_methods=BRPC_METHODS,
        credentials=credentials,
        without_credentials=without_credentials,
        closes_denied=True,
        public=tuple(
            f"{service}.{method}" for service in (SERVICE, SHORT_SERVICE) for method in HEALTH
        ),
    ),
    options=check_options,
    has_model_keys=True,
    default_model="default_model",
    one_process=(
        OptionValue(
            key="switch",
            values=frozenset({True, "true"}),
            reason="would set one worker only online or offline",
        ),
    ),
    # A request without a model becomes one for this name, which the upstream maps to its DAG.
    sidecar=SidecarDefaults(
        default_model=DEFAULT_DAG, upstream_options={"keys": {DEFAULT_DAG: ""}}
    ),
)
