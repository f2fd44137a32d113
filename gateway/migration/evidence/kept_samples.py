"""Compared calls that are kept to look at: the worst ones and random ones."""

import base64
import dataclasses
import json
import math
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from msgspec.structs import replace  # noqa: TID251  # rows have no wire origin

from gateway.ir.errors import GatewayError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw
from gateway.migration.compare.numbers import values_of
from gateway.migration.compare.replies import Comparison, Result
from gateway.migration.compare.tensors import Outcome
from gateway.shadow.records.privacy import Privacy
from gateway.shadow.records.records import (
    INPUT,
    NEW,
    OK,
    OLD,
    RecordedCall,
    TensorRow,
    item_rows,
    tensors_of,
)

_KEPT: Final = 200
_MAX_BYTES: Final = 64 << 20
_MAX_JSON_BYTES: Final = 1 << 20
# Without elements a call has names, shapes and codes.
_CALL_BYTES: Final = 4096

_SEVERITY: Final = {
    Outcome.MATCH: 0,
    Outcome.REFUSED: 1,
    Outcome.OLD_ERROR: 1,
    Outcome.BOTH_ERROR: 2,
    Outcome.TIMEOUT: 3,
    Outcome.NEW_ERROR: 4,
    Outcome.MISMATCH: 5,
    Outcome.STRUCTURE: 6,
}


