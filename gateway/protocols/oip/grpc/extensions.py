"""Triton's extensions over gRPC: configuration, statistics, control, settings, regions.

The protobuf library reads and writes their messages, which have no tensors.  `../control.py` checks
their content, and `../extension_policy.py` decides which of them a listener serves.

Source: Triton extensions "model_configuration", "statistics", "model_repository", "trace",
"logging", "shared_memory"; docs/protocols/open-inference.md, "14. Models, statistics and settings".
"""

from collections.abc import Mapping
from typing import Any

from gateway.ir.calls import (
    Call,
    LogSettings,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    TraceSettingRequest,
    TraceSettings,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import InvalidRequest, Unsupported, UpstreamProtocolError
from gateway.ir.limits import MessageLimits, check_count
from gateway.protocols.oip import control, model_config, statistics
from gateway.protocols.oip.grpc import shared_memory
from gateway.protocols.oip.grpc.call_messages import CallMessage, CallMessages, CallReader
from gateway.protocols.oip.grpc.dialects import GrpcDialect, required_model
from gateway.protocols.oip.grpc.management import (
    SERVICE,
    checked_model,
    read_named,
    write_named,
)
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.errors import clip
from gateway.wire.protobuf.library import parse

_MOST = 10_000
_SHOWN = 64

# Model configuration and statistics.


def _read_statistics(
    view: memoryview, context: Context, limits: MessageLimits
) -> ModelStatisticsRequest:
    message = parse(view, pb.ModelStatisticsRequest)
    model = checked_model(message.name, message.version, limits) if message.name else None
    return ModelStatisticsRequest(model=model, context=context)


def _statistics_call(call: ModelStatisticsRequest, _dialect: GrpcDialect) -> CallMessage:
    model = call.model or ModelRef("")
    return "ModelStatistics", pb.ModelStatisticsRequest(name=model.name, version=model.version)


# Loading and unloading. KServe's first field is the model's name, other servers' a repository.


def _read_load(view: memoryview, context: Context, limits: MessageLimits) -> ModelLoadRequest:
    message = parse(view, pb.RepositoryModelLoadRequest)
    return ModelLoadRequest(
        model=_loaded_model(message.repository_name, message.model_name, limits),
        context=context,
        parameters=control.read_load(_choices(message.parameters, limits), limits),
    )


def _read_unload(view: memoryview, context: Context, limits: MessageLimits) -> ModelUnloadRequest:
    message = parse(view, pb.RepositoryModelUnloadRequest)
    return ModelUnloadRequest(
        model=_loaded_model(message.repository_name, message.model_name, limits),
        context=context,
        dependents=control.read_unload(_choices(message.parameters, limits), limits),
    )


def _loaded_model(repository: str, model: str, limits: MessageLimits) -> ModelRef:
    if repository and model:
        raise Unsupported(
            f"repository is {clip(repository, _SHOWN)!r}: expected no repository_name, "
            "since models are loaded from their own"
        )
    if not repository and not model:
        raise InvalidRequest("the request names no model")
    return checked_model(model or repository, "", limits)


def _choices(
    parameters: Mapping[str, pb.ModelRepositoryParameter], limits: MessageLimits
) -> dict[str, Any]:
    check_count("parameters", len(parameters), limits.parameters, "parameters")
    return _values("parameter", parameters)


def _values(kind: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that were chosen for the members of a map."""
    found = {}
    for key, member in members.items():
        choice = member.WhichOneof("parameter_choice")
        if choice is None:
            raise InvalidRequest(f"{kind} {clip(key, _SHOWN)!r} has no value")
        found[key] = getattr(member, choice)
    return found


def _load_call(call: ModelLoadRequest, dialect: GrpcDialect) -> CallMessage:
    model = required_model(call)
    if dialect.has_name_first:
        return "RepositoryModelLoad", pb.RepositoryModelLoadRequest(repository_name=model.name)
    message = pb.RepositoryModelLoadRequest(model_name=model.name)
    for key, value in call.parameters.items():
        _set(message.parameters[key], value)
    return "RepositoryModelLoad", message


def _unload_call(call: ModelUnloadRequest, dialect: GrpcDialect) -> CallMessage:
    model = required_model(call)
    if dialect.has_name_first:
        return "RepositoryModelUnload", pb.RepositoryModelUnloadRequest(repository_name=model.name)
    message = pb.RepositoryModelUnloadRequest(model_name=model.name)
    if call.dependents:
        message.parameters[control.UNLOAD_DEPENDENTS].bool_param = True
    return "RepositoryModelUnload", message


def _read_loaded(call: ModelLoadRequest, view: memoryview, _limits: MessageLimits) -> None:
    message = parse(view, pb.RepositoryModelLoadResponse)
    if message.model_name and not message.loaded:
        raise UpstreamProtocolError(
            f"the server has not loaded {str(call.model)!r}", model=call.model
        )


def _read_unloaded(call: ModelUnloadRequest, view: memoryview, _limits: MessageLimits) -> None:
    message = parse(view, pb.RepositoryModelUnloadResponse)
    if message.model_name and not message.unloaded:
        raise UpstreamProtocolError(
            f"the server has not unloaded {str(call.model)!r}", model=call.model
        )


def _set(parameter: pb.ModelRepositoryParameter, value: bool | int | str | bytes) -> None:
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, str):
        parameter.string_param = value
    else:
        parameter.bytes_param = value


# Trace and log settings.


def _read_trace(view: memoryview, context: Context, limits: MessageLimits) -> TraceSettingRequest:
    message = parse(view, pb.TraceSettingRequest)
    check_count("settings", len(message.settings), limits.parameters, "parameters")
    changes = {key: list(setting.value) for key, setting in message.settings.items()}
    model = checked_model(message.model_name, "", limits) if message.model_name else None
    return TraceSettingRequest(
        model=model, context=context, changes=control.read_trace(changes, limits)
    )


def _trace_call(call: TraceSettingRequest, _dialect: GrpcDialect) -> CallMessage:
    name = "" if call.model is None else call.model.name
    return "TraceSetting", _with_trace(pb.TraceSettingRequest(model_name=name), call.changes)


def _with_trace(message: Any, settings: TraceSettings) -> Any:
    for key, values in settings.items():
        message.settings[key].value.extend(values)
    return message


def _read_trace_reply(
    _call: TraceSettingRequest, view: memoryview, _limits: MessageLimits
) -> TraceSettings:
    message = parse(view, pb.TraceSettingResponse)
    check_count("settings", len(message.settings), _MOST, "settings")
    return {key: tuple(setting.value) for key, setting in message.settings.items()}


def _read_log(view: memoryview, context: Context, limits: MessageLimits) -> LogSettingsRequest:
    message = parse(view, pb.LogSettingsRequest)
    check_count("settings", len(message.settings), limits.parameters, "parameters")
    changes = _values("log setting", message.settings)
    return LogSettingsRequest(context=context, changes=control.read_log(changes, limits))


def _with_log(message: Any, settings: LogSettings) -> Any:
    for key, value in settings.items():
        setting = message.settings[key]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        else:
            setting.string_param = value
    return message


def _read_log_reply(
    _call: LogSettingsRequest, view: memoryview, _limits: MessageLimits
) -> LogSettings:
    message = parse(view, pb.LogSettingsResponse)
    check_count("settings", len(message.settings), _MOST, "settings")
    return _values("log setting", message.settings)


_READERS: Mapping[str, tuple[type[Call[Any]], CallReader]] = {
    "ModelConfig": (ModelConfigRequest, read_named(ModelConfigRequest, pb.ModelConfigRequest)),
    "ModelStatistics": (ModelStatisticsRequest, _read_statistics),
    "RepositoryModelLoad": (ModelLoadRequest, _read_load),
    "RepositoryModelUnload": (ModelUnloadRequest, _read_unload),
    "TraceSetting": (TraceSettingRequest, _read_trace),
    "LogSettings": (LogSettingsRequest, _read_log),
    **shared_memory.CALL_READERS,
}

# The call of each method, and the reader of its request.
CALL_READERS: Mapping[str, tuple[type[Call[Any]], CallReader]] = {
    SERVICE + name: found for name, found in _READERS.items()
}

EXTENSIONS: Mapping[type[Call[Any]], CallMessages] = {
    ModelConfigRequest: CallMessages(
        lambda _call, reply: pb.ModelConfigResponse(config=model_config.to_message(reply)),
        write_named("ModelConfig", pb.ModelConfigRequest),
        lambda _call, view, limits: model_config.from_message(
            parse(view, pb.ModelConfigResponse).config, limits
        ),
    ),
    ModelStatisticsRequest: CallMessages(
        lambda _call, reply: statistics.to_message(reply),
        _statistics_call,
        lambda _call, view, limits: statistics.from_message(
            parse(view, pb.ModelStatisticsResponse), limits
        ),
    ),
    ModelLoadRequest: CallMessages(
        lambda call, _reply: pb.RepositoryModelLoadResponse(
            model_name=required_model(call).name, loaded=True
        ),
        _load_call,
        _read_loaded,
    ),
    ModelUnloadRequest: CallMessages(
        lambda call, _reply: pb.RepositoryModelUnloadResponse(
            model_name=required_model(call).name, unloaded=True
        ),
        _unload_call,
        _read_unloaded,
    ),
    TraceSettingRequest: CallMessages(
        lambda _call, reply: _with_trace(pb.TraceSettingResponse(), reply),
        _trace_call,
        _read_trace_reply,
    ),
    LogSettingsRequest: CallMessages(
        lambda _call, reply: _with_log(pb.LogSettingsResponse(), reply),
        lambda call, _dialect: ("LogSettings", _with_log(pb.LogSettingsRequest(), call.changes)),
        _read_log_reply,
    ),
    **shared_memory.EXTENSIONS,
}
