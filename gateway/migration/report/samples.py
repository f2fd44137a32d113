"""One call in a report: who sent it, what differs, and its tensors where they are recorded."""

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.cli.report.blocks import Block, Plot, Section, TextTable
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError
from gateway.ir.tensor import Tensor, as_items, as_numpy
from gateway.migration.compare.numbers import values_of
from gateway.migration.compare.replies import Result
from gateway.migration.replay.differences import ComparedCall
from gateway.migration.replay.replay import recorded_result
from gateway.migration.report.plots import values_plot
from gateway.shadow.records.records import RecordedCall

_TENSORS: Final = 16
_PLOTS: Final = 4
_SHOWN_VALUES: Final = 10
_SHOWN_BYTES: Final = 80
_PLOTTED_VALUES: Final = 512
_LARGEST: Final = 1e300


def sample_section(call: ComparedCall) -> Section:
    """Return a part of a report for one call; it keeps no tensor."""
    row = call.old.call
    outcome = call.comparison.outcome.value
    error = call.new.call.error or row.error
    found = " ".join(filter(None, (call.comparison.reason, f"({error})" if error else "")))
    reason = f": {found}" if found else ""
    text = (
        f"{outcome}{reason}. Model {row.model or '-'}, client {row.client or '-'}, "
        f"protocol {row.protocol or '-'}, request {row.request_id or '-'}."
    )
    old, new = (recorded_result(each) or Result() for each in (call.old, call.new))
    inputs = _inputs(call.old)
    named = [
        *(("input", each) for each in inputs),
        *(("old", each) for each in _outputs(old)),
        *(("new", each) for each in _outputs(new)),
    ]
    rows = [(side, *_described(tensor)) for side, tensor in named[:_TENSORS]]
    head = ("side", "tensor", "datatype", "shape", "elements")
    tables = [TextTable(head, rows)] if rows else []
    return Section(f"Call {call.old.id}", [text, *tables, *_plots(inputs, old, new)], level=3)


def _inputs(record: RecordedCall) -> Sequence[Tensor]:
    """Return the inputs; none where their elements are not recorded."""
    return () if record.missing else record.request().inputs


def _outputs(result: Result) -> Iterator[Tensor]:
    for item in result.items:
        yield from item


def _described(tensor: Tensor) -> tuple[str, str, str, str]:
    datatype = "-" if tensor.datatype is None else tensor.datatype.name
    shape = "-" if tensor.shape is None else str(list(tensor.shape))
    return tensor.name or "-", datatype, shape, _elements(tensor)


def _elements(tensor: Tensor) -> str:
    """Return the first elements as text."""
    try:
        if tensor.datatype is Datatype.BYTES:
            items = as_items(tensor)
            shown = [_quoted(bytes(each)) for each in items[:_SHOWN_VALUES]]
            return ", ".join(shown) + (", ..." if len(items) > len(shown) else "")
        numbers = _numbers(tensor)
    except GatewayError:  # only the model knows its datatype
        return f"{tensor.nbytes} bytes"
    texts = [f"{each:.6g}" if isinstance(each, float) else str(each) for each in numbers]
    return ", ".join(texts[:_SHOWN_VALUES]) + (", ..." if len(texts) > _SHOWN_VALUES else "")


def _quoted(value: bytes) -> str:
    text = value[:_SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return f'"{text}"' + ("..." if len(value) > _SHOWN_BYTES else "")


def _numbers(tensor: Tensor) -> list[float | int]:
    """Return the first elements of a tensor of numbers.

    Raises:
        GatewayError: Datatype or shape are unknown, or the elements do not match them.
    """
    array = as_numpy(tensor).reshape(-1)[:_PLOTTED_VALUES]
    found: list[float | int] = values_of(tensor.datatype or Datatype.BYTES, array).tolist()
    return found


def _plots(inputs: Sequence[Tensor], old: Result, new: Result) -> Iterator[Block]:
    """Yield a drawing of each input, and of each output at both servers."""
    for tensor in inputs[:_PLOTS]:
        values = _drawable(tensor)
        if values:
            title = f"input {tensor.name}"
            yield Plot(title, values_plot(values, (), title))
    others = {each.name: each for each in _outputs(new)}
    for tensor in list(_outputs(old))[:_PLOTS]:
        other = others.get(tensor.name)
        values = _drawable(tensor)
        if values:
            title = f"output {tensor.name}: old dashed, new solid"
            drawn = [] if other is None else _drawable(other)
            yield Plot(title, values_plot(values, drawn, title))


def _drawable(tensor: Tensor) -> list[float]:
    """Return the first elements if there are some, and all are finite numbers; else nothing."""
    if tensor.datatype is Datatype.BYTES:
        return []
    try:
        values = list(map(float, _numbers(tensor)))
    except GatewayError:
        return []
    return values if len(values) > 1 and all(abs(each) < _LARGEST for each in values) else []
