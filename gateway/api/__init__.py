"""The extension points: what protocols, policies, pages and wings are made of.

Semantic versioning holds for these names and those of `gateway.api.tensors` and `gateway.api.wire`;
`Tap`, `TrafficShift`, `ServingPart`, `LeadingPart` and `Processes` may change with any release.
"""

from typing import Final

from gateway.api.access import Authenticator, Credentials, Peer
from gateway.api.admin import (
    AdminGateway,
    AdminNeed,
    AdminRequest,
    AdminRoute,
    Content,
    Events,
    Json,
    Page,
    Redirect,
)
from gateway.api.authoriser import Authoriser
from gateway.api.backend import Arrays, Backend, Inputs, Job
from gateway.api.comparison import ComparisonRule, RuleResult
from gateway.api.events import Event, EventSink
from gateway.api.extension import (
    Extension,
    LeadingPart,
    PartSetup,
    Processes,
    ServingPart,
    ServingProcess,
    TrafficShift,
)
from gateway.api.layer import Calls, Entries, Layer, LayerContext, Reads, no_findings
from gateway.api.model_spec import ModelSpec
from gateway.api.platform import Platform
from gateway.api.protocol import (
    Codec,
    DefectKind,
    GrpcBinding,
    HttpBinding,
    Options,
    OptionValue,
    ProtocolSpec,
    ServerDefect,
    SidecarDefaults,
    StreamBinding,
)
from gateway.api.tap import RouteTap, Tap, TappedCall
from gateway.api.transform import TensorTransform
from gateway.ir.errors import Unauthenticated
from gateway.ir.identity import Identity
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.setting import Setting
from gateway.telemetry.names import Metric, MetricCell
from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim

API_VERSION: Final = "1.1"

__all__ = [
    "API_VERSION",
    "AdminGateway",
    "AdminNeed",
    "AdminRequest",
    "AdminRoute",
    "Arrays",
    "Authenticator",
    "Authoriser",
    "Backend",
    "Calls",
    "ClaimKind",
    "Codec",
    "ComparisonRule",
    "ConfigView",
    "Content",
    "Credentials",
    "DefectKind",
    "Entries",
    "Event",
    "EventSink",
    "Events",
    "Extension",
    "Finding",
    "GrpcBinding",
    "HttpBinding",
    "Identity",
    "Inputs",
    "Job",
    "Json",
    "Layer",
    "LayerContext",
    "LeadingPart",
    "Metric",
    "MetricCell",
    "ModelSpec",
    "OptionValue",
    "Options",
    "Page",
    "PartSetup",
    "Passing",
    "PathClaim",
    "Peer",
    "Platform",
    "Processes",
    "ProtocolSpec",
    "Reads",
    "Redirect",
    "RouteTap",
    "RuleResult",
    "ServerDefect",
    "Service",
    "ServingPart",
    "ServingProcess",
    "Setting",
    "SidecarDefaults",
    "StreamBinding",
    "Tap",
    "TappedCall",
    "TensorTransform",
    "TrafficShift",
    "Unauthenticated",
    "no_findings",
]
