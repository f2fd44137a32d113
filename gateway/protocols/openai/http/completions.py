"""Requests and responses of `/v1/completions`, and its streams.

Source: docs/protocols/openai.md, "5. Completions".
"""

import math
import time
from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.errors import InvalidOutput
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.tensor import Tensor, as_items, items_tensor
from gateway.ir.text_tasks import COMPLETION_TOKENS, FINISH_REASON, PROMPT_TOKENS, STOP, Generate
from gateway.ir.values.exact_values import whole_number
from gateway.ir.work import reserve
from gateway.protocols.openai.http.document import (
    UNSUPPORTED_INPUT,
    Document,
    optional_flag,
    optional_text,
    refused,
    required,
    shown,
    stop_texts,
    texts,
    wrong,
)
from gateway.protocols.openai.http.form import ReplyForm
from gateway.protocols.openai.paths import PathKind
from gateway.wire.http import Buffer

_NUMBERS: Final = frozenset({"temperature", "top_p", "frequency_penalty", "presence_penalty"})
_INTEGERS: Final = frozenset({"max_tokens", "top_k", "seed"})
COMPLETIONS_MEMBERS: Final = frozenset(
    {
        "model",
        "prompt",
        "stop",
        "echo",
        "n",
        "best_of",
        "logprobs",
        "logit_bias",
        "suffix",
        "stream",
        "stream_options",
        "user",
        *_NUMBERS,
        *_INTEGERS,
    }
)
_STREAM_OPTIONS: Final = frozenset({"include_usage", "include_obfuscation"})
# Of a choice of the response.
_CHOICE_BYTES: Final = 400
_EXPECTED: Final = "a text or a list of texts"
DONE: Final = b"data: [DONE]\n\n"


def read_completion(
    document: Document, kind: PathKind, limits: MessageLimits
) -> tuple[tuple[Tensor, ...], Generate, ReplyForm]:
    """Return the prompts, the task, and the form of the response.

    Raises:
        InvalidMember: A member is wrong, or not supported.
    """
    prompts = _prompts(required(document, "prompt", _EXPECTED), limits)
    _refuse_others(document)
    members = _members(document)
    wants_stream = optional_flag(document, "stream") is True
    options = document.get("stream_options")
    include_usage = False
    if options is not None:
        include_usage = _includes_usage(options, wants_stream=wants_stream)
    optional_text(document, "user")
    if wants_stream and len(prompts) > 1:
        raise wrong(
            "prompt",
            f"has {len(prompts)} texts, and a stream has one; expected one text",
            UNSUPPORTED_INPUT,
        )
    task = Generate(members=members, stop=stop_texts(document), wants_stream=wants_stream)
    now = int(time.time())  # noqa: TID251  # a time of day, which clients show
    form = ReplyForm(kind=kind, include_usage=include_usage, created=now)
    return (items_tensor("", (len(prompts),), prompts),), task, form


def encode_completion(
    call: InferRequest, reply: InferResponse, form: ReplyForm
) -> tuple[Buffer, ...]:
    """Return the body of a response with one choice for each prompt.

    Raises:
        InvalidOutput: A text is not UTF-8.
    """
    items = as_items(reply.outputs[0])
    reasons = str(reply.parameters.get(FINISH_REASON, "")).split(",")
    choices = []
    for index, item in enumerate(items):
        reason = reasons[index] if index < len(reasons) and reasons[index] else STOP
        choices.append(_choice(_text(item, call), index, reason))
    document = {**_head(call, form), "choices": choices, "usage": _usage(reply)}
    return (orjson.dumps(document),)


def encode_piece(call: StreamInferRequest, item: InferResponse, form: ReplyForm) -> bytes:
    """Return one event of a stream: a piece of the text, or its end with the reason."""
    content = "".join(
        _text(each, call.request) for tensor in item.outputs for each in as_items(tensor)
    )
    reason = str(item.parameters.get(FINISH_REASON, STOP)) if item.is_final else None
    document = {**_head(call, form), "choices": [_choice(content, 0, reason)]}
    if form.include_usage:
        document["usage"] = None
    return event(document)


