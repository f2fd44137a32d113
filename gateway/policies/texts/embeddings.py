"""Embeddings: texts or token ids to one row of numbers each."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import numpy as np

from gateway.concurrency.offload import run_bounded
from gateway.ir.calls import InferResponse
from gateway.ir.errors import InvalidMember
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.rows import IndependentRows
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_numpy
from gateway.ir.text_tasks import Embed, EmbeddingsForm, Pooling, TokenizerForm
from gateway.policies.texts.signature import ROWS, TaskModel, output_of, with_rows
from gateway.policies.texts.task import (
    TaskRun,
    count_tokens,
    is_ids,
    task_reply,
    text_tensor,
    texts_of,
)
from gateway.policies.texts.tokenizer import (
    Ids,
    TokenRow,
    length_order,
    pad_rows,
    pieces,
    tokenizer_of,
)
from gateway.policies.texts.vectors import Array, array_of, cut_rows, join_rows, pool, round_rows

EMBEDDINGS: Final = "embeddings"
_PLAIN: Final = EmbeddingsForm()
_UNSUPPORTED_PARAMETER: Final = "unsupported_parameter"
_UNSUPPORTED_INPUT: Final = "unsupported_input"
_RANK_OF_STATES: Final = 3
_LAST_STATE: Final = "last_hidden_state"


async def embed(run: TaskRun, task: Embed) -> InferResponse:
    """Return one row of numbers for each input.

    Raises:
        InvalidMember: The model does not serve the request.
        GatewayError: The model fails.
    """
    forms = run.forms()
    form = (forms and forms.embeddings) or _PLAIN
    model = run.model(EMBEDDINGS)
    inputs = run.call.inputs
    count = (inputs[-1].shape or (0,))[0]
    run.check_count("input", count, form.max_inputs, "max_inputs")
    prefix = _prefix(model, task, form, ids=is_ids(inputs[0]))
    if form.tokenizer is not None:
        return await _embed_tokens(run, task, form, form.tokenizer, prefix)
    if is_ids(inputs[0]):
        raise InvalidMember(
            f"model {str(run.ref)!r} takes texts, and 'input' has token ids: expected texts, or a "
            f"model with a tokenizer ({model.key}: {{tokenizer: FILE}})",
            member="input",
            reason=_UNSUPPORTED_INPUT,
            model=run.ref,
        )
    declared = model.text_input(form.input, "input")
    output = model.float_output(form.output, form.tokens)
    _check_output(model, output)
    rows = model.rows(declared, one_by_one=_has_no_rows(model, output))
    check_early(model, task, form, output)
    texts = texts_of(inputs[0])
    if prefix:
        texts = [prefix.encode() + bytes(text) for text in texts]
    most = rows.most or len(texts)
    wanted = run.output_names(output.name, form.tokens)
    parts, datatype, tokens = [], Datatype.FP32, 0
    for begin in range(0, len(texts), most):
        chosen = texts[begin : begin + most] if most < len(texts) else texts
        tensor = text_tensor(declared.name, rows.shape(len(chosen)), chosen)
        reply = await run.infer(run.plain([tensor], wanted, rows=rows.independent))
        part, datatype = _rows_of(model, output_of(model, reply, output.name), len(chosen))
        tokens += count_tokens(model, reply, form.tokens)
        parts.append(part)
    found = await run_bounded(_finish, output.name, model, task, form, parts, datatype)
    return task_reply(run, found, tokens if form.tokens else None)


async def _embed_tokens(
    run: TaskRun, task: Embed, form: EmbeddingsForm, tokens: TokenizerForm, prefix: str
) -> InferResponse:
    model, inputs = run.model(EMBEDDINGS), run.call.inputs
    tokenizer = tokenizer_of(tokens)
    output = model.float_output(form.output, form.tokens, _LAST_STATE)
    pooling = pooling_of(model, output, form.pooling)
    check_early(model, task, form, output)
    if is_ids(inputs[0]):
        ends = np.cumsum(as_numpy(inputs[1]))[:-1]
        ids = np.split(as_numpy(inputs[0]), ends)
        rows = await run_bounded(tokenizer.check_ids, ids, run.ref)
    else:
        texts = [prefix + bytes(text).decode() for text in texts_of(inputs[0])]
        rows = await tokenizer.encode(texts, run.ref, "input")
    parts, datatype = [], Datatype.FP32
    order = length_order(rows)
    async with aclosing(run_tokens(run, model, rows, tokens, output, order)) as calls:
        async for states, kind, places in calls:
            datatype = kind
            parts.append(await run_bounded(pool_output, model, states, pooling, places))
    found = await run_bounded(_finish, output.name, model, task, form, parts, datatype, order)
    return task_reply(run, found, sum(len(row.ids) for row in rows))


async def run_tokens(
    run: TaskRun,
    model: TaskModel,
    rows: Sequence[TokenRow],
    form: TokenizerForm,
    output: TensorMetadata,
    order: Sequence[int],
) -> AsyncGenerator[tuple[Array, Datatype, list[Ids]], None]:
    """Yield the output of each call, its datatype, and where the tokens of its rows stand.

    Args:
        run: The task.
        model: Takes token ids.
        rows: Tokens of all inputs.
        form: What the configuration declares.
        output: The output of the model.
        order: How the rows are sent; empty for as they are.
    """
    tokenizer = tokenizer_of(form)
    ids = model.find_input(form.ids)
    if ids is None:
        model.refuse(
            f"an input {form.ids!r} for token ids ({model.key}: {{inputs: {{ids: NAME}}}})"
        )
    most, fixed = _token_axes(model, ids)
    wanted = run.output_names(output.name)
    others = [
        (model.find_input(form.mask), "mask"),
        (model.find_input(form.types), "types"),
    ]
    fixed = form.fixed_length or fixed
    padded = IndependentRows(
        fills=((form.ids, tokenizer.pad_id),),
        pads_left=form.pads_left,
        most_elements=form.max_total_tokens,
    )
    if order:
        rows = [rows[at] for at in order]
    for piece in pieces(rows, most, form.max_total_tokens, by_length=bool(order)):
        lengths = tuple([len(row.ids) for row in piece])
        length = max(fixed or 0, *lengths)
        padding = await run_bounded(
            partial(pad_rows, piece, length, tokenizer.pad_id, left=form.pads_left)
        )
        inputs = [_token_tensor(model, ids, padding.ids)]
        inputs += [
            _token_tensor(model, declared, getattr(padding, part))
            for declared, part in others
            if declared is not None
        ]
        # Rows of a fixed length are the same in every call.
        rows_form = padded.of(lengths) if fixed is None else ROWS
        reply = await run.infer(run.plain(inputs, wanted, rows=rows_form))
        array, datatype = array_of(output_of(model, reply, output.name))
        yield array, datatype, padding.places


def _token_axes(model: TaskModel, ids: TensorMetadata) -> tuple[int | None, int | None]:
    """Return the most rows of a call, and the length of a row where the model has a fixed one."""
    shape = ids.shape
    if shape is None:
        return None, None
    if len(shape) != 2:  # noqa: PLR2004  # rows and tokens
        model.refuse(f"an input {ids.name!r} of the shape [rows, tokens]")
    fixed = shape[1] if shape[1] > 0 else None
    if model.metadata.supports_batching:
        return model.metadata.max_batch_size or None, fixed
    return (None if shape[0] < 0 else shape[0]), fixed


def _token_tensor(model: TaskModel, declared: TensorMetadata, array: Ids) -> Tensor:
    if declared.datatype is Datatype.INT64:
        return array_tensor(declared.name, array)
    if declared.datatype is Datatype.INT32:
        return array_tensor(declared.name, array.astype(np.int32))
    return model.refuse(f"INT64 or INT32 for the input {declared.name!r}")


def pooling_of(model: TaskModel, output: TensorMetadata, declared: Pooling | None) -> Pooling:
    """Return how the output becomes rows."""
    rank = None if output.shape is None else len(output.shape)
    if rank == _RANK_OF_STATES and declared in (None, "none"):
        model.refuse(
            f"a way to make one row of the tokens of the output {output.name!r} "
            f"({model.key}: {{pooling: mean}})"
        )
    if rank is not None and rank < _RANK_OF_STATES and declared not in (None, "none"):
        model.refuse(
            f"rows of tokens at the output {output.name!r} for pooling {declared!r} "
            f"({model.key}: {{pooling: none}})"
        )
    return declared or "none"


def pool_output(model: TaskModel, states: Array, pooling: Pooling, places: Sequence[Ids]) -> Array:
    """Return one row for each input; refuses an output of another shape."""
    rank = 2 if pooling == "none" else _RANK_OF_STATES
    if states.ndim != rank or states.shape[0] != len(places):
        model.refuse(
            f"an output of {'[rows, d]' if rank == 2 else '[rows, tokens, d]'}, and not of the "  # noqa: PLR2004
            f"shape {list(states.shape)} ({model.key}: {{pooling: KIND}})"
        )
    return states if pooling == "none" else pool(states, pooling, places)


def check_early(
    model: TaskModel, task: Embed, form: EmbeddingsForm, output: TensorMetadata
) -> None:
    """Refuse a number of dimensions before the model runs, where the model declares its own."""
    size = (output.shape or (-1,))[-1]
    if task.dimensions is not None and size > 0:
        _check_dimensions(model, task.dimensions, form, size)


def _finish(
    name: str,
    model: TaskModel,
    task: Embed,
    form: EmbeddingsForm,
    parts: list[Array],
    datatype: Datatype,
    order: Sequence[int] = (),
) -> Tensor:
    """Return the rows of all calls, cut and normalised, as one tensor."""
    size = parts[0].shape[1]
    if any(part.shape[1] != size for part in parts):
        model.refuse("rows of one size")
    wanted = size
    if task.dimensions is not None:
        _check_dimensions(model, task.dimensions, form, size)
        wanted = task.dimensions
    done = [cut_rows(part, wanted, normalize=form.normalize) for part in parts]
    if done[0].dtype == np.float64 and (form.normalize or datatype is not Datatype.FP64):
        done, datatype = [round_rows(part) for part in done], Datatype.FP32
    return join_rows(name, done, datatype, order)


def _check_dimensions(model: TaskModel, wanted: int, form: EmbeddingsForm, size: int) -> None:
    if wanted == size:
        return
    allowed = form.dimensions
    if wanted > size:
        text, reason = f"expected at most {size}, which model {str(model.ref)!r} has", ""
    elif allowed is True or (allowed is not False and wanted in allowed):
        return
    else:
        listed = "" if allowed is False else f", or one of {', '.join(map(str, allowed))}"
        text = (
            f"expected {size}, which model {str(model.ref)!r} has{listed} "
            f"({model.key}: {{dimensions: true}})"
        )
        reason = _UNSUPPORTED_PARAMETER
    raise InvalidMember(
        f"'dimensions' is {wanted}: {text}", member="dimensions", reason=reason, model=model.ref
    )


def _prefix(model: TaskModel, task: Embed, form: EmbeddingsForm, *, ids: bool) -> str:
    """Return the text to put before each input."""
    kind = task.input_type
    if kind and (kind not in form.prefixes or ids):
        expected = (
            "expected texts, because a prefix cannot stand before token ids"
            if ids
            else "expected a model with such a prefix "
            f"({model.key}: {{prefixes: {{{kind}: TEXT}}}})"
        )
        raise InvalidMember(
            f"'input_type' asks for the prefix {kind!r} of model {str(model.ref)!r}: {expected}",
            member="input_type",
            reason=_UNSUPPORTED_PARAMETER,
            model=model.ref,
        )
    return "" if ids else form.prefixes.get(kind or form.default_prefix, "")


def _check_output(model: TaskModel, output: TensorMetadata) -> None:
    """Refuse a declared shape that cannot be one row for each text."""
    shape = output.shape
    has_batch = model.metadata.supports_batching
    rank = 1 if shape is None else len(shape) - (1 if has_batch else 0)
    if shape is not None and (rank not in (1, 2, 3) or (has_batch and rank > 2)):  # noqa: PLR2004
        model.refuse(f"one row for each text at the output {output.name!r}, such as [-1, 384]")


def _has_no_rows(model: TaskModel, output: TensorMetadata) -> bool:
    """Return whether the output has one row only, so that each text needs its own call."""
    return (
        not model.metadata.supports_batching and output.shape is not None and len(output.shape) == 1
    )


def _rows_of(model: TaskModel, tensor: Tensor, count: int) -> tuple[Array, Datatype]:
    """Return an output as [count, d]."""
    array, datatype = array_of(tensor)
    if array.ndim == 1 and count == 1:
        array = array.reshape(1, -1)
    shape = with_rows(model, tensor, count) if array.ndim != 2 else array.shape  # noqa: PLR2004
    if len(shape) == _RANK_OF_STATES and shape[1] == 1:
        array = array.reshape(shape[0], shape[2])
    if array.ndim != 2 or array.shape[0] != count:  # noqa: PLR2004
        model.refuse(
            f"one row for each of {count} texts at the output {tensor.name!r}, and not the shape "
            f"{list(tensor.shape or ())}"
        )
    return array, datatype
