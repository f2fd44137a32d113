"""Tasks on texts: embeddings, rerank and completions, whose callers know no tensors of the model.

A call with a task has inputs without names. `Complete` of the model finds the tensors by the
model's metadata and by what the configuration declares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec import field as struct_field

MAX_INPUTS: Final = 2048
MAX_DOCUMENTS: Final = 1000
MAX_TOTAL_TOKENS: Final = 300_000

PROMPT_TOKENS: Final = "prompt_tokens"
"""The parameter of a reply that has the number of tokens of all texts, where it is known."""

COMPLETION_TOKENS: Final = "completion_tokens"
"""The parameter of a reply that has the number of tokens of all texts written, if it is known."""

FINISH_REASON: Final = "finish_reason"
"""The parameter of a reply of a stream that says why it ended; "stop" where it is absent."""

STOP: Final = "stop"
LENGTH: Final = "length"

RETURN_DOCUMENTS: Final = "return_documents"
"""The parameter of a reply that is true where the model is declared to return documents."""


class Embed(Struct, frozen=True, kw_only=True, tag="embed"):
    """Texts to rows of numbers.

    The only input is a BYTES tensor [n].  With token ids there are two INT64 tensors instead: all
    ids one after the other, and the number of ids of each row.

    Attributes:
        dimensions: Size of each row; None for that of the model.
        input_type: "query" or "passage" for texts with the prefix of this name; "" for the default.
        encoding: How the caller asks for rows, "float" or "base64"; "" where it does not say.
    """

    dimensions: int | None = None
    input_type: str = ""
    encoding: str = ""


class Rerank(Struct, frozen=True, kw_only=True, tag="rerank"):
    """A query and documents to a score for each document, in the order of the documents.

    The inputs are two BYTES tensors: the query [1] and the documents [n].

    Attributes:
        max_tokens_per_document: Documents are cut after this number of tokens; None for no cut.
    """

    max_tokens_per_document: int | None = None


class Generate(Struct, frozen=True, kw_only=True, tag="generate"):
    """Prompts to texts.

    The only input is a BYTES tensor [n]; the reply has one, too.

    Attributes:
        members: What else the caller sends, by its names: texts, numbers, booleans, tuples of
            texts.
        stop: Texts before which the result ends.
        wants_stream: The caller reads a stream.
    """

    members: Mapping[str, Any] = struct_field(default_factory=dict)
    stop: tuple[str, ...] = ()
    wants_stream: bool = False


TextTask = Embed | Rerank | Generate

GENERATE: Final = "generate"
"""The tag of `Generate` in its JSON form."""

Pooling = Literal["none", "mean", "cls", "last"]
ScoreFunction = Literal["none", "sigmoid", "softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerForm:
    """How texts become token ids.

    Attributes:
        text: The contents of a `tokenizer.json`.
        ids: Name of the input for token ids.
        mask: Name of the input for the mask; left out where the model has none.
        types: Name of the input for types of tokens; left out where the model has none.
        max_tokens: Longest input, special tokens included; None for that of the file.
        truncate: Cut longer inputs; otherwise they are refused.
        fixed_length: Length of every row; None for that of the longest in a call.
        pads_left: Padding stands before the tokens.
        max_total_tokens: Most tokens of one request, and most elements of a padded call.
    """

    text: str = field(repr=False)
    ids: str = "input_ids"
    mask: str = "attention_mask"
    types: str = "token_type_ids"
    max_tokens: int | None = None
    truncate: bool = True
    fixed_length: int | None = None
    pads_left: bool = False
    max_total_tokens: int = MAX_TOTAL_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingsForm:
    """What a configuration declares of a model of embeddings.

    Attributes:
        input: Name of the input for texts; "" to find it.
        output: Name of the output; "" to find it.
        tokenizer: None for a model that takes texts.
        pooling: How the rows of the tokens become one row.
        normalize: Divide each row by its length.
        dimensions: Whether callers may ask for fewer dimensions, or for which.
        prefixes: Texts before each input, by "query" and "passage".
        default_prefix: A key of *prefixes*; "" for none.
        max_inputs: Most inputs of a request.
        tokens: Name of the output with numbers of tokens; "" for none.
    """

    input: str = ""
    output: str = ""
    tokenizer: TokenizerForm | None = None
    pooling: Pooling | None = None
    normalize: bool = False
    dimensions: bool | tuple[int, ...] = False
    prefixes: Mapping[str, str] = field(default_factory=dict)
    default_prefix: str = ""
    max_inputs: int = MAX_INPUTS
    tokens: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankForm:
    """What a configuration declares of a model that scores documents.

    Attributes:
        query: Name of the input for the query; "" to find it.
        document: Name of the input for documents; "" to find it.
        output: Name of the output; "" to find it.
        pair: Text of a pair with "{query}" and "{document}", for a model with one input; "" for
            none.
        tokenizer: For a model that takes token ids of pairs.
        pooling: Which token has the score, where each token has one.
        column: The column of the output with the score; None where there is one column.
        score: Function of the score.
        max_documents: Most documents of a request.
        return_documents: Replies have the documents unless a request says otherwise.
        tokens: Name of the output with numbers of tokens; "" for none.
    """

    query: str = ""
    document: str = ""
    output: str = ""
    pair: str = ""
    tokenizer: TokenizerForm | None = None
    pooling: Pooling | None = None
    column: int | None = None
    score: ScoreFunction = "none"
    max_documents: int = MAX_DOCUMENTS
    return_documents: bool = False
    tokens: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsForm:
    """What a configuration declares of a model that writes texts.

    Attributes:
        input: Name of the input for prompts; "" to find it.
        output: Name of the output for texts; "" to find it.
        names: Inputs by the member of the request that they get.
        sampling: Name of the input that gets all members as a JSON object; "" for none.
        parameters: Members that become parameters of the request.
        ignore: Members that are dropped.
    """

    input: str = ""
    output: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    sampling: str = ""
    parameters: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextServer:
    """A model whose server takes texts as the caller sends them, with all members.

    Attributes:
        task: The only task of the model.
    """

    task: type[TextTask]


OF_SERVER: Final = ""
"""The key of a `TextServer` among `ModelMetadata.declarations`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForms:
    """What a configuration declares of a model, for each task; None for nothing.

    Attributes:
        protocol: The protocol of the declaration, for errors.
    """

    protocol: str
    embeddings: EmbeddingsForm | None = None
    rerank: RerankForm | None = None
    completions: CompletionsForm | None = None
