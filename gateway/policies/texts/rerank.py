"""Rerank: a query and documents to a score for each document."""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import numpy as np

from gateway.concurrency.offload import run_bounded
from gateway.ir.calls import InferResponse
from gateway.ir.errors import InvalidMember
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.text_tasks import RETURN_DOCUMENTS, Rerank, RerankForm, TokenizerForm
from gateway.ir.work import charge
from gateway.policies.texts.embeddings import run_tokens
from gateway.policies.texts.signature import Rows, TaskModel, output_of
from gateway.policies.texts.task import TaskRun, count_tokens, task_reply, text_tensor, texts_of
from gateway.policies.texts.tokenizer import Ids, length_order, tokenizer_of
from gateway.policies.texts.vectors import Array, array_of, join_rows, pool, score_column

RERANK: Final = "rerank"
_PLAIN: Final = RerankForm()
_QUERY: Final = "query"
_DOCUMENTS: Final = ("document", "documents", "text", "passage")
_UNSUPPORTED_PARAMETER: Final = "unsupported_parameter"
_LOGITS: Final = "logits"
_TOKEN_SCORES: Final = 3


async def rerank(run: TaskRun, task: Rerank) -> InferResponse:
    """Return the scores of the documents, in their order.

    Raises:
        InvalidMember: The model does not serve the request.
        GatewayError: The model fails.
    """
    forms = run.forms()
    form = (forms and forms.rerank) or _PLAIN
    model = run.model(RERANK)
    (query,), documents = map(texts_of, run.call.inputs)
    run.check_count("documents", len(documents), form.max_documents, "max_documents")
    if form.tokenizer is not None:
        return await _rerank_tokens(run, task, form, form.tokenizer)
    if task.max_tokens_per_document is not None:
        raise InvalidMember(
            f"'max_tokens_per_doc' needs a model with a tokenizer ({model.key}: {{tokenizer: "
            "FILE})",
            member="max_tokens_per_doc",
            reason=_UNSUPPORTED_PARAMETER,
            model=run.ref,
        )
    output = model.float_output(form.output, form.tokens)
    wanted = run.output_names(output.name, form.tokens)
    parts: list[Array] = []
    datatype, tokens = Datatype.FP32, 0
    calls = _PairCalls(model, form, bytes(query))
    most = calls.most or len(documents)
    for begin in range(0, len(documents), most):
        inputs = await run_bounded(calls.inputs, documents[begin : begin + most])
        reply = await run.infer(run.plain(inputs, wanted, rows=calls.independent))
        array, datatype = array_of(output_of(model, reply, output.name))
        tokens += count_tokens(model, reply, form.tokens)
        count = min(most, len(documents) - begin)
        parts.append(await run_bounded(_scores, model, form, array, count))
    return _reply(run, form, _join(output.name, parts, datatype), tokens if form.tokens else None)


class _PairCalls:
    """The inputs of calls that take texts.

    Attributes:
        most: Most documents of one call; None for any number.
        independent: What is known of their rows; None where the query has only one.
    """

    def __init__(self, model: TaskModel, form: RerankForm, query: bytes) -> None:
        self._query_text = query
        self._pair = form.pair
        self._query: TensorMetadata | None = None
        if form.pair:
            self._document = model.text_input("", "document")
        else:
            self._query, self._document = _query_and_document(model, form)
        self._rows = model.rows(self._document)
        self.most = self._rows.most
        self._has_one_query = False
        self._query_rows: Rows | None = None
        if self._query is not None:
            self._query_rows = model.rows(self._query)
            self._has_one_query = self._query_rows.single is not None
        self.independent = None if self._has_one_query else self._rows.independent

    def inputs(self, documents: Sequence[bytes | memoryview]) -> list[Tensor]:
        """Return the inputs of one call."""
        charge(len(documents))
        count = len(documents)
        if self._query is None or self._query_rows is None:
            pairs = [self._pair_of(bytes(document)) for document in documents]
            return [text_tensor(self._document.name, self._rows.shape(count), pairs)]
        queries = [self._query_text] * (1 if self._has_one_query else count)
        return [
            text_tensor(self._query.name, self._query_rows.shape(count), queries),
            text_tensor(self._document.name, self._rows.shape(count), documents),
        ]

    def _pair_of(self, document: bytes) -> bytes:
        before, _, after = self._pair.encode().partition(b"{document}")
        query = self._query_text
        return before.replace(b"{query}", query) + document + after.replace(b"{query}", query)


