"""Triton's extensions over HTTP: configuration, statistics, control, settings, regions.

This module has their bodies; `paths.py` has their paths, `../control.py` checks their content, and
`../extension_policy.py` decides which of them a listener serves.

Source: Triton extensions "statistics", "model_repository", "trace", "logging", "shared_memory";
docs/protocols/open-inference.md, "14. Models, statistics and settings".
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.ir.calls import (
    Call,
    LogSettings,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    TraceSettingRequest,
    TraceSettings,
)
from gateway.ir.context import Context
from gateway.ir.errors import InvalidRequest, MalformedMessage
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.metadata import SharedRegion
from gateway.ir.statistics import ModelStatistics
from gateway.protocols.oip import control, statistics
from gateway.protocols.oip.dialects import required_model
from gateway.protocols.oip.http.paths import (
    LOG_PATH,
    STATISTICS_PATH,
    TRACE_PATH,
    OipRoute,
    control_path,
    model_path,
    shared_path,
)
from gateway.protocols.oip.model_config import from_document, to_document
from gateway.protocols.oip.protobuf_json import message_of, text_of
from gateway.protocols.oip.shared_memory import checked_region, read_region, wanted_regions
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.http import HttpRequest, HttpResponse
from gateway.wire.json.values import read_value

_LEVELS = "trace_level"
_MOST = 10_000

Body = Mapping[str, Any] | list[Any] | None
"""A JSON document; None for no body."""

ExtensionRequest = tuple[str, str, Body]
"""Method, path and body of a request."""


@dataclass(frozen=True, slots=True)
class HttpExtension:
    """The functions for one call over HTTP.

    Attributes:
        read_call: Of a client's request of a route.
        write_reply: The response's body.
        write_call: To an upstream.
        read_reply: Reads the response that an upstream sent.
    """

    read_call: Callable[[OipRoute, HttpRequest, Context, MessageLimits], Call[Any]]
    write_reply: Callable[[Any, Any], Body]
    write_call: Callable[[Any], ExtensionRequest]
    read_reply: Callable[[Any, HttpResponse, MessageLimits], Any]


def _no_body(
    route: OipRoute, _wire: HttpRequest, context: Context, _limits: MessageLimits
) -> Call[Any]:
    return route.call(model=route.model, context=context)


def _nothing(_call: Call[Any], _wire: HttpResponse, _limits: MessageLimits) -> None:
    """Read no body: the status is the reply."""


# Statistics.


def _read_statistics(
    _call: ModelStatisticsRequest, wire: HttpResponse, limits: MessageLimits
) -> tuple[ModelStatistics, ...]:
    message = message_of(_object(wire, limits), pb.ModelStatisticsResponse)
    return statistics.from_message(message, limits)


# Loading and unloading.


def _read_load(
    route: OipRoute, wire: HttpRequest, context: Context, limits: MessageLimits
) -> ModelLoadRequest:
    parameters = control.read_load(_parameters(wire, limits), limits)
    return ModelLoadRequest(model=route.model, context=context, parameters=parameters)


def _read_unload(
    route: OipRoute, wire: HttpRequest, context: Context, limits: MessageLimits
) -> ModelUnloadRequest:
    dependents = control.read_unload(_parameters(wire, limits), limits)
    return ModelUnloadRequest(model=route.model, context=context, dependents=dependents)


def _unload_call(call: ModelUnloadRequest) -> ExtensionRequest:
    parameters = {control.UNLOAD_DEPENDENTS: True} if call.dependents else {}
    return _control_call(call, "unload", parameters)


def _control_call(call: Call[None], action: str, parameters: Mapping[str, Any]) -> ExtensionRequest:
    path = control_path(required_model(call), action)
    return "POST", path, {"parameters": parameters} if parameters else {}


# Trace and log settings.


def _read_trace(
    route: OipRoute, wire: HttpRequest, context: Context, limits: MessageLimits
) -> TraceSettingRequest:
    changes = control.read_trace(_changes(wire, limits), limits)
    return TraceSettingRequest(model=route.model, context=context, changes=changes)


def _trace_call(call: TraceSettingRequest) -> ExtensionRequest:
    model = call.model
    path = TRACE_PATH if model is None else model_path(model, "trace/setting")
    if not call.changes:
        return "GET", path, None
    changes = {
        key: _trace_text(key, values) if values else None for key, values in call.changes.items()
    }
    return "POST", path, changes


def _trace_text(key: str, values: tuple[str, ...]) -> str | list[str]:
    """Return the values of a setting: Triton has a list for the levels, and one text for others."""
    return values[0] if len(values) == 1 and key != _LEVELS else list(values)


def _read_trace_reply(
    _call: TraceSettingRequest, wire: HttpResponse, limits: MessageLimits
) -> TraceSettings:
    found = _object(wire, limits)
    check_count("settings", len(found), _MOST, "json_keys")
    return {key: _trace_values(key, value) for key, value in found.items()}


def _trace_values(key: str, value: Any) -> tuple[str, ...]:
    listed = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in listed):
        raise MalformedMessage(f"trace setting {key!r} in the response is not a string")
    return tuple(listed)


def _read_log(
    _route: OipRoute, wire: HttpRequest, context: Context, limits: MessageLimits
) -> LogSettingsRequest:
    changes = control.read_log(_changes(wire, limits), limits)
    return LogSettingsRequest(context=context, changes=changes)


def _read_log_reply(
    _call: LogSettingsRequest, wire: HttpResponse, limits: MessageLimits
) -> LogSettings:
    found = _object(wire, limits)
    check_count("settings", len(found), _MOST, "json_keys")
    if not all(isinstance(value, bool | int | str) for value in found.values()):
        raise MalformedMessage("a log setting in the response is not a flag, number or string")
    return found


# Shared memory.


def _read_register(
    route: OipRoute, wire: HttpRequest, context: Context, limits: MessageLimits
) -> SharedRegisterRequest:
    region = read_region(route.region, _object(wire, limits), cuda=route.is_cuda)
    return SharedRegisterRequest(context=context, region=checked_region(region, limits))


def _register_call(call: SharedRegisterRequest) -> ExtensionRequest:
    region = call.region
    cuda = region.device is not None
    body: Body = {"key": region.key, "offset": region.offset, "byte_size": region.size_bytes}
    if cuda:
        handle = base64.b64encode(region.handle).decode()
        body = {
            "raw_handle": {"b64": handle},
            "device_id": region.device,
            "byte_size": region.size_bytes,
        }
    return "POST", shared_path(region.name, "register", cuda=cuda), body


def _about_regions(
    route: OipRoute, _wire: HttpRequest, context: Context, _limits: MessageLimits
) -> Call[Any]:
    kind = SharedStatusRequest if route.call is SharedStatusRequest else SharedUnregisterRequest
    return kind(context=context, region=route.region, is_cuda=route.is_cuda)


def _region_path(call: SharedUnregisterRequest | SharedStatusRequest, action: str) -> str:
    return shared_path(call.region, action, cuda=bool(call.is_cuda))


def _region_text(region: SharedRegion) -> dict[str, Any]:
    if region.device is not None:
        return {"name": region.name, "device_id": region.device, "byte_size": region.size_bytes}
    return {
        "name": region.name,
        "key": region.key,
        "offset": region.offset,
        "byte_size": region.size_bytes,
    }


def _read_regions(
    call: SharedStatusRequest, wire: HttpResponse, limits: MessageLimits
) -> tuple[SharedRegion, ...]:
    document = read_value(wire.view, "the response", limits)
    if type(document) is not list or not all(type(entry) is dict for entry in document):
        raise MalformedMessage("the response is not a list of regions")
    check_count("regions", len(document), _MOST, "json_keys")
    cuda = bool(call.is_cuda)
    regions = [read_region(one.get("name"), one, cuda=cuda, listed=True) for one in document]
    return tuple([checked_region(region, limits, listed=True) for region in regions])


EXTENSIONS: Mapping[type[Call[Any]], HttpExtension] = {
    ModelConfigRequest: HttpExtension(
        _no_body,
        lambda _call, reply: to_document(reply),
        lambda call: ("GET", model_path(required_model(call), "config"), None),
        lambda _call, wire, limits: from_document(
            read_value(wire.view, "the response", limits), limits
        ),
    ),
    ModelStatisticsRequest: HttpExtension(
        _no_body,
        lambda _call, reply: text_of(statistics.to_message(reply)),
        lambda call: (
            "GET",
            STATISTICS_PATH if call.model is None else model_path(call.model, "stats"),
            None,
        ),
        _read_statistics,
    ),
    ModelLoadRequest: HttpExtension(
        _read_load,
        # The kserve client needs this body; other clients read the status alone.
        lambda call, _reply: {"name": required_model(call).name, "load": True},
        lambda call: _control_call(call, "load", control.written_load(call.parameters)),
        _nothing,
    ),
    ModelUnloadRequest: HttpExtension(
        _read_unload,
        lambda call, _reply: {"name": required_model(call).name, "unload": True},
        _unload_call,
        _nothing,
    ),
    TraceSettingRequest: HttpExtension(
        _read_trace,
        lambda _call, reply: {key: _trace_text(key, values) for key, values in reply.items()},
        _trace_call,
        _read_trace_reply,
    ),
    LogSettingsRequest: HttpExtension(
        _read_log,
        lambda _call, reply: dict(reply),
        lambda call: (
            ("POST", LOG_PATH, dict(call.changes)) if call.changes else ("GET", LOG_PATH, None)
        ),
        _read_log_reply,
    ),
    SharedRegisterRequest: HttpExtension(
        _read_register, lambda _call, _reply: None, _register_call, _nothing
    ),
    SharedUnregisterRequest: HttpExtension(
        _about_regions,
        lambda _call, _reply: None,
        lambda call: ("POST", _region_path(call, "unregister"), None),
        _nothing,
    ),
    SharedStatusRequest: HttpExtension(
        _about_regions,
        lambda call, reply: [_region_text(region) for region in wanted_regions(call, reply)],
        lambda call: ("GET", _region_path(call, "status"), None),
        _read_regions,
    ),
}


def _object(wire: HttpRequest | HttpResponse, limits: MessageLimits) -> dict[str, Any]:
    document = read_value(wire.view, "the body", limits)
    if type(document) is not dict:
        raise MalformedMessage("the body is JSON, but not an object")
    return document


def _parameters(wire: HttpRequest, limits: MessageLimits) -> dict[str, Any]:
    found = _object(wire, limits).get("parameters", {}) if wire.view.nbytes else {}
    if type(found) is not dict:
        raise InvalidRequest("'parameters' of the body is not an object")
    return found


def _changes(wire: HttpRequest, limits: MessageLimits) -> dict[str, Any]:
    """Return the settings of a request that changes some; a request to read them has no body."""
    return _object(wire, limits) if wire.method == "POST" else {}
