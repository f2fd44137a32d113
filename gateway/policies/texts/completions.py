"""Completions: prompts to texts, one reply or a stream, with the members that callers send."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import numpy as np

from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Parameter
from gateway.ir.errors import InvalidMember, InvalidOutput
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, items_tensor
from gateway.ir.text_tasks import FINISH_REASON, LENGTH, STOP, CompletionsForm, Generate
from gateway.policies.texts.signature import Rows, TaskModel, output_of
from gateway.policies.texts.task import TaskRun, text_tensor, texts_of

COMPLETIONS: Final = "completions"
_PLAIN: Final = CompletionsForm()
_INPUT, _OUTPUT = "text_input", "text_output"
_STREAM: Final = "stream"
_UNSUPPORTED_PARAMETER: Final = "unsupported_parameter"
_UNSUPPORTED_INPUT: Final = "unsupported_input"

_DEFAULTS: Final[Mapping[str, object]] = {
    "temperature": 1,
    "top_p": 1,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "echo": False,
}
"""Values of the API that a model without a place for them does not need to know."""


async def complete(run: TaskRun, task: Generate) -> InferResponse:
    """Return the text of each prompt.

    Raises:
        InvalidMember: The model does not serve the request.
        GatewayError: The model fails.
    """
    form = _form_of(run)
    calls = _PromptCalls(run, task, form)
    prompts = texts_of(run.call.inputs[0])
    found: list[str] = []
    reasons: list[str] = []
    if run.metadata.decoupled:
        for prompt in prompts:
            text, reason = "", STOP
            async with aclosing(_pieces(run, calls, prompt)) as pieces:
                async for piece, why in pieces:
                    text, reason = text + piece, why or reason
            found.append(text)
            reasons.append(reason)
        return _texts_reply(run, calls.output.name, found, reasons)
    most = calls.rows.most or len(prompts)
    for begin in range(0, len(prompts), most):
        chosen = prompts[begin : begin + most]
        reply = await run.infer(calls.request(chosen))
        texts = calls.texts(reply)
        if len(texts) != len(chosen):
            calls.model.refuse(
                f"one text for each of {len(chosen)} prompts at the output {calls.output.name!r}"
            )
        for at, data in enumerate(texts):
            finder = StopFinder(calls.stops)
            text = finder.add(_decoded(bytes(data), run)) + finder.end()
            found.append(text)
            reasons.append(STOP if finder.is_found else calls.reason(reply, at) or STOP)
    return _texts_reply(run, calls.output.name, found, reasons)


async def stream_completion(run: TaskRun, task: Generate) -> AsyncIterator[InferResponse]:
    """Return the pieces of a text; the last item has none, and the reason of the end.

    Raises:
        InvalidMember: The model does not serve the request.
    """
    calls = _PromptCalls(run, task, _form_of(run))
    prompts = texts_of(run.call.inputs[0])
    if len(prompts) != 1:
        raise InvalidMember(
            f"'prompt' has {len(prompts)} texts, and a stream has one; expected one text, or no "
            "stream",
            member="prompt",
            reason=_UNSUPPORTED_INPUT,
            model=run.ref,
        )
    return _stream(run, calls, prompts[0])


class StopFinder:
    """Finds the first of some texts in a text that comes in pieces.

    Args:
        stops: The texts; none finds nothing.

    Attributes:
        is_found: Whether one was found; what follows is then dropped.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_found = False

    def add(self, piece: str) -> str:
        """Return what can be sent: a beginning of a text that may follow is held back."""
        if self.is_found:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        places = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if places:
            self.is_found = True
            self._held = ""
            return text[: min(places)]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def end(self) -> str:
        """Return what is held back, because nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of *text* that is a beginning of *stop*."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


def _form_of(run: TaskRun) -> CompletionsForm:
    forms = run.forms()
    return (forms and forms.completions) or _PLAIN


async def _stream(
    run: TaskRun, calls: _PromptCalls, prompt: bytes | memoryview
) -> AsyncGenerator[InferResponse, None]:
    reason = STOP
    async with aclosing(_pieces(run, calls, prompt)) as pieces:
        async for piece, why in pieces:
            reason = why or reason
            if piece:
                yield _piece_reply(run, calls.output.name, piece)
    yield InferResponse(
        model=run.ref, outputs=(), id=run.call.id, parameters={FINISH_REASON: reason}
    )


async def _pieces(
    run: TaskRun, calls: _PromptCalls, prompt: bytes | memoryview
) -> AsyncGenerator[tuple[str, str], None]:
    """Yield pieces of the text of one prompt, each with the reason of the end where it has one."""
    request = calls.request([prompt])
    finder = StopFinder(calls.stops)
    decoder = codecs.getincrementaldecoder("utf-8")()
    if not run.metadata.decoupled:
        reply = await run.infer(request)
        text = _decoded(b"".join(map(bytes, calls.texts(reply))), run)
        yield finder.add(text) + finder.end(), STOP if finder.is_found else calls.reason(reply, 0)
        return
    items = await run.stream(request)
    reason = ""
    try:
        async for item in items:
            if item.error is not None:
                raise item.error
            if not item.outputs:
                continue
            data = b"".join(map(bytes, calls.texts(item)))
            reason = calls.reason(item, 0) or reason
            yield finder.add(_decode_piece(decoder, data, run)), ""
            if finder.is_found:
                break
    finally:
        # A model that goes on after a stop text is cancelled.
        await close_stream(items)
    if finder.is_found:
        yield "", STOP
        return
    yield finder.add(_decode_piece(decoder, b"", run, final=True)) + finder.end(), reason


def _decode_piece(
    decoder: codecs.IncrementalDecoder, data: bytes, run: TaskRun, *, final: bool = False
) -> str:
    try:
        return decoder.decode(data, final)
    except UnicodeDecodeError as error:
        raise _not_text(run) from error


def _decoded(data: bytes, run: TaskRun) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_text(run) from error


def _not_text(run: TaskRun) -> InvalidOutput:
    return InvalidOutput(
        f"model {str(run.ref)!r} returned bytes that are not UTF-8; expected a text", model=run.ref
    )


def _piece_reply(run: TaskRun, name: str, piece: str) -> InferResponse:
    tensor = Tensor(name, Datatype.BYTES, (1,), ItemsData([piece.encode()]))
    return InferResponse(model=run.ref, outputs=(tensor,), id=run.call.id, is_final=False)


def _texts_reply(
    run: TaskRun, name: str, texts: Sequence[str], reasons: Sequence[str]
) -> InferResponse:
    output = items_tensor(name, (len(texts),), [text.encode() for text in texts])
    return InferResponse(
        model=run.ref,
        outputs=(output,),
        id=run.call.id,
        parameters={FINISH_REASON: ",".join(reasons)},
    )


class _PromptCalls:
    """The calls of a model that writes texts.

    Attributes:
        model: The model.
        rows: How a call has several prompts.
        output: The output with the texts.
        stops: Texts that the gateway looks for, because the model has no input for them.
    """

    def __init__(self, run: TaskRun, task: Generate, form: CompletionsForm) -> None:
        self._run = run
        self.model = model = TaskModel(run.call, run.metadata, COMPLETIONS)
        self._prompt = _prompt_input(model, form)
        self.output = _text_output(model, form)
        self.rows: Rows = model.rows(self._prompt)
        self._values: list[tuple[TensorMetadata, Sequence[Any]]] = []
        self._parameters: dict[str, Parameter] = {}
        self.stops: tuple[str, ...] = ()
        self._sort_members(task, form)

    def request(self, prompts: Sequence[bytes | memoryview]) -> InferRequest:
        """Return one call with these prompts."""
        count = len(prompts)
        inputs = [text_tensor(self._prompt.name, self.rows.shape(count), prompts)]
        has_batch = self._run.metadata.supports_batching
        inputs += [
            _value_tensor(self.model, declared, values, count if has_batch else None)
            for declared, values in self._values
        ]
        return self._run.plain(inputs, parameters=self._parameters)

    def texts(self, reply: InferResponse) -> Sequence[bytes | memoryview]:
        """Return the texts of a reply."""
        tensor = output_of(self.model, reply, self.output.name)
        if tensor.datatype is not Datatype.BYTES or not isinstance(
            tensor.data, RawData | ItemsData
        ):
            self.model.refuse(f"texts at the output {self.output.name!r}")
        return as_items(tensor)

    def reason(self, reply: InferResponse, at: int) -> str:
        """Return why the model ended a text; "" where it does not say."""
        for tensor in reply.outputs:
            if tensor.name == FINISH_REASON and tensor.datatype is Datatype.BYTES:
                items = as_items(tensor)
                word = bytes(items[at]).decode("utf-8", "replace") if at < len(items) else ""
                return LENGTH if word == LENGTH else STOP if word else ""
        return ""

    def _sort_members(self, task: Generate, form: CompletionsForm) -> None:
        """Give each member of the request its place, or refuse it."""
        members: dict[str, Any] = dict(task.members)
        if task.stop:
            members[STOP] = task.stop
        sampling: dict[str, Any] = {}
        for name, value in members.items():
            declared = self.model.find_input(form.names.get(name, name))
            if declared is not None and declared.name not in (self._prompt.name, form.sampling):
                self._values.append((declared, value if isinstance(value, tuple) else (value,)))
            elif form.sampling:
                sampling[name] = list(value) if isinstance(value, tuple) else value
            elif name in form.parameters:
                text = json.dumps(value) if isinstance(value, tuple) else value
                self._parameters[name] = text
            elif name == STOP:
                self.stops = task.stop
            else:
                self._refuse_member(name, value, form)
        if form.sampling:
            text = json.dumps(sampling, ensure_ascii=False)
            declared = self.model.input(form.sampling, "sampling")
            if sampling:
                self._values.append((declared, (text,)))
        streaming = self.model.find_input(_STREAM)
        if streaming is not None and streaming.datatype is Datatype.BOOL:
            self._values.append((streaming, (task.wants_stream,)))

    def _refuse_member(self, name: str, value: object, form: CompletionsForm) -> None:
        if name in form.ignore or (name in _DEFAULTS and _DEFAULTS[name] == value):
            return
        raise InvalidMember(
            f"{name!r} is not supported by model {str(self.model.ref)!r}, which has no input of "
            f"this name; expected no such member, or a place for it ({self.model.key}: {{map: "
            f"{{{name}: INPUT}}}}, or {self.model.key}: {{ignore: [{name}]}})",
            member=name,
            reason=_UNSUPPORTED_PARAMETER,
            model=self.model.ref,
        )


def _prompt_input(model: TaskModel, form: CompletionsForm) -> TensorMetadata:
    """Return the input for prompts: as declared, the usual one, or the only BYTES input."""
    usual = model.find_input(_INPUT)
    if not form.input and usual is not None and usual.datatype is Datatype.BYTES:
        return usual
    if form.input:
        return model.text_input(form.input, "input")
    found = [each for each in model.metadata.inputs if each.datatype is Datatype.BYTES]
    others = {form.sampling, *form.names.values()}
    found = [each for each in found if each.name not in others]
    if len(found) != 1:
        model.refuse(f"exactly one BYTES input for prompts ({model.key}: {{input: NAME}})")
    return found[0]


def _text_output(model: TaskModel, form: CompletionsForm) -> TensorMetadata:
    outputs = [each for each in model.metadata.outputs if each.datatype is Datatype.BYTES]
    name = form.output or (_OUTPUT if any(each.name == _OUTPUT for each in outputs) else "")
    if name:
        outputs = [each for each in outputs if each.name == name]
    else:
        outputs = [each for each in outputs if each.name != FINISH_REASON]
    if len(outputs) != 1:
        model.refuse(f"exactly one BYTES output for texts ({model.key}: {{output: NAME}})")
    return outputs[0]


def _value_tensor(
    model: TaskModel, declared: TensorMetadata, values: Sequence[Any], rows: int | None
) -> Tensor:
    """Return the values of a member as an input, the same for each row."""
    shape = declared.shape or (1,)
    item = list(shape[1:] if rows is not None else shape)
    for axis in reversed(range(len(item))):
        if item[axis] < 0:
            item[axis] = len(values) if axis == len(item) - 1 else 1
    count = 1
    for size in item:
        count *= size
    if count != len(values):
        model.refuse(f"room for {len(values)} values at the input {declared.name!r}")
    full = tuple(item) if rows is None else (rows, *item)
    repeated = list(values) * (1 if rows is None else rows)
    datatype = declared.datatype
    if datatype is Datatype.BYTES:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in repeated]
        return items_tensor(declared.name, full, [text.encode() for text in texts])
    if datatype is None or datatype is Datatype.BF16:
        model.refuse(f"a datatype that carries values of JSON at the input {declared.name!r}")
    array = np.array([_number(model, declared, datatype, value) for value in repeated])
    return array_tensor(declared.name, array.astype(datatype.numpy_dtype).reshape(full), datatype)


def _number(model: TaskModel, declared: TensorMetadata, datatype: Datatype, value: Any) -> Any:
    is_flag = isinstance(value, bool)
    if datatype is Datatype.BOOL and is_flag:
        return value
    if not is_flag and isinstance(value, int | float) and datatype is not Datatype.BOOL:
        if datatype.is_float:
            return float(value)
        info = np.iinfo(datatype.numpy_dtype)
        if float(value).is_integer() and info.min <= value <= info.max:
            return int(value)
    raise InvalidMember(
        f"the input {declared.name!r} of model {str(model.ref)!r} is {datatype.name} and cannot be "
        f"{json.dumps(value)[:40]}; expected a value of this datatype",
        member=declared.name,
        model=model.ref,
    )
