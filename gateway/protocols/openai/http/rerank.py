"""Requests and responses of `/v1/rerank` and `/v2/rerank`.

Source: docs/protocols/openai.md, "4. Rerank".
"""

from typing import Any, Final

import numpy as np
import orjson

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.errors import InvalidOutput
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.tensor import Tensor, items_tensor
from gateway.ir.text_tasks import RETURN_DOCUMENTS, Rerank
from gateway.ir.values.exact_values import whole_number
from gateway.ir.work import charge
from gateway.protocols.openai.http.document import (
    Document,
    check_items,
    optional_flag,
    optional_integer,
    optional_text,
    refused,
    required,
    shown,
    text,
    wrong,
)
from gateway.protocols.openai.http.embeddings import number_texts, usage_of, values_of
from gateway.protocols.openai.http.form import ReplyForm
from gateway.protocols.openai.paths import PathKind
from gateway.wire.http import Buffer

RERANK_MEMBERS: Final = frozenset(
    {
        "model",
        "query",
        "documents",
        "top_n",
        "return_documents",
        "user",
        "rank_fields",
        "max_chunks_per_doc",
        "max_tokens_per_doc",
        "relevant_spans",
        "priority",
    }
)
_TEXT: Final = "text"
_EXPECTED: Final = "a list of texts, or of objects with a text 'text'"


def read_rerank(
    document: Document, kind: PathKind, limits: MessageLimits
) -> tuple[tuple[Tensor, ...], Rerank, ReplyForm]:
    """Return the inputs, the task, and the form of the response.

    Raises:
        InvalidMember: A member is wrong.
    """
    _refuse_others(document)
    query = text(document, "query", "a text that is not empty").encode()
    documents = _documents(required(document, "documents", _EXPECTED), limits)
    optional_text(document, "user")
    form = ReplyForm(
        kind=kind,
        top_n=optional_integer(document, "top_n"),
        returns_documents=optional_flag(document, "return_documents"),
        documents=tuple(documents),
    )
    task = Rerank(max_tokens_per_document=optional_integer(document, "max_tokens_per_doc"))
    inputs = (items_tensor("", (1,), [query]), items_tensor("", (len(documents),), documents))
    return inputs, task, form


def encode_rerank(call: InferRequest, reply: InferResponse, form: ReplyForm) -> tuple[Buffer, ...]:
    """Return the body of a response: the best first, equal ones in the order of the documents.

    Raises:
        InvalidOutput: A score is no number.
    """
    scores = values_of(reply.outputs[0]).reshape(-1)
    charge(4 * len(scores))
    if len(scores) != len(form.documents) or (
        scores.dtype.kind == "f" and not np.isfinite(scores).all()
    ):
        raise InvalidOutput(
            "the model returned a score that is NaN or Infinity, which JSON cannot carry, or "
            "another number of scores than documents",
            model=call.model,
        )
    order = np.argsort(-scores.astype(np.float64), kind="stable")[: form.top_n]
    returns_documents = form.returns_documents is True or (
        form.returns_documents is None and reply.parameters.get(RETURN_DOCUMENTS) is True
    )
    entries = [_entry(index, scores, form, returns_documents) for index in order.tolist()]
    name = "" if call.model is None else call.model.name
    version = "2" if form.kind is PathKind.RERANK_2 else "1"
    beginning = b'{"id":%b,"object":"list","model":%b,"results":[' % (
        orjson.dumps(call.context.request_id),
        orjson.dumps(name),
    )
    end = b'],"usage":%b,"meta":{"api_version":{"version":"%b"}}}' % (
        orjson.dumps(usage_of(reply)),
        version.encode(),
    )
    return (beginning, b",".join(entries), end)


def _entry(index: int, scores: Any, form: ReplyForm, returns_documents: bool) -> bytes:
    score = number_texts(scores[index : index + 1])[1:-1]
    if not returns_documents:
        return b'{"index":%d,"relevance_score":%b}' % (index, score)
    document = orjson.dumps({_TEXT: form.documents[index].decode()})
    return b'{"index":%d,"relevance_score":%b,"document":%b}' % (index, score, document)


def _documents(value: Any, limits: MessageLimits) -> list[bytes]:
    if type(value) is not list:
        raise wrong("documents", f"is {shown(value)}; expected {_EXPECTED}")
    check_items(value, "documents", limits)
    found = []
    for index, each in enumerate(value):
        content = each.get(_TEXT) if type(each) is dict else each
        if type(content) is not str:
            raise wrong("documents", f"has no text at index {index}; expected {_EXPECTED}")
        found.append(content.encode())
    return found


def _refuse_others(document: Document) -> None:
    """Refuse members of Cohere that are not built, unless they ask for nothing."""
    fields = document.get("rank_fields")
    if fields is not None and fields != [_TEXT]:
        raise refused("rank_fields", "is not supported; expected only ['text']")
    if "max_chunks_per_doc" in document:
        raise refused("max_chunks_per_doc")
    spans = document.get("relevant_spans")
    is_off = spans is None or spans is False or spans in ({}, {"enabled": False})
    if not is_off:
        raise refused("relevant_spans")
    priority = whole_number(document.get("priority", 0))
    if type(priority) is not int or priority != 0:
        raise refused("priority", "is not supported; expected 0")
