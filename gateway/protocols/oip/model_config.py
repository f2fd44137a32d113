"""Model configuration: Triton's message to and from text.

Over HTTP it is the message as JSON with all defaults, and with 64-bit integers as numbers; the IR
has this text.  Members that the message lacks are kept from HTTP to HTTP.

Source: Triton model configuration extension; docs/protocols/open-inference.md,
"14. Models, statistics and settings".
"""

from typing import Any

from gateway.ir.errors import MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.metadata import ModelConfiguration
from gateway.protocols.oip.protobuf_json import message_of, text_of
from gateway.schema import open_inference_pb2 as pb


def to_message(configuration: ModelConfiguration) -> pb.ModelConfig:
    """Return the message, without members that it does not have.

    Raises:
        Unsupported: The message cannot represent the value of a member.
    """
    try:
        return message_of(configuration.document, pb.ModelConfig)
    except MalformedMessage as error:
        raise Unsupported(f"model configuration cannot be written: {error.message}") from error


def from_message(message: pb.ModelConfig, limits: MessageLimits) -> ModelConfiguration:
    """Return the text of a message, with all defaults.

    Raises:
        InvalidRequest, TooLarge: A name in it is not allowed, or there are too many tensors.
    """
    return _checked(text_of(message), limits)


def to_document(configuration: ModelConfiguration) -> dict[str, Any]:
    """Return the text for HTTP, with all defaults; unchanged where the message cannot hold it."""
    document = dict(configuration.document)
    try:
        completed: dict[str, Any] = _completed(document, text_of(to_message(configuration)))
    except Unsupported:
        return document
    return completed


def from_document(document: Any, limits: MessageLimits) -> ModelConfiguration:
    """Return a configuration that was received as JSON.

    Raises:
        MalformedMessage: It is not a configuration.
        InvalidRequest, TooLarge: A name in it is not allowed, or there are too many tensors.
    """
    if type(document) is not dict:
        raise MalformedMessage("the model configuration is JSON, but not an object")
    return _checked(document, limits)


def _completed(own: Any, written: Any) -> Any:
    """Return a server's value, with the defaults of *written*, which is its message as text.

    The message lacks what is newer: members at any depth, and the words of enumerations.
    """
    if type(own) is not type(written):
        return written
    if type(own) is dict:
        known = {
            key: _completed(value, written[key]) if key in written else value
            for key, value in own.items()
        }
        return known | {key: value for key, value in written.items() if key not in known}
    if type(own) is list and len(own) == len(written):
        return [_completed(one, other) for one, other in zip(own, written, strict=True)]
    return own


def _checked(document: dict[str, Any], limits: MessageLimits) -> ModelConfiguration:
    """Check the types of the members that other parts of the gateway read."""
    name = document.get("name", "")
    if type(name) is not str or type(document.get("max_batch_size", 0)) is not int:
        raise MalformedMessage("the model configuration has a wrong type as name or size")
    check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    for key in ("input", "output"):
        found = document.get(key, [])
        if type(found) is not list or any(type(entry) is not dict for entry in found):
            raise MalformedMessage(f"{key!r} of the model configuration is not a list of objects")
        check_count(f"{key}s in the configuration", len(found), limits.tensors, "tensors")
    return ModelConfiguration(document)
