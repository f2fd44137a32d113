from __future__ import annotations

import pytest

from gateway.ir.calls import InferRequest, InferResponse, ServerLiveRequest, ServerReadyRequest
from gateway.ir.context import Context, ModelRef, Origin
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError

CALL = InferRequest(model=ModelRef("m"), id="1", context=Context(origin=Origin("c", "wire")))


def test_changing_a_call_drops_its_origin() -> None:
    """Bytes that no longer match the call cannot be forwarded."""
    changed = CALL.changed(id="2")
    assert ("2", None) == (changed.id, changed.context.origin)
    assert CALL.context.origin is not None


def test_changing_the_context_drops_its_origin() -> None:
    """A context passed with the change loses its origin, too."""
    context = Context(request_id="r", origin=Origin("c", "wire"))
    assert Context(request_id="r") == CALL.changed(context=context).context
    assert CALL.changed(context=context).context.origin is None


def test_with_context_keeps_the_origin() -> None:
    """Deadline and request id are not in the wire form, which stays valid."""
    changed = CALL.with_context(deadline=3.0)
    assert 3.0 == changed.context.deadline
    assert CALL.context.origin is changed.context.origin


def test_changing_a_reply_drops_its_origin() -> None:
    """A reply that a policy changed is encoded again."""
    reply = InferResponse(model=ModelRef("m"), outputs=(), origin=Origin("c", "wire"))
    assert reply.changed(id="x").origin is None


def test_equality_ignores_the_origin() -> None:
    """Two calls with the same content are equal, whatever their origin."""
    assert CALL == InferRequest(model=ModelRef("m"), id="1")


def test_repr_and_hash_ignore_the_origin() -> None:
    """A log or a failed test shows the context, not the received bytes."""
    context = Context("c", origin=Origin("c", "wire"))
    assert hash(Context("c")) == hash(context)
    assert repr(Context("c")) == repr(context)
    assert "Context(protocol='c', metadata=()," in repr(context)
    assert Context("d") != context


def test_values_of_different_types_are_not_equal() -> None:
    """Calls of different types with the same fields differ."""
    ready: object = ServerReadyRequest()
    assert ready != ServerLiveRequest()
    assert Context() != InferResponse(model=ModelRef("m"), outputs=())


def test_calls_are_frozen() -> None:
    """A shared call cannot be changed in place."""
    with pytest.raises(AttributeError):
        ServerLiveRequest().model = ModelRef("m")  # type: ignore[misc]  # that is the test


def test_every_error_code_has_an_error_class() -> None:
    """The reverse tables of protocols find a class for each code."""
    assert set(ErrorCode) == set(ERROR_CLASSES)
    for code, error in ERROR_CLASSES.items():
        assert code is error.code
        assert issubclass(error, GatewayError)


def test_text_of_a_model_includes_its_version() -> None:
    """The text has a version only where one is requested."""
    assert "m" == str(ModelRef("m"))
    assert "m version 2" == str(ModelRef("m", "2"))


def test_changing_an_unknown_field_raises() -> None:
    """A misspelt field raises TypeError."""
    with pytest.raises(TypeError, match="`InferRequest` has no field 'inptus'"):
        CALL.changed(inptus=())
