"""Why calls have no agreeing replies: reasons that are alike, with a count and one example each."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from gateway.ir.texts import printable
from gateway.migration.compare.replies import Comparison
from gateway.migration.compare.tensors import Outcome

_MAX_KINDS: Final = 32
_MAX_TEXT: Final = 500
_OTHER: Final = "further reasons"
ALIKE: Final = "failed_alike"
"""Calls that both servers ended with one code."""
_EXPLAINED: Final = frozenset({Outcome.OLD_ERROR, Outcome.STRUCTURE, Outcome.REFUSED})
# Ids, sizes and shapes that differ from call to call make no reason of their own.
_NUMBER: Final = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
_NUMBERS: Final = re.compile(r"-?#(?:[,.:x -]+#)*")


class Reason(Struct):
    """One kind of failure, or of difference in structure.

    Attributes:
        code: The code of the error; "" for none.
        count: Number of calls.
        example: What one of the calls says.
        call: The id of this call.
    """

    outcome: Outcome
    code: str
    count: int
    example: str
    call: str

    @property
    def name(self) -> str:
        """The outcome; two equal errors, which are a match, have another name."""
        return ALIKE if self.outcome is Outcome.MATCH else self.outcome.value

    def document(self) -> dict[str, Any]:
        """Return the reason as JSON values."""
        return {
            "outcome": self.name,
            "code": self.code or None,
            "count": self.count,
            "example": self.example,
            "call": self.call,
        }


def reason_line(document: Mapping[str, Any]) -> str:
    """Return what a person reads of `Reason.document`: count, outcome, code and the example."""
    code = f" {document['code']}" if document["code"] else ""
    text = f": {document['example']}" if document["example"] else ""
    return printable(
        f"{document['count']} {document['outcome']}{code}{text} (call {document['call']})"
    )


class Reasons:
    """Counts reasons; the 32 kinds that come first are told apart."""

    def __init__(self) -> None:
        self._found: dict[tuple[Outcome, str, str], Reason] = {}

    def add(self, call_id: str, outcome: Outcome, code: str, text: str) -> None:
        """Add a call.

        Args:
            call_id: Names it.
            outcome: The outcome of its comparison.
            code: The code of the error; "" for none.
            text: The text of the error, or what differs.
        """
        key = outcome, code, _kind(text)
        if key not in self._found and len(self._found) >= _MAX_KINDS:
            key, text = (outcome, "", _OTHER), _OTHER
        found = self._found.get(key)
        if found is None:
            self._found[key] = Reason(outcome, key[1], 1, text[:_MAX_TEXT], call_id)
        else:
            found.count += 1

    def add_comparison(self, call_id: str, comparison: Comparison, error: str) -> None:
        """Add a call that failed, or whose replies have another structure; no other call.

        Args:
            call_id: Names it.
            comparison: The comparison of its two results.
            error: The text of the error that ended it; "" for none.
        """
        if comparison.error is None and comparison.outcome not in _EXPLAINED:
            return
        code = "" if comparison.error is None else comparison.error.value
        self.add(call_id, comparison.outcome, code, error or comparison.reason)

    def list(self) -> Sequence[Reason]:
        """Return the reasons, the most frequent ones first."""
        return sorted(self._found.values(), key=lambda each: -each.count)


def _kind(text: str) -> str:
    """Return what texts have in common that differ in numbers only."""
    return _NUMBERS.sub("#", _NUMBER.sub("#", text[:_MAX_TEXT].lower()))
