"""Extensions that a listener enables: rejected by name, advertised exactly."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

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
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    SharedStatusRequest,
    StreamInferRequest,
    TraceSettingRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import InvalidRequest, Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip.dialects import DIALECTS as HTTP_DIALECTS
from gateway.protocols.oip.extension_policy import advertised_extensions, apply_policy, check_asked
from gateway.protocols.oip.grpc.dialects import DIALECTS as GRPC_DIALECTS
from gateway.protocols.oip.options import (
    Extensions,
    check_options,
    extension_status,
    read_extensions,
)

M = ModelRef("m")
LOADING = ModelLoadRequest(model=M, parameters={"config": "{}", "file:1/model.onnx": b"x"})
GATED: list[tuple[Call[Any], dict[str, Any]]] = [
    (ModelConfigRequest(model=M), {"model_configuration": True}),
    (RepositoryIndexRequest(), {"repository_index": True}),
    (ModelStatisticsRequest(), {"statistics": "target"}),
    (ModelLoadRequest(model=M), {"model_control": True}),
    (ModelUnloadRequest(model=M), {"model_control": True}),
    (LOADING, {"model_files": True, "model_config": True, "model_control": True}),
    (LOADING, {"model_config": True, "model_files": True, "model_control": True}),
    (TraceSettingRequest(), {"trace": True}),
    (LogSettingsRequest(), {"logging": "target"}),
]
IDS = [next(iter(options)) for _, options in GATED]


@pytest.mark.parametrize(("call", "options"), GATED, ids=IDS)
def test_disabled_extension_is_rejected_by_its_option(
    call: Call[Any], options: dict[str, Any]
) -> None:
    """The error names the option that enables the extension; with it, the call passes."""
    off, *others = options
    with pytest.raises(
        Unsupported, match=rf"not enabled \(--enable {off}(=target)?, or options: {{oip: {{{off}: "
    ):
        apply_policy(call, read_extensions({key: options[key] for key in others}))
    assert call == apply_policy(call, read_extensions(options))


@pytest.mark.parametrize(
    ("kind", "option"), [(TraceSettingRequest, "trace"), (LogSettingsRequest, "logging")]
)
def test_read_only_settings_reject_changes(kind: Any, option: str) -> None:
    """With `read`, a query passes and a change is rejected with the option that allows it."""
    extensions = read_extensions({option: "read"})
    call = kind()
    assert call is apply_policy(call, extensions)
    with pytest.raises(Unsupported, match=f"changes of {option.removesuffix('ging')}.*{option}: "):
        apply_policy(kind(changes={"log_info": True}), extensions)


@pytest.mark.parametrize(
    ("options", "on"),
    [
        ({}, ()),
        ({"trace": "read", "statistics": "target"}, ("statistics=target", "trace=read")),
        ({"model_control": "true", "logging": "off"}, ("model_control",)),
    ],
)
def test_status_lists_enabled_extensions(options: dict[str, str], on: tuple[str, ...]) -> None:
    """Each extension is listed as enabled, with its value, or as disabled."""
    found, off = extension_status(options)
    assert on == found
    names = [name.partition("=")[0] for name in found]
    assert {each.name for each in fields(Extensions)} == {*names, *off}
    assert len(off) + len(on) == len(fields(Extensions))


@pytest.mark.parametrize(
    "call",
    [
        ServerLiveRequest(),
        ServerReadyRequest(),
        ServerMetadataRequest(),
        ModelReadyRequest(model=M),
        ModelMetadataRequest(model=M),
        InferRequest(model=M),
        StreamInferRequest(model=M, request=InferRequest(model=M)),
    ],
    ids=lambda call: type(call).__name__,
)
def test_call_without_an_option_passes(call: Call[Any]) -> None:
    """Inferences, health and metadata belong to no extension and are always served."""
    assert call is apply_policy(call, read_extensions({}))


@pytest.mark.parametrize(
    ("call", "option"),
    [(ModelStatisticsRequest(model=M), "statistics"), (LogSettingsRequest(), "logging")],
)
def test_call_about_the_gateway_itself_is_marked(
    call: ModelStatisticsRequest | LogSettingsRequest, option: str
) -> None:
    """With `gateway`, statistics and logs are the gateway's own; the call keeps its origin."""
    origin = Origin("oip.http", object())
    found = apply_policy(call.with_context(origin=origin), read_extensions({option: "gateway"}))
    assert call.changed(own=True) == found
    assert origin == found.context.origin
    assert call is apply_policy(call, read_extensions({option: "target"}))


@pytest.mark.parametrize(
    ("name", "is_plain"),
    [
        *((name, True) for name in ("m", "Model-1.onnx_v2", "_m")),
        *((name, False) for name in ("..", ".m", "a/b", "m$(id)", "m m", "m;", "é", "m\n")),
    ],
)
@pytest.mark.parametrize("kind", [ModelLoadRequest, ModelUnloadRequest])
def test_only_models_with_plain_names_are_loaded(kind: Any, name: str, is_plain: bool) -> None:
    """A name could lead out of the repository, or into a shell; one fit for a folder passes."""
    call, extensions = kind(model=ModelRef(name)), read_extensions({"model_control": True})
    if is_plain:
        assert call is apply_policy(call, extensions)
    else:
        with pytest.raises(InvalidRequest, match="cannot be loaded or unloaded"):
            apply_policy(call, extensions)


LIMITED = {"model_control": True, "model_config": "limited"}


