"""`tf.Example` messages of the JSON of classify and regress.

Integers and booleans are an int64 list, numbers with a point or an exponent a float list, texts and
`{"b64": ...}` a bytes list.

Source: docs/protocols/tensorflow-serving.md, "8. Classify and regress".
"""

from collections.abc import Sequence
from typing import Any, Final

from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.values.exact_values import base64_bytes
from gateway.ir.work import charge
from gateway.schema import tensorflow_messages_pb2 as pb

_INT64: Final = range(-(1 << 63), 1 << 63)
_SHOWN: Final = 64


def read_examples(document: Any, limits: MessageLimits) -> Sequence[bytes]:
    """Return the examples of a document, each with the features of its context.

    Raises:
        InvalidRequest: `examples` is no list of objects, or a feature is none.
        TooLarge: There are too many examples.
    """
    found = document.get("examples")
    if type(found) is not list or not found:
        raise InvalidRequest("examples is missing or no list: expected a list of objects")
    check_count("examples", len(found), limits.bytes_elements, "bytes_elements")
    charge(len(found))
    context = b""
    if "context" in document:
        context = _example(document["context"], "context")
    return [context + _example(each, f"examples[{at}]") for at, each in enumerate(found)]


def _example(value: Any, place: str) -> bytes:
    if type(value) is not dict:
        raise InvalidRequest(f"{place} is {type(value).__name__}: expected an object of features")
    message = pb.Example()
    message.features.SetInParent()
    charge(len(value))
    for name, each in value.items():
        _put_feature(message.features.feature[name], f"{place}.{name[:_SHOWN]}", each)
    return message.SerializeToString()


def _put_feature(feature: pb.Feature, place: str, value: Any) -> None:
    values = value if type(value) is list else [value]
    charge(len(values) / 4)
    kinds = {_kind(each, place) for each in values}
    if len(kinds) > 1:
        raise InvalidRequest(
            f"{place} has {' and '.join(sorted(kinds))}: expected values of one kind"
        )
    kind = kinds.pop() if kinds else ""
    if kind == "integers":
        for each in values:
            if each not in _INT64:
                raise InvalidRequest(f"{place} is {each}: expected an integer of 64 bits")
        feature.int64_list.value.extend(map(int, values))
    elif kind == "numbers":
        feature.float_list.value.extend(values)
    elif kind:
        feature.bytes_list.value.extend([_bytes(each, place) for each in values])


def _kind(value: Any, place: str) -> str:
    if isinstance(value, bool | int):
        return "integers"
    if isinstance(value, float):
        return "numbers"
    if isinstance(value, str) or (type(value) is dict and list(value) == ["b64"]):
        return "bytes"
    found = "null" if value is None else "an object or a nested list"
    raise InvalidRequest(
        f"{place} has {found}: expected numbers, texts, or objects with the key b64"
    )


def _bytes(value: Any, place: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64_bytes(value["b64"])
    except (ValueError, AttributeError) as error:
        raise InvalidRequest(f"{place}.b64 is not base64: {error}") from error