class ErrorTexts(NamedTuple):
    """The texts of the errors of a call; "" for none.

    Attributes:
        old: Of the old target, as far as payloads are kept; the same for *new*.
        shown: Of the error that ended the call, as the log may show it.
    """

    old: str = ""
    new: str = ""
    shown: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptSample:
    """One compared call.

    Attributes:
        id: Names it.
        record: The client's call, with the tensors of the inputs and of both targets' replies.
        side: The target that replied to the client, "old" or "new".
        codes: Of the old and of the new target.
        times_s: Seconds at the old and at the new target.
        comparison: The comparison of both results.
    """

    id: str
    record: RecordedCall
    side: str
    codes: tuple[str, str]
    times_s: tuple[float, float]
    comparison: Comparison
    errors: ErrorTexts

    @property
    def badness(self) -> tuple[int, float]:
        """Its rank among the worst: the outcome, then the largest absolute error."""
        return badness_of(self.comparison)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, and what the rest takes."""
        return _CALL_BYTES + self.record.nbytes


def badness_of(comparison: Comparison) -> tuple[int, float]:
    """Return how bad a comparison is: by its outcome, then by the largest absolute error."""
    return _SEVERITY[comparison.outcome], comparison.largest_error or 0.0


def kept_sample(  # all that is known of one call
    sample_id: str,
    record: RecordedCall,
    side: str,
    other: Result,
    comparison: Comparison,
    seconds: tuple[float, float],
    errors: ErrorTexts = ErrorTexts(),  # noqa: B008  # frozen
) -> KeptSample:
    """Return a compared call.

    Args:
        sample_id: Names it.
        record: The client's call with its reply.
        side: The target that replied to the client, "old" or "new".
        other: Result of the other target.
        comparison: The comparison of both results.
        seconds: Time at the target that replied to the client, and at the other one.
        errors: The texts of its errors.
    """
    other_side = NEW if side == OLD else OLD
    rows = [replace(each, side=side) if each.side == OLD else each for each in record.tensors]
    rows += item_rows(other.items, other_side)
    codes = record.call.code, OK if other.error is None else other.error.value
    if side == NEW:
        codes, seconds = (codes[1], codes[0]), (seconds[1], seconds[0])
    whole = RecordedCall(record.call, rows, record.items)
    return KeptSample(sample_id, whole, side, codes, seconds, comparison, errors)


class KeptSamples:
    """The 200 worst and 200 random calls of a migration, within 64 MiB.

    Args:
        privacy: Which elements may be shown.
        choose: Chooses the random ones.
    """

    def __init__(self, privacy: Privacy, choose: random.Random | None = None) -> None:
        self._privacy = privacy
        # No secret depends on the choice.
        self._random = random.Random() if choose is None else choose  # noqa: S311
        self._worst: dict[str, tuple[tuple[int, float], KeptSample]] = {}
        self._drawn: list[KeptSample] = []
        self._seen = 0
        self._place = 0
        self._is_bad = False
        # At least the bytes of all kept calls; `_shrink` makes it exact.
        self._nbytes = 0

    def wants(self, comparison: Comparison) -> bool:
        """Return whether the next call is kept; call it once for each."""
        self._seen += 1
        self._place = int(self._random.random() * self._seen)  # a sixth of the time of `randrange`
        self._is_bad = comparison.outcome is not Outcome.MATCH and self._is_among_worst(
            badness_of(comparison)
        )
        return self._is_bad or self._place < _KEPT

    def add(self, sample: KeptSample) -> None:
        """Keep the call for which `wants` was true."""
        if not self._privacy.reads_elements or sample.nbytes > _MAX_BYTES // 4:
            sample = _without_elements(sample)
        self._nbytes += sample.nbytes
        if self._place < _KEPT:
            if len(self._drawn) == _KEPT:
                self._drawn[self._place] = sample
            else:
                self._drawn.append(sample)
        if self._is_bad:
            self._worst[sample.id] = sample.badness, sample
            if len(self._worst) > _KEPT:
                del self._worst[min(self._worst, key=lambda each: self._worst[each][0])]
        if self._nbytes > _MAX_BYTES:
            self._shrink()

    def list(self) -> list[dict[str, Any]]:
        """Return a line for each kept call, the worst ones first."""
        worst = sorted(self._worst.values(), key=lambda each: each[0], reverse=True)
        lines = [_line(sample, worst=True) for _, sample in worst]
        drawn = [each for each in self._drawn if each.id not in self._worst]
        return lines + [_line(sample, worst=False) for sample in drawn]

    def document(self, sample_id: str) -> dict[str, Any] | None:
        """Return a kept call as JSON values, with the elements that may be shown."""
        for _, sample in self._worst.values():
            if sample.id == sample_id:
                return _document(sample, self._privacy, worst=True)
        found = [each for each in self._drawn if each.id == sample_id]
        return _document(found[0], self._privacy, worst=False) if found else None

    def _is_among_worst(self, badness: tuple[int, float]) -> bool:
        return len(self._worst) < _KEPT or badness > min(each for each, _ in self._worst.values())

    def _shrink(self) -> None:
        """Take the elements from random calls, then from the least bad ones, until they fit."""
        worst = [sample for _, sample in sorted(self._worst.values(), key=lambda each: each[0])]
        drawn = [each for each in self._drawn if each.id not in self._worst]
        self._nbytes = sum(each.nbytes for each in (*drawn, *worst))
        for sample in (*drawn, *worst):
            if self._nbytes <= _MAX_BYTES // 2:
                return
            smaller = _without_elements(sample)
            self._nbytes -= sample.nbytes - smaller.nbytes
            self._replace(smaller)

    def _replace(self, sample: KeptSample) -> None:
        self._drawn = [sample if each.id == sample.id else each for each in self._drawn]
        if sample.id in self._worst:
            self._worst[sample.id] = self._worst[sample.id][0], sample


def _line(sample: KeptSample, *, worst: bool) -> dict[str, Any]:
    return {
        "id": sample.id,
        "at_us": sample.record.call.at_us,
        "outcome": sample.comparison.outcome.value,
        "reason": sample.errors.shown or sample.comparison.reason,
        "worst": worst,
    }


def _without_elements(sample: KeptSample) -> KeptSample:
    """Return a sample with names, datatypes and shapes only."""
    record = sample.record
    rows = [replace(each, data=None) for each in record.tensors]
    return dataclasses.replace(sample, record=RecordedCall(record.call, rows, record.items))


def _document(sample: KeptSample, privacy: Privacy, *, worst: bool) -> dict[str, Any]:
    call = sample.record.call
    return {
        **_line(sample, worst=worst),
        "request_id": call.request_id,
        "client": call.client,
        "protocol": call.protocol,
        "model": call.model,
        "version": call.version,
        "served_by": sample.side,
        "codes": dict(zip((OLD, NEW), sample.codes, strict=True)),
        "errors": {OLD: sample.errors.old, NEW: sample.errors.new},
        "took_s": dict(zip((OLD, NEW), sample.times_s, strict=True)),
        "inputs": _tensors(sample.record, INPUT, privacy)[0],
        "old": _tensors(sample.record, OLD, privacy),
        "new": _tensors(sample.record, NEW, privacy),
        "outputs": {
            name: {
                "outcome": found.outcome.value,
                "max_abs": None if found.errors is None else found.errors.max_abs,
            }
            for name, found in sample.comparison.outputs.items()
        },
    }


def _tensors(record: RecordedCall, side: str, privacy: Privacy) -> list[list[dict[str, Any]]]:
    """Return the tensors of one side, by reply; those of the inputs as one reply."""
    items: dict[int, list[TensorRow]] = {0: []} if side == INPUT else {}
    for row in record.tensors:
        if row.side == side:
            items.setdefault(row.item, []).append(row)
    return [_item(rows, privacy) for rows in items.values()]


def _item(rows: list[TensorRow], privacy: Privacy) -> list[dict[str, Any]]:
    found = [_description(row) for row in rows]
    if any(row.data is None for row in rows):
        return found
    try:
        tensors = list(tensors_of(rows))
    except (GatewayError, ValueError):  # only the model knows the form of its elements
        return found
    for document, tensor in zip(found, tensors, strict=True):
        if privacy.of_tensor(tensor.name) == "full":
            document.update(_elements(tensor))
    return found


def _description(row: TensorRow) -> dict[str, Any]:
    shape = None if row.shape is None else json.loads(row.shape)
    return {"name": row.name, "datatype": row.datatype, "shape": shape, "values": None}


def _elements(tensor: Tensor) -> dict[str, Any]:
    """Return elements as a flat list, or as base64 where there are very many.

    NaN and infinities, which JSON numbers cannot represent, become texts such as "NaN".
    """
    if tensor.datatype is None or tensor.shape is None:
        return {}
    if tensor.datatype is Datatype.BYTES:
        items: Sequence[bytes] = [bytes(each) for each in as_items(tensor)]
        return {"values": [each.decode("utf-8", "backslashreplace") for each in items]}
    if tensor.nbytes > _MAX_JSON_BYTES:
        return {"base64": base64.b64encode(as_raw(tensor)).decode()}
    array = as_numpy(tensor).ravel()
    if not tensor.datatype.is_float:
        return {"values": array.tolist()}
    values = values_of(tensor.datatype, array).tolist()
    return {"values": [each if math.isfinite(each) else json.dumps(each) for each in values]}