def encode_stream_end(
    call: StreamInferRequest, last: InferResponse | None, form: ReplyForm
) -> bytes:
    """Return the last events of a stream: the usage, if the request asks for it, and the end."""
    if not form.include_usage:
        return DONE
    return event({**_head(call, form), "choices": [], "usage": _usage(last)}) + DONE


def event(document: Mapping[str, Any]) -> bytes:
    """Return one event whose data is *document*."""
    return b"data: %b\n\n" % orjson.dumps(document)


def _head(call: InferRequest | StreamInferRequest, form: ReplyForm) -> dict[str, Any]:
    return {
        "id": f"cmpl-{call.context.request_id}",
        "object": "text_completion",
        "created": form.created,
        "model": "" if call.model is None else call.model.name,
    }


def _usage(reply: InferResponse | None) -> dict[str, int]:
    """Return the numbers of tokens of prompts and texts; 0 where they are not known."""
    found = {} if reply is None else reply.parameters
    counts = [found.get(name, 0) for name in (PROMPT_TOKENS, COMPLETION_TOKENS)]
    prompt, text = [each if type(each) is int else 0 for each in counts]
    return {"prompt_tokens": prompt, "completion_tokens": text, "total_tokens": prompt + text}


def _choice(content: str, index: int, reason: str | None) -> dict[str, Any]:
    return {"text": content, "index": index, "logprobs": None, "finish_reason": reason}


def _text(item: bytes | memoryview, call: InferRequest) -> str:
    try:
        return str(item, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidOutput(
            "the model returned bytes that are not UTF-8; expected a text", model=call.model
        ) from error


def _prompts(value: Any, limits: MessageLimits) -> list[bytes]:
    if type(value) is str:
        return [value.encode()]
    if type(value) is not list:
        raise wrong("prompt", f"is {shown(value)}; expected {_EXPECTED}")
    if value and type(value[0]) in (int, list):
        raise wrong(
            "prompt",
            f"has token ids, which are not supported; expected {_EXPECTED}",
            UNSUPPORTED_INPUT,
        )
    found = texts(value, "prompt", limits)
    reserve(sum(map(len, found)), len(found) * _CHOICE_BYTES)
    return found


def _members(document: Document) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in document.items():
        if name in _INTEGERS:
            value = whole_number(value)  # noqa: PLW2901  # the same number
            if type(value) is not int or (name == "max_tokens" and value < 0):
                raise wrong(name, f"is {shown(value)}; expected a whole number")
            found[name] = value
        elif name in _NUMBERS:
            if type(value) not in (int, float) or not math.isfinite(value):
                raise wrong(name, f"is {shown(value)}; expected a number")
            found[name] = value
    echo = optional_flag(document, "echo")
    if echo is not None:
        found["echo"] = echo
    return found


def _refuse_others(document: Document) -> None:
    for name in ("n", "best_of"):
        value = whole_number(document.get(name, 1))
        if type(value) is not int or value < 1:
            raise wrong(name, f"is {shown(value)}; expected 1")
        if value > 1:
            raise refused(name, "is not supported; expected 1")
    for name in ("logprobs", "suffix"):
        if name in document:
            raise refused(name)
    if document.get("logit_bias"):
        raise refused("logit_bias")


def _includes_usage(options: Any, *, wants_stream: bool) -> bool:
    if not wants_stream:
        raise wrong("stream_options", "is for streams; expected it with stream: true")
    if type(options) is not dict:
        raise wrong("stream_options", f"is {shown(options)}; expected an object")
    for name, value in options.items():
        if name not in _STREAM_OPTIONS:
            raise wrong(
                "stream_options", f"has the unknown member {name[:64]!r}", "unknown_parameter"
            )
        if value is not None and type(value) is not bool:
            raise wrong("stream_options", f"has {name!r} {shown(value)}; expected true or false")
    return options.get("include_usage") is True
