"""Texts to token ids, by the package `tokenizers`, and rows of token ids to pad_rows tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gateway.concurrency.offload import off_loop, run_bounded
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidMember
from gateway.ir.tensors.rows import most_padded
from gateway.ir.text_tasks import TokenizerForm
from gateway.ir.work import charge

Ids = npt.NDArray[np.int64]

CONTEXT_LENGTH: Final = "context_length_exceeded"
_CHARACTER: Final = 1.0
"""Items of work for one character that is tokenised."""
_CHARACTERS: Final = 8
"""Characters of a token, of which more are tried where a text is long."""
_LEAST: Final = 1024
_LONGEST: Final = 1 << 18
"""Characters of a text that is cut: what follows would cost seconds, for a few tokens at most."""
_SURPLUS: Final = 256
_PIECE: Final = 200_000
"""Characters that are tokenised before other long work has its turn."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One input as tokens, special tokens included."""

    ids: Ids
    types: Ids


class TextTokenizer:
    """The tokens of texts.

    Args:
        form: What the configuration declares.

    Raises:
        ValueError: The file is no tokenizer, or the package is missing.

    Attributes:
        max_tokens: Longest input, special tokens included; None for no limit.
        pad_id: The id of padding.
        size: Number of ids.
    """

    def __init__(self, form: TokenizerForm) -> None:
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415  # only models with token ids need it
        except ImportError as error:
            raise ValueError(
                "needs the package tokenizers: pip install 'tensor-gateway[tokenizers]'"
            ) from error
        try:
            found: Any = Tokenizer.from_str(form.text)
        except Exception as error:  # the package raises nothing more exact
            raise ValueError(f"is no tokenizer.json: {str(error)[:200]}") from error
        padding, truncation = found.padding or {}, found.truncation or {}
        # A file may pad and cut by itself, which belongs to the training of a model.
        found.no_padding()
        found.no_truncation()
        self._tokenizer = found
        self._form = form
        self.pad_id = int(padding.get("pad_id", 0))
        self.max_tokens: int | None = form.max_tokens or truncation.get("max_length")
        self.size = int(found.get_vocab_size(with_added_tokens=True))

    async def encode(self, texts: Sequence[str], model: ModelRef, member: str) -> list[TokenRow]:
        """Return the tokens of *texts*, on another thread where that takes long.

        Args:
            texts: One for each row.
            model: For errors.
            member: The member of the request that has the texts, for errors.

        Raises:
            InvalidMember: One is too long, or all together are.
        """
        return await self._in_pieces([(text,) for text in texts], model, member)

    async def encode_pairs(
        self, query: str, documents: Sequence[str], model: ModelRef, most: int | None
    ) -> list[TokenRow]:
        """Return the tokens of a query with each document; cutting takes the document's first.

        Args:
            query: The query.
            documents: One for each row.
            model: For errors.
            most: Most tokens of a document; None for no such limit.

        Raises:
            InvalidMember: One is too long, or all together are.
        """
        if most is not None:
            documents = await run_bounded(self._cut_texts, documents, most)
        pairs = [(query, document) for document in documents]
        return await self._in_pieces(pairs, model, "documents")

    def check_ids(self, rows: Sequence[Ids], model: ModelRef) -> list[TokenRow]:
        """Return token ids of a client as rows.

        Raises:
            InvalidMember: One is not in the vocabulary, or there are too many.
        """
        found = []
        for row in rows:
            charge(len(row) / 50 + 2)
            if row.min() < 0 or row.max() >= self.size:
                raise InvalidMember(
                    f"'input' has the token id {int(row.max() if row.min() >= 0 else row.min())}; "
                    f"expected ids from 0 to {self.size - 1}",
                    member="input",
                    model=model,
                )
            if self.max_tokens is not None and len(row) > self.max_tokens:
                raise self._too_long("input", len(row), model)
            found.append(TokenRow(row, np.zeros(len(row), np.int64)))
        self.check_total(found, model, "input")
        return found

    def check_total(self, rows: Iterable[TokenRow], model: ModelRef, member: str) -> None:
        """Raise InvalidMember if all rows together have too many tokens."""
        total, most = sum(len(row.ids) for row in rows), self._form.max_total_tokens
        if total > most:
            raise InvalidMember(
                f"{member!r} has {total} tokens in all; expected at most {most} (max_total_tokens)",
                member=member,
                reason=CONTEXT_LENGTH,
                model=model,
            )

    async def _in_pieces(
        self, inputs: Sequence[tuple[str, ...]], model: ModelRef, member: str
    ) -> list[TokenRow]:
        rows: list[TokenRow] = []
        begin = 0
        while begin < len(inputs):
            end, size = begin, 0
            while end < len(inputs) and (size < _PIECE or end == begin):
                size += sum(map(len, inputs[end]))
                end += 1
            run = off_loop if end < len(inputs) or begin else run_bounded
            rows += await run(self._encode, inputs[begin:end], model, member)
            self.check_total(rows, model, member)
            begin = end
        return rows

    def _encode(
        self, inputs: Sequence[tuple[str, ...]], model: ModelRef, member: str
    ) -> list[TokenRow]:
        charge(sum(len(text) * _CHARACTER for each in inputs for text in each) + 40 * len(inputs))
        shortened = [tuple(map(self._shortened, each)) for each in inputs]
        batch = [each[0] if len(each) == 1 else each for each in shortened]
        encoded = self._tokenizer.encode_batch(batch, add_special_tokens=True)
        most = self.max_tokens
        rows = []
        for each, found in zip(shortened, encoded, strict=True):
            cut = found
            if most is not None and len(found) > most:
                if not self._form.truncate:
                    raise self._too_long(member, len(found), model)
                cut = self._cut(each, most)
            rows.append(TokenRow(np.array(cut.ids, np.int64), np.array(cut.type_ids, np.int64)))
        return rows

    def _shortened(self, text: str) -> str:
        """Return the beginning of a text that has far more tokens than are used.

        Tokens of a text depend on what stands near, so the first ones are those of the whole text.
        """
        most = self.max_tokens or self._form.max_total_tokens
        if self.max_tokens is not None and self._form.truncate:
            text = text[: max(_LONGEST, most * _LEAST)]
        size = _CHARACTERS * most + _LEAST
        while len(text) > size:
            end = text.find(" ", size, size + _LEAST)
            begin = text[: size if end < 0 else end]
            (found,) = self._tokenizer.encode_batch([begin], add_special_tokens=False)
            if len(found) > 2 * most + _SURPLUS:
                return begin
            size *= 4
        return text

    def _cut(self, texts: tuple[str, ...], most: int) -> Any:
        """Return the tokens of a text, or of a pair, cut so that special tokens have their room."""
        tokenizer = self._tokenizer
        # One text alone would be tokenised with the lock of the interpreter.
        parts = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        room = max(0, most - tokenizer.num_special_tokens_to_add(len(texts) > 1))
        first = min(len(parts[0]), room)
        parts[0].truncate(first)
        if len(parts) > 1:
            parts[1].truncate(min(len(parts[1]), room - first))
        return tokenizer.post_process(*parts, add_special_tokens=True)

    def _cut_texts(self, documents: Sequence[str], most: int) -> list[str]:
        charge(sum(len(text) * _CHARACTER for text in documents))
        found = []
        texts = [self._shortened(text) for text in documents]
        for text, encoded in zip(
            texts, self._tokenizer.encode_batch(texts, add_special_tokens=False), strict=True
        ):
            kept = text if len(encoded) <= most else text[: encoded.offsets[most - 1][1]]
            found.append(kept)
        return found

    def _too_long(self, member: str, found: int, model: ModelRef) -> InvalidMember:
        return InvalidMember(
            f"{member!r} has an input of {found} tokens; expected at most {self.max_tokens} "
            "(max_tokens)",
            member=member,
            reason=CONTEXT_LENGTH,
            model=model,
        )


