from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ServerLiveRequest, ServerReadyRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError

CALL = InferRequest(model=ModelRef("m"), id="1", context=Context(origin=Origin("c", "wire")))


def test_a_changed_call_loses_its_wire_form() -> None:
    """Nobody can forward bytes that no longer say what the call says."""
    changed = CALL.changed(id="2")
    assert ("2", None) == (changed.id, changed.context.origin)
    assert CALL.context.origin is not None


def test_a_changed_context_loses_its_wire_form_too() -> None:
    """A context given with the change is treated alike."""
    context = Context(request_id="r", origin=Origin("c", "wire"))
    assert Context(request_id="r") == CALL.changed(context=context).context
    assert CALL.changed(context=context).context.origin is None


def test_within_keeps_the_wire_form() -> None:
    """Deadline and request id are not in the wire form, which so stays true."""
    changed = CALL.with_context(deadline=3.0)
    assert 3.0 == changed.context.deadline
    assert CALL.context.origin is changed.context.origin


def test_a_changed_reply_loses_its_wire_form() -> None:
    """A reply that a policy changed is written anew."""
    reply = InferResponse(model=ModelRef("m"), outputs=(), origin=Origin("c", "wire"))
    assert reply.changed(id="x").origin is None


def test_the_origin_takes_no_part_in_equality() -> None:
    """Two calls that say the same are equal, wherever they came from."""
    assert CALL == InferRequest(model=ModelRef("m"), id="1")


def test_the_origin_takes_no_part_in_what_is_printed_or_hashed() -> None:
    """A log or a failed test shows what was asked, not the bytes it came in."""
    context = Context("c", origin=Origin("c", "wire"))
    assert hash(Context("c")) == hash(context)
    assert repr(Context("c")) == repr(context)
    assert "Context(protocol='c', metadata=()," in repr(context)
    assert Context("d") != context


def test_values_of_different_kinds_are_not_equal() -> None:
    """A stream's question with the same fields is another question."""
    ready: object = ServerReadyRequest()
    assert ready != ServerLiveRequest()
    assert Context() != InferResponse(model=ModelRef("m"), outputs=())


def test_calls_are_frozen() -> None:
    """A shared call cannot be changed in place."""
    with pytest.raises(AttributeError):
        ServerLiveRequest().model = ModelRef("m")  # type: ignore[misc]  # that is the test


def test_every_code_has_a_class_of_that_code() -> None:
    """The reverse tables of protocols find a class for each code."""
    assert set(ErrorCode) == set(ERROR_CLASSES)
    for code, error in ERROR_CLASSES.items():
        assert code is error.code
        assert issubclass(error, GatewayError)


def test_a_model_prints_as_people_say_it() -> None:
    """With its version where one is asked for."""
    assert "m" == str(ModelRef("m"))
    assert "m version 2" == str(ModelRef("m", "2"))


def test_a_change_must_be_to_a_field() -> None:
    """A misspelt field is not lost without a word."""
    with pytest.raises(TypeError, match="`InferRequest` has no field 'inptus'"):
        CALL.changed(inptus=())
