"""Model configuration as a protobuf message and as a JSON document: defaults and unknown members."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.errors import GatewayError, MalformedMessage, TooLarge, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelConfiguration
from gateway.protocols.oip.model_config import from_document, from_message, to_document, to_message
from gateway.schema import open_inference_pb2 as pb

MESSAGE = pb.ModelConfig(
    name="m",
    max_batch_size=8,
    input=[pb.ModelInput(name="X", data_type=pb.TYPE_FP32, dims=[-1, 1 << 40])],
    dynamic_batching=pb.ModelDynamicBatching(
        max_queue_delay_microseconds=(1 << 64) - 1,
        priority_queue_policy={3: pb.ModelQueuePolicy(default_timeout_microseconds=7)},
    ),
    parameters={"k": pb.ModelParameter(string_value="v")},
    model_transaction_policy=pb.ModelTransactionPolicy(decoupled=True),
)


def test_wide_integers_are_json_numbers() -> None:
    """64-bit integers have no quotes in the document, nor in its lists and maps."""
    document = from_message(MESSAGE, DEFAULT_LIMITS).document
    assert [-1, 1 << 40] == document["input"][0]["dims"]
    batching = document["dynamic_batching"]
    assert (1 << 64) - 1 == batching["max_queue_delay_microseconds"]
    assert 7 == batching["priority_queue_policy"]["3"]["default_timeout_microseconds"]


def test_message_survives_a_round_trip_through_json() -> None:
    """A message converted to a document and back is the same message."""
    assert MESSAGE == to_message(from_message(MESSAGE, DEFAULT_LIMITS))


def test_document_has_every_default() -> None:
    """The document has the defaults of unset members, and keeps unknown members."""
    document = to_document(ModelConfiguration({"name": "m", "of_tomorrow": {"a": [1]}}))
    assert 0 == document["max_batch_size"]
    assert [] == document["input"]
    assert {} == document["parameters"]
    assert {"a": [1]} == document["of_tomorrow"]


def test_document_keeps_unknown_members_at_any_depth() -> None:
    """Unknown members and enum values of a newer server are kept in nested objects, too."""
    found = {
        "input": [{"name": "X", "dims": ["2", 3], "of_tomorrow": {"a": [1]}}],
        "instance_group": [{"kind": "KIND_OF_TOMORROW", "count": 2}],
        "dynamic_batching": {"of_tomorrow": 1, "preferred_batch_size": None},
    }
    document = to_document(ModelConfiguration(found))
    (x,), (group,) = document["input"], document["instance_group"]
    batching = document["dynamic_batching"]
    assert ({"a": [1]}, [2, 3], False) == (x["of_tomorrow"], x["dims"], x["optional"])
    assert ("KIND_OF_TOMORROW", 2, []) == (group["kind"], group["count"], group["gpus"])
    assert 1 == batching["of_tomorrow"]
    assert False is batching["preserve_ordering"]
    assert [] == batching["preferred_batch_size"]


def test_document_without_a_message_form_stays_a_document() -> None:
    """A document that does not fit the message passes over HTTP and is rejected over gRPC."""
    odd = ModelConfiguration({"name": "m", "default_model_filename": 5})
    assert odd.document == to_document(odd)
    with pytest.raises(Unsupported, match="default_model_filename"):
        to_message(odd)


def test_message_omits_unknown_members() -> None:
    """A newer server's configuration is sent over gRPC without its unknown members."""
    assert pb.ModelConfig(name="m") == to_message(ModelConfiguration({"name": "m", "new": 1}))


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ([], MalformedMessage),
        ({"name": 5}, MalformedMessage),
        ({"max_batch_size": "8"}, MalformedMessage),
        ({"input": {}}, MalformedMessage),
        ({"output": [1]}, MalformedMessage),
        ({"name": "m" * 300}, TooLarge),
        ({"input": [{}] * 9}, TooLarge),
    ],
)
def test_invalid_document_is_rejected(document: Any, error: type[GatewayError]) -> None:
    """A member that the gateway reads is rejected if its type or size is wrong."""
    with pytest.raises(error):
        from_document(document, MessageLimits(tensors=8))