@lru_cache(32)
def tokenizer_of(form: TokenizerForm) -> TextTokenizer:
    """Return the tokenizer of a declaration, which is read once.

    Raises:
        ValueError: The file is no tokenizer, or the package is missing.
    """
    return TextTokenizer(form)


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """Rows of tokens as arrays of one shape.

    Attributes:
        ids: [rows, tokens].
        mask: 1 for tokens, 0 for padding.
        types: Types of the tokens, 0 for padding.
        places: Where the tokens of each row stand.
    """

    ids: Ids
    mask: Ids
    types: Ids
    places: list[Ids]


def pad_rows(rows: Sequence[TokenRow], length: int, pad_id: int, *, left: bool) -> PaddedRows:
    """Return *rows* pad_rows to *length* tokens."""
    charge(len(rows) * (4 + length / 50))
    shape = (len(rows), length)
    ids = np.full(shape, pad_id, np.int64)
    mask, types = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    places = []
    for at, row in enumerate(rows):
        size = len(row.ids)
        begin = length - size if left else 0
        ids[at, begin : begin + size] = row.ids
        types[at, begin : begin + size] = row.types
        mask[at, begin : begin + size] = 1
        places.append(np.arange(begin, begin + size))
    return PaddedRows(ids, mask, types, places)


def length_order(rows: Sequence[TokenRow]) -> list[int]:
    """Return the order of *rows* by length; empty where their padding is worth no second call."""
    lengths = [len(row.ids) for row in rows]
    if len(rows) * max(lengths) <= most_padded(sum(lengths)):
        return []
    return sorted(range(len(rows)), key=lengths.__getitem__)


def pieces(
    rows: Sequence[TokenRow], most_rows: int | None, most_elements: int, *, by_length: bool = False
) -> list[Sequence[TokenRow]]:
    """Return *rows* in pieces of at most *most_rows* rows and *most_elements* with padding.

    Args:
        rows: All rows.
        most_rows: None for any number.
        most_elements: Of a piece with more than one row.
        by_length: They are sorted by length: a piece has little padding.
    """
    found: list[Sequence[TokenRow]] = []
    begin, longest, own = 0, 0, 0
    for at, row in enumerate(rows):
        size, own = max(longest, len(row.ids)), own + len(row.ids)
        count = at - begin + 1
        most = min(most_elements, most_padded(own)) if by_length else most_elements
        if at > begin and ((most_rows is not None and count > most_rows) or count * size > most):
            found.append(rows[begin:at])
            begin, size, own = at, len(row.ids), len(row.ids)
        longest = size
    found.append(rows[begin:])
    return found
