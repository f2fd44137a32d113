"""The status page at `/`: recent measurements and the list of models."""

from collections.abc import Iterable
from html import escape
from typing import Final

from gateway.ir.metadata import ModelStatus, ServerStatus, TensorMetadata, Trend

# The last second, minute, hour and day; see `RollingStats`.
_NEWEST: Final = (173, 113, 53, 29)


def write_page(status: ServerStatus) -> bytes:
    """Return a page with the state of the server and its models."""
    state = "ready" if status.is_ready else "not ready"
    rows = "".join(map(_row, status.models))
    measured = "".join([_measured(name, trend) for name, trend in status.trends.items()])
    return (
        "<!DOCTYPE html><html><head><meta charset='utf-8'><title>grps</title></head><body>"
        f"<h1>grps</h1><p>The server is {state}, up for {status.uptime_s:.0f} s.</p>"
        "<table border='1'><tr><th>measured</th><th>last second</th><th>last minute</th>"
        f"<th>last hour</th><th>last day</th></tr>{measured}</table><br>"
        "<table border='1'><tr><th>model</th><th>versions</th><th>inputs</th><th>outputs</th></tr>"
        f"{rows}</table></body></html>\n"
    ).encode("utf-8", "replace")


def _measured(name: str, trend: Trend) -> str:
    """Return the newest value of each period; no values of a distribution."""
    if trend.is_distribution:
        return ""
    points = [f"{trend.points[newest][1]:.3f}" for newest in _NEWEST]
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in (name, *points)) + "</tr>"


def _row(model: ModelStatus) -> str:
    metadata = model.metadata
    versions = [f"{entry.version} {entry.state.value}" for entry in model.entries]
    cells = (
        metadata.name,
        ", ".join(versions or metadata.versions),
        _tensors(metadata.inputs),
        _tensors(metadata.outputs),
    )
    return "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _tensors(tensors: Iterable[TensorMetadata]) -> str:
    return ", ".join(
        f"{tensor.name} {'' if tensor.datatype is None else tensor.datatype.value} "
        f"{'' if tensor.shape is None else list(tensor.shape)}".rstrip()
        for tensor in tensors
    )
