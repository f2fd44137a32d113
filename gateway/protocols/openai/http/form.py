"""What a response needs of its request, kept with the call."""

from dataclasses import dataclass
from typing import Any, Final

from gateway.ir.calls import Call
from gateway.ir.errors import GatewayError
from gateway.protocols.openai.errors import CODEC
from gateway.protocols.openai.options import COMPLETIONS, EMBEDDINGS, RERANK
from gateway.protocols.openai.paths import PathKind

NAME: Final = CODEC
TASKS: Final = {
    PathKind.EMBEDDINGS: EMBEDDINGS,
    PathKind.RERANK: RERANK,
    PathKind.COMPLETIONS: COMPLETIONS,
    PathKind.CHAT: "chat/completions",
}
"""The tasks of the paths whose requests pass as they came; chats only pass so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """What the response to one request depends on.

    Attributes:
        kind: What the path of the request is for.
        is_base64: Embeddings are written as base64.
        top_n: Most results of a rerank; None for all.
        returns_documents: Results have their documents; None for the default of the model.
        documents: Texts of the documents.
        include_usage: A stream has usage.
        created: When the request came, seconds since 1970.
        is_plain: All readers of the request read the same. False where that takes another look.
    """

    kind: PathKind
    is_base64: bool = False
    top_n: int | None = None
    returns_documents: bool | None = None
    documents: tuple[bytes, ...] = ()
    include_usage: bool = False
    created: int = 0
    is_plain: bool = False


def form_of(call: Call[Any] | None, error: GatewayError | None = None) -> ReplyForm | None:
    """Return the form of a call that this codec decoded, or that of an error of decoding."""
    origin = call.context.origin if call is not None else error.origin if error else None
    if origin is None or origin.codec != NAME or not isinstance(origin.form, ReplyForm):
        return None
    return origin.form


def stream_form(call: Call[Any]) -> ReplyForm:
    """Return the form of a stream."""
    return form_of(call) or ReplyForm(kind=PathKind.COMPLETIONS)
