"""Changes of the capture that are not in the file."""

from __future__ import annotations

import pytest

from gateway.app.run.runtime_changes import RuntimeChanges, differences, runtime_document
from gateway.config.load import LoadedConfig, load_text
from gateway.migration import settings

TEXT = """\
version: 1
listeners: [{http: 8000}]
upstreams: {one: {url: "http://c:3"}}
"""
LOADED = load_text(TEXT)
CAPTURE = load_text(
    TEXT + "capture: {directory: d, enabled: false, percent: 5, tensors: {x: hash}}\n"
)


def test_starts_and_stops_the_capture() -> None:
    """Omitted options are those of the file; the last change replaces the one before it."""
    changes = RuntimeChanges().with_part("capture", {"enabled": True, "payload": "full"})
    capture = settings.CAPTURE.of(changes.apply(CAPTURE).config)
    assert capture is not None
    assert (capture.enabled, capture.payload, capture.percent) == (True, "full", 5)
    assert changes.document()["capture"] == {"enabled": True, "payload": "full"}
    changes = changes.with_part("capture", {"enabled": False})
    capture = settings.CAPTURE.of(changes.apply(CAPTURE).config)
    assert capture is not None
    assert (capture.enabled, capture.payload) == (False, "none")


@pytest.mark.parametrize(
    ("loaded", "changed", "error", "text"),
    [
        (LOADED, {"enabled": True}, LookupError, "expected 'capture' in the configuration"),
        (CAPTURE, {"percent": 0}, ValueError, "percent is 0; expected more than 0"),
        (CAPTURE, {"percent": float("nan")}, ValueError, "percent is nan; expected more than 0"),
    ],
)
def test_invalid_capture_changes_are_rejected(
    loaded: LoadedConfig, changed: dict[str, object], error: type[Exception], text: str
) -> None:
    """A change must fit the file and have valid values."""
    with pytest.raises(error, match=text):
        RuntimeChanges().with_part("capture", changed).check(loaded)


def test_wire_capture_requires_the_full_payload() -> None:
    """The rules of the file also apply to changes."""
    wire = load_text(TEXT + "capture: {directory: d, payload: full, wire: true}\n")
    with pytest.raises(ValueError, match="wire: payload is 'none'; expected 'full'"):
        RuntimeChanges().with_part("capture", {"payload": "none"}).check(wire)


def test_changes_of_extensions_are_differences() -> None:
    """They are shown as they were made."""
    found = differences(RuntimeChanges().with_part("capture", {"enabled": False}), LOADED.config)
    assert ["capture: enabled=False"] == runtime_document(found)["lines"]
