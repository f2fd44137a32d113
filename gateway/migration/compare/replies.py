"""Compares the results of one call at two servers: replies, streams of replies, and errors.

Outputs are paired by name, and by position where either side has no names.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from gateway.ir.errors import SERVER_ERRORS, ErrorCode
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, items_tensor
from gateway.migration.compare.rules import OutputRules
from gateway.migration.compare.tensors import Errors, Outcome, TensorComparison, compare_tensors

Outputs = Sequence[Tensor]


class Result(Struct, frozen=True):
    """What one server made of a call.

    Attributes:
        items: The outputs of each reply; one for a call without a stream.
        error: The code of the error that ended the call; None for none.
        is_refused: Whether it is a refusal of the gateway itself: no server got the call.
    """

    items: tuple[Outputs, ...] = ()
    error: ErrorCode | None = None
    is_refused: bool = False


def has_failed(old: Result, new: Result) -> bool | None:
    """Return whether the new server failed a call: for conditions, guards and reports alike.

    It did so if it alone ended the call with an error, or with an error of a server. A refusal of
    the gateway on its side alone is an error of it.

    Returns:
        None if the client left, or if neither server was asked: it says nothing of the server.
    """
    if new.error is ErrorCode.CANCELLED or (old.is_refused and new.is_refused):
        return None
    return (new.error is not None and old.error is None) or new.error in SERVER_ERRORS


class Comparison(Struct, frozen=True):
    """The comparison of a call's two results.

    Attributes:
        outcome: The first of STRUCTURE, MISMATCH and MATCH that an output has, or an error.
        reason: Of the first output that differs; "" for a match.
        outputs: By name; by `#position` where there are no names. Those that the rules ignore are
            not among them.
        error: The code with which the new server failed; None for a reply, and for a call that the
            gateway refused on both sides.
        is_compared: Whether any output of two replies was compared. A call without that says
            nothing about the replies.
        has_failed: Whether the new server failed, by `has_failed`.
    """

    outcome: Outcome
    reason: str = ""
    outputs: Mapping[str, TensorComparison] = field(default_factory=dict)
    error: ErrorCode | None = None
    is_compared: bool = True
    has_failed: bool | None = False

    @property
    def differs(self) -> bool:
        """Whether two replies differ, in values or structure."""
        return self.outcome in {Outcome.MISMATCH, Outcome.STRUCTURE}

    @property
    def different_outputs(self) -> list[str]:
        """The names of the outputs that do not agree."""
        return [name for name, it in self.outputs.items() if it.outcome is not Outcome.MATCH]

    @property
    def largest_error(self) -> float | None:
        """The largest absolute error of any output; None where there are no numbers."""
        return max((it.errors.max_abs for it in self.outputs.values() if it.errors), default=None)


def compare_results(
    old: Result,
    new: Result,
    rules: OutputRules,
    *,
    classes: frozenset[str] = frozenset(),
    batched: bool = False,
    streams: str = "join",
) -> Comparison:
    """Compare the results of a call.

    Args:
        old: The reference.
        new: The result of the other server.
        rules: The rules for the model's outputs.
        classes: Names of the outputs that were requested as classes.
        batched: The first axis is the batch.
        streams: "join" compares BYTES joined over the items of a stream, and other outputs item by
            item. "items" compares every output item by item.

    Raises:
        InvalidTensor: The elements of an output do not match its datatype, or are not in memory.
    """
    failed = _error_outcome(old, new)
    if failed is not None:
        return failed
    outputs: dict[str, TensorComparison] = {}
    old_items, new_items = old.items, new.items
    if streams == "join" and max(len(old_items), len(new_items)) > 1:
        old_texts, old_items = _join_items(old_items)
        new_texts, new_items = _join_items(new_items)
        outputs |= _compared(old_texts, new_texts, rules, classes, batched=False)
    if len(old_items) != len(new_items):
        reason = f"{len(old_items)} replies became {len(new_items)}"
        found = TensorComparison(Outcome.STRUCTURE, reason)
        names = {name for each in (*old_items, *new_items) for name, _, _ in _pairs(each, ())}
        outputs |= {name: found for name in sorted(names) if not rules.ignores(name)}
        return Comparison(Outcome.STRUCTURE, reason, outputs)
    for a, b in zip(old_items, new_items, strict=True):
        for name, found in _compared(a, b, rules, classes, batched=batched).items():
            before = outputs.get(name)
            outputs[name] = found if before is None else _worse(before, found)
    return _summary(outputs)


def _error_outcome(old: Result, new: Result) -> Comparison | None:
    if old.error is None and new.error is None:
        return None
    codes = " became ".join(
        "a reply" if each is None else each.value for each in (old.error, new.error)
    )
    error, failed = new.error, has_failed(old, new)
    if old.is_refused or new.is_refused:
        outcome = Outcome.REFUSED
        error = None if old.is_refused and new.is_refused else error
    elif old.error is new.error:
        outcome, codes = Outcome.MATCH, ""
    elif old.error is not None:
        outcome = Outcome.OLD_ERROR if new.error is None else Outcome.BOTH_ERROR
    else:
        is_timeout = new.error is ErrorCode.DEADLINE_EXCEEDED
        outcome = Outcome.TIMEOUT if is_timeout else Outcome.NEW_ERROR
    return Comparison(outcome, codes, error=error, is_compared=False, has_failed=failed)


def _compared(
    old: Outputs, new: Outputs, rules: OutputRules, classes: frozenset[str], *, batched: bool
) -> dict[str, TensorComparison]:
    found: dict[str, TensorComparison] = {}
    for name, a, b in _pairs(old, new):
        if rules.ignores(name):
            continue
        if a is None or b is None:
            missing = "missing" if b is None else "not in the old reply"
            found[name] = TensorComparison(Outcome.STRUCTURE, f"output {missing}")
            continue
        found[name] = compare_tensors(a, b, rules, classes=name in classes, batched=batched)
    return found


def _pairs(old: Outputs, new: Outputs) -> list[tuple[str, Tensor | None, Tensor | None]]:
    names, new_names = [each.name for each in old], [each.name for each in new]
    if names == new_names and "" not in names:
        return list(zip(names, old, new, strict=True))
    if "" not in names and "" not in new_names:
        by_name = {each.name: each for each in new}
        pairs: list[tuple[str, Tensor | None, Tensor | None]] = [
            (each.name, each, by_name.pop(each.name, None)) for each in old
        ]
        return [*pairs, *((name, None, each) for name, each in by_name.items())]
    padded = []
    for place in range(max(len(old), len(new))):
        a = old[place] if place < len(old) else None
        b = new[place] if place < len(new) else None
        name = (a.name if a is not None else "") or (b.name if b is not None else "")
        name = name or f"#{place}"
        # OutputRules are found by the name, which the old side may lack.
        padded.append((name, None if a is None else a.renamed(name), b))
    return padded


def _join_items(items: Sequence[Outputs]) -> tuple[Outputs, tuple[Outputs, ...]]:
    """Return the BYTES outputs, each joined to one element, and the items with the others."""
    texts: dict[str, list[bytes]] = {}
    rest = []
    for outputs in items:
        others = []
        for tensor in outputs:
            if tensor.datatype is Datatype.BYTES:
                texts.setdefault(tensor.name, []).extend(map(bytes, as_items(tensor)))
            else:
                others.append(tensor)
        rest.append(tuple(others))
    whole_texts = tuple(
        items_tensor(name, (1,), [b"".join(parts)]) for name, parts in texts.items()
    )
    # A stream of texts alone may be cut into any number of items.
    return whole_texts, tuple(rest) if any(rest) else ()


_SEVERITY = {Outcome.MATCH: 0, Outcome.MISMATCH: 1, Outcome.STRUCTURE: 2}


def _worse(a: TensorComparison, b: TensorComparison) -> TensorComparison:
    """Return the comparisons of two items of one output as one."""
    worst = b if _SEVERITY[b.outcome] > _SEVERITY[a.outcome] else a
    errors = a.errors or b.errors
    if a.errors is not None and b.errors is not None:
        errors = Errors()  # those of equal tensors are shared
        for each in (a.errors, b.errors):
            errors.add(each)
    rows, bad_rows = a.rows + b.rows, a.bad_rows + b.bad_rows
    reshaped = a.reshaped or b.reshaped
    return TensorComparison(worst.outcome, worst.reason, errors, rows, bad_rows, reshaped)


def _summary(outputs: Mapping[str, TensorComparison]) -> Comparison:
    different = [pair for pair in outputs.items() if pair[1].outcome is not Outcome.MATCH]
    if not different:
        return Comparison(Outcome.MATCH, outputs=outputs, is_compared=bool(outputs))
    name, worst = max(different, key=lambda pair: _SEVERITY[pair[1].outcome])
    reason = f"{name}: {worst.reason}" if worst.reason else ""
    return Comparison(worst.outcome, reason, outputs)