BATCHING = {
    "preferred_batch_size": [4, 8],
    "max_queue_delay_microseconds": 100,
    "preserve_ordering": True,
    "priority_levels": 2,
    "default_priority_level": 1,
}


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_batch_size": 8},
        {"dynamic_batching": {}},
        {"dynamic_batching": BATCHING},
        {"version_policy": {"latest": {"num_versions": 2}}},
        {"version_policy": {"all": {}}},
        {"version_policy": {"specific": {"versions": [1, 3]}}},
        {"instance_group": [{"count": 16}]},
    ],
)
def test_a_limited_configuration_passes(config: dict[str, Any]) -> None:
    """A configuration within the limits passes, and is serialized again."""
    call = ModelLoadRequest(model=M, parameters={"config": json.dumps(config, indent=1)})
    found = apply_policy(call, read_extensions(LIMITED))
    assert isinstance(found, ModelLoadRequest)
    assert config == json.loads(str(found.parameters["config"]))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"default_model_filename": "m$(id).py"}, "'default_model_filename'"),
        ({"defaultModelFilename": "m$(id).py"}, "'defaultModelFilename'"),
        ({"backend": "python", "parameters": {}}, "'backend', 'parameters'"),
        ({"max_batch_size": "8"}, "is '8': expected an integer"),
        ({"max_batch_size": True}, "is True"),
        ({"instance_group": [{"count": 17}]}, "from 1 to 16"),
        ({"instance_group": [{"count": 1}, {"count": 1}]}, "a list of one object"),
        ({"instance_group": [{"count": 1, "kind": "KIND_GPU"}]}, "'instance_group.kind'"),
        ({"dynamic_batching": {"priority_levels": 1 << 32}}, "from 0 to 64"),
        ({"dynamic_batching": {"preferred_batch_size": [1] * 65}}, "at most 64 integers"),
        ({"version_policy": {"specific": {"versions": ["../.."]}}}, "integers"),
    ],
)
def test_other_configurations_are_rejected(config: dict[str, Any], text: str) -> None:
    """A configuration is code (CVE-2025-23316); the error names the member or value at fault."""
    call = ModelLoadRequest(model=M, parameters={"config": json.dumps(config)})
    with pytest.raises(InvalidRequest, match=text):
        apply_policy(call, read_extensions(LIMITED))


TRITON, KSERVE, OVMS = (HTTP_DIALECTS[name] for name in ("triton", "kserve", "ovms"))


@pytest.mark.parametrize(
    ("call", "dialect", "text"),
    [
        (ModelConfigRequest(model=M), KSERVE, "'kserve' has no model config"),
        (SharedStatusRequest(), KSERVE, "'kserve' has no shared status"),
        (ModelLoadRequest(model=M), OVMS, "'ovms' has no loading"),
        (LOADING, KSERVE, "'kserve' has no parameters of loading"),
        (ModelUnloadRequest(model=M, dependents=True), KSERVE, "no unloading of dependents"),
    ],
)
def test_calls_unsupported_by_a_dialect_are_rejected(
    call: Call[Any], dialect: Any, text: str
) -> None:
    """A call that a server does not support, or would ignore, is not sent."""
    with pytest.raises(Unsupported, match=text):
        check_asked(call, dialect)
    check_asked(call, TRITON)


@pytest.mark.parametrize("dialect", ["mlserver", "kserve", "gateway"])
def test_dialects_with_model_loading_accept_it(dialect: str) -> None:
    """Loading and unloading without parameters are common to all of them."""
    check_asked(ModelLoadRequest(model=M), HTTP_DIALECTS[dialect])
    check_asked(ModelUnloadRequest(model=M), GRPC_DIALECTS[dialect])


REPOSITORY = ("model_repository", "model_repository(unload_dependents)")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ()),
        ({"model_configuration": True}, ("model_configuration",)),
        ({"model_control": True}, ()),
        ({"model_control": True, "repository_index": True}, REPOSITORY),
        ({"statistics": "gateway", "trace": True}, ("statistics", "trace")),
        ({"logging": "target"}, ("logging",)),
        ({"statistics": "off", "logging": "off"}, ()),
    ],
)
def test_only_enabled_extensions_are_advertised(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    """Extensions have Triton's names, each once, after those of the server itself."""
    server = ServerMetadata("s", "1", ("parameters",))
    found = advertised_extensions(server, read_extensions(options))
    assert ServerMetadata("s", "1", ("parameters", *expected)) == found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"model_configuration": "true"}, {"model_configuration": True}),
        ({"repository_index": "false"}, {"repository_index": False}),
        ({"not_ready_status": "409"}, {"not_ready_status": 409}),
        ({"dialect": "kserve"}, {"dialect": "kserve"}),
        ({"nonfinite": None}, {"nonfinite": "null"}),
        ({"nonfinite": "literal"}, {"nonfinite": "literal"}),
    ],
)
def test_options_of_yaml_get_their_types(options: dict[str, Any], expected: dict[str, Any]) -> None:
    """Options, which are text in YAML, are converted to their types."""
    assert expected == check_options(options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model_configuration": "yes"}, "is 'yes': expected true or false"),
        ({"repository_index": 1}, "is 1: expected true or false"),
        ({"nonfinite": "words"}, "is 'words': expected one of refuse, literal, null"),
        ({"statistik": True}, "oip has no option 'statistik': expected one of dialect"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], text: str) -> None:
    """The error for an invalid key or value lists the valid ones."""
    with pytest.raises(ValueError, match=text):
        check_options(options)