def _query_and_document(
    model: TaskModel, form: RerankForm
) -> tuple[TensorMetadata, TensorMetadata]:
    """Return the two inputs: as declared, or of the usual names."""
    inputs = model.metadata.inputs
    names = [each.name for each in inputs if each.datatype is Datatype.BYTES]
    query = form.query or _QUERY
    others = [name for name in names if name != query]
    document = form.document or next((name for name in others if name in _DOCUMENTS), "")
    is_declared = bool(form.query or form.document)
    if not document and form.query and len(others) == 1:
        document = others[0]
    if (
        query not in names or document not in others or (len(inputs) != 2 and not is_declared)  # noqa: PLR2004  # the query and the document
    ):
        model.refuse(
            f"two BYTES inputs, query and document ({model.key}: {{query: NAME, document: NAME}}), "
            f"or one ({model.key}: {{pair: '{{query}} {{document}}'}})"
        )
    return model.input(query, "query"), model.input(document, "document")


async def _rerank_tokens(
    run: TaskRun, task: Rerank, form: RerankForm, declared: TokenizerForm
) -> InferResponse:
    model = run.model(RERANK)
    output = model.float_output(form.output, form.tokens, _LOGITS)
    shape = output.shape
    if shape is not None and len(shape) == _TOKEN_SCORES:
        _check_token_scores(model, form)
    (query,), documents = map(texts_of, run.call.inputs)
    texts = [bytes(document).decode() for document in documents]
    rows = await tokenizer_of(declared).encode_pairs(
        bytes(query).decode(), texts, run.ref, task.max_tokens_per_document
    )
    parts, datatype = [], Datatype.FP32
    order = length_order(rows)
    async with aclosing(run_tokens(run, model, rows, declared, output, order)) as calls:
        async for array, kind, places in calls:
            datatype = kind
            parts.append(await run_bounded(_scores, model, form, array, len(places), places))
    tokens = sum(len(row.ids) for row in rows)
    return _reply(run, form, _join(output.name, parts, datatype, order), tokens)


def _check_token_scores(model: TaskModel, form: RerankForm) -> None:
    if form.pooling in (None, "none") or form.column is None:
        model.refuse(
            f"the token and the column of the score ({model.key}: {{pooling: cls, column: 0}})"
        )


def _scores(
    model: TaskModel,
    form: RerankForm,
    array: Array,
    count: int,
    places: Sequence[Ids] | None = None,
) -> Array:
    """Return one score for each of *count* documents."""
    if array.ndim == _TOKEN_SCORES and places is not None and len(array) == count:
        _check_token_scores(model, form)
        array = pool(array, form.pooling or "cls", places)
    if array.ndim == 0 and count == 1:
        array = array.reshape(1)
    columns = array.reshape(-1, 1) if array.ndim == 1 else array
    if count == 1 and array.ndim == 1 and form.column is not None:
        columns = array.reshape(1, -1)
    if columns.ndim != 2 or columns.shape[0] != count:  # noqa: PLR2004
        model.refuse(
            f"one score for each of {count} documents, and not the shape {list(array.shape)}"
        )
    column = form.column
    if column is None:
        if columns.shape[1] != 1:
            model.refuse(
                f"one column and not {columns.shape[1]}, or its number ({model.key}: {{column: 0}})"
            )
        column = 0
    if column >= columns.shape[1]:
        model.refuse(f"more than {columns.shape[1]} columns ({model.key}: {{column: {column}}})")
    return score_column(columns, form.score, column)


def _reply(run: TaskRun, form: RerankForm, scores: Tensor, tokens: int | None) -> InferResponse:
    others = {RETURN_DOCUMENTS: True} if form.return_documents else {}
    return task_reply(run, scores, tokens, **others)


def _join(
    name: str, parts: Sequence[Array], datatype: Datatype, order: Sequence[int] = ()
) -> Tensor:
    whole = [np.ascontiguousarray(part) for part in parts]
    is_rounded = whole[0].dtype == np.float32
    return join_rows(name, whole, Datatype.FP32 if is_rounded else datatype, order)
