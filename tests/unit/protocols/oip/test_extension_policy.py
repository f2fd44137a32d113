"""Extensions that a listener serves or not: refused by name, advertised exactly."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    SharedStatusRequest,
    TraceSettingRequest,
)
from gateway.ir.context import ModelRef, Origin
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip.dialects import DIALECTS as HTTP_DIALECTS
from gateway.protocols.oip.extension_policy import advertised_extensions, apply_policy, check_asked
from gateway.protocols.oip.grpc.dialects import DIALECTS as GRPC_DIALECTS
from gateway.protocols.oip.options import check_options, read_extensions

M = ModelRef("m")
LOADING = ModelLoadRequest(model=M, parameters={"config": "{}", "file:1/model.onnx": b"x"})
GATED: list[tuple[Call[Any], dict[str, Any]]] = [
    (ModelConfigRequest(model=M), {"model_configuration": True}),
    (RepositoryIndexRequest(), {"repository_index": True}),
    (ModelStatisticsRequest(), {"statistics": "target"}),
    (ModelLoadRequest(model=M), {"model_control": True}),
    (ModelUnloadRequest(model=M), {"model_control": True}),
    (LOADING, {"model_files": True, "model_control": True}),
    (TraceSettingRequest(), {"trace": True}),
    (LogSettingsRequest(), {"logging": "target"}),
]
IDS = [next(iter(options)) for _, options in GATED]


@pytest.mark.parametrize(("call", "options"), GATED, ids=IDS)
def test_what_is_off_is_refused_by_its_option(call: Call[Any], options: dict[str, Any]) -> None:
    """The text names the option that would switch it on, and then it passes."""
    off, *others = options
    with pytest.raises(Unsupported, match=rf"option {off}\)"):
        apply_policy(call, read_extensions({key: options[key] for key in others}))
    assert call == apply_policy(call, read_extensions(options))


def test_what_has_no_option_passes() -> None:
    """Inference, health and metadata are always served."""
    call = ModelReadyRequest(model=M)
    assert call is apply_policy(call, read_extensions({}))


@pytest.mark.parametrize(
    ("call", "option"),
    [(ModelStatisticsRequest(model=M), "statistics"), (LogSettingsRequest(), "logging")],
)
def test_a_question_to_the_gateway_itself_is_marked(
    call: ModelStatisticsRequest | LogSettingsRequest, option: str
) -> None:
    """The listener chooses whose counts and whose log are meant; the wire form stays known."""
    origin = Origin("oip.http", object())
    found = apply_policy(call.with_context(origin=origin), read_extensions({option: "gateway"}))
    assert call.changed(own=True) == found
    assert origin == found.context.origin
    assert call is apply_policy(call, read_extensions({option: "target"}))


TRITON, KSERVE, OVMS = (HTTP_DIALECTS[name] for name in ("triton", "kserve", "ovms"))


@pytest.mark.parametrize(
    ("call", "dialect", "text"),
    [
        (ModelConfigRequest(model=M), KSERVE, "'kserve' has no ModelConfigRequest"),
        (SharedStatusRequest(), KSERVE, "'kserve' has no SharedStatusRequest"),
        (ModelLoadRequest(model=M), OVMS, "'ovms' has no loading"),
        (LOADING, KSERVE, "'kserve' has no parameters of loading"),
        (ModelUnloadRequest(model=M, dependents=True), KSERVE, "no unloading of dependents"),
    ],
)
def test_servers_are_not_asked_what_they_lack(call: Call[Any], dialect: Any, text: str) -> None:
    """Nothing is sent that a server would not have, or would pass over without a word."""
    with pytest.raises(Unsupported, match=text):
        check_asked(call, dialect)
    check_asked(call, TRITON)


@pytest.mark.parametrize("dialect", ["mlserver", "kserve", "gateway"])
def test_servers_that_load_models_are_asked(dialect: str) -> None:
    """Loading without parameters is common to all of them."""
    check_asked(ModelLoadRequest(model=M), HTTP_DIALECTS[dialect])
    check_asked(ModelUnloadRequest(model=M), GRPC_DIALECTS[dialect])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ()),
        ({"model_configuration": True}, ("model_configuration",)),
        ({"model_control": True}, ()),
        (
            {"model_control": True, "repository_index": True},
            ("model_repository", "model_repository(unload_dependents)"),
        ),
        (
            {"statistics": "gateway", "trace": True, "logging": "target"},
            ("statistics", "trace", "logging"),
        ),
        ({"statistics": "off", "logging": "off"}, ()),
    ],
)
def test_exactly_what_is_on_is_advertised(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    """Names are Triton's, each once, after those of the server itself."""
    found = advertised_extensions(
        ServerMetadata("s", "1", ("parameters",)), read_extensions(options)
    )
    assert ServerMetadata("s", "1", ("parameters", *expected)) == found


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"model_configuration": "true"}, {"model_configuration": True}),
        ({"repository_index": "false"}, {"repository_index": False}),
        ({"not_ready_status": "409"}, {"not_ready_status": 409}),
        ({"dialect": "kserve"}, {"dialect": "kserve"}),
    ],
)
def test_options_of_yaml_get_their_types(given: dict[str, Any], expected: dict[str, Any]) -> None:
    """In YAML every scalar is text."""
    assert expected == check_options(given)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model_configuration": "yes"}, "is 'yes': expected true or false"),
        ({"repository_index": 1}, "is 1: expected true or false"),
        ({"statistik": True}, "oip has no option 'statistik': expected one of dialect"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    """A key or value that does not exist is said with those that do."""
    with pytest.raises(ValueError, match=text):
        check_options(options)
