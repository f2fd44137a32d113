"""Extensions that a listener serves or not: refused by name, advertised exactly."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import Call, ModelConfigRequest, ModelReadyRequest, RepositoryIndexRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.ir.metadata import ServerMetadata
from gateway.protocols.oip.gates import advertised, check_allowed
from gateway.protocols.oip.options import check_options, read_extensions

M = ModelRef("m")
GATED: list[tuple[Call[Any], dict[str, Any]]] = [
    (ModelConfigRequest(model=M), {"model_configuration": True}),
    (RepositoryIndexRequest(), {"repository_index": True}),
]
IDS = [next(iter(options)) for _, options in GATED]


@pytest.mark.parametrize(("call", "options"), GATED, ids=IDS)
def test_what_is_off_is_refused_by_its_option(call: Call[Any], options: dict[str, Any]) -> None:
    """The text names the option that would switch it on, and then it passes."""
    with pytest.raises(Unsupported, match=rf"option {next(iter(options))}\)"):
        check_allowed(call, read_extensions({}))
    check_allowed(call, read_extensions(options))


def test_what_has_no_option_passes() -> None:
    """Inference, health and metadata are always served."""
    check_allowed(ModelReadyRequest(model=M), read_extensions({}))


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, ()), ({"model_configuration": True}, ("model_configuration",))],
)
def test_exactly_what_is_on_is_advertised(
    options: dict[str, Any], expected: tuple[str, ...]
) -> None:
    """Names are Triton's, each once, after those of the server itself."""
    found = advertised(ServerMetadata("s", "1", ("parameters",)), read_extensions(options))
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
        ({"model_configuration": "yes"}, "'yes' is none of true, false"),
        ({"repository_index": 1}, "1 is none of true, false"),
        ({"statistik": True}, "oip has no option 'statistik', only dialect"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], text: str) -> None:
    """A key or value that does not exist is said with those that do."""
    with pytest.raises(ValueError, match=text):
        check_options(options)
