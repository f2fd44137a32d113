"""The operations that rules name, and the one of each call."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from gateway.ir.calls import (
    Call,
    InferRequest,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    OpaqueCall,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    ServerSwitchRequest,
    ServerTrendsRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
    TraceSettingRequest,
)

ALL: Final = "all"
HEALTH: Final = "health"
INDEX: Final = "index"
INFERENCE: Final = "inference"
METADATA: Final = "metadata"
METRICS: Final = "metrics"
MODEL_REPOSITORY: Final = "model-repository"
PASSTHROUGH: Final = "passthrough"
STATISTICS: Final = "statistics"

OPERATION: Final[Mapping[type[Call[Any]], str]] = MappingProxyType(
    {
        ServerLiveRequest: HEALTH,
        ServerReadyRequest: HEALTH,
        ModelReadyRequest: HEALTH,
        ServerMetadataRequest: METADATA,
        ModelMetadataRequest: METADATA,
        ServerStatusRequest: METADATA,
        InferRequest: INFERENCE,
        StreamInferRequest: INFERENCE,
        SharedRegisterRequest: "shared-memory",
        SharedUnregisterRequest: "shared-memory",
        SharedStatusRequest: "shared-memory",
        ModelConfigRequest: "model-config",
        ModelStatisticsRequest: STATISTICS,
        ServerTrendsRequest: STATISTICS,
        TraceSettingRequest: "trace",
        LogSettingsRequest: "logging",
        RepositoryIndexRequest: INDEX,
        ModelLoadRequest: MODEL_REPOSITORY,
        ModelUnloadRequest: MODEL_REPOSITORY,
        ServerSwitchRequest: "switch",
        OpaqueCall: PASSTHROUGH,
    }
)
"""The operation of each class of calls; see `operation_of`."""

OPERATIONS: Final = (*dict.fromkeys(OPERATION.values()), METRICS)
"""The names of all operations; the metrics page of a listener is no call."""

LISTED: Final = frozenset({METADATA, INDEX, STATISTICS})
"""Operations whose calls without a model reply with what the client may use."""

_LISTINGS: Final = frozenset(
    {ServerMetadataRequest, RepositoryIndexRequest, ModelStatisticsRequest}
)


def operation_of(call: Call[Any]) -> str:
    """Return the operation of *call*. The status page has trends, and is `statistics`."""
    if isinstance(call, ServerStatusRequest) and call.trends:
        return STATISTICS
    return OPERATION[type(call)]


def is_listing(call: Call[Any]) -> bool:
    """Return whether the reply to *call* lists what the client may use."""
    if isinstance(call, ServerStatusRequest):
        return call.about is None and not call.trends
    return type(call) in _LISTINGS and (call.model is None or not call.model.name)


def expanded(operations: tuple[str, ...]) -> frozenset[str]:
    """Return the operations that a rule's list means; `model-repository` has the index too."""
    if ALL in operations:
        return frozenset(OPERATIONS)
    index = (INDEX,) if MODEL_REPOSITORY in operations else ()
    return frozenset((*operations, *index))
