"""The options of a capture, from the configuration."""

from __future__ import annotations

from pathlib import Path

from gateway.captures.privacy import Privacy
from gateway.captures.sampling import CaptureOptions
from gateway.config.migration import CaptureConfig


def privacy_of(config: CaptureConfig) -> Privacy:
    """Return what a capture contains.

    Raises:
        ValueError: A header may contain a credential, or `wire` lacks `payload: full`.
    """
    return Privacy(
        payload=config.payload,
        tensors=dict(config.tensors),
        parameters=config.parameters == "full",
        headers=tuple(name.lower() for name in config.headers),
        wire=config.wire,
    )


def capture_options(config: CaptureConfig, directory: Path) -> CaptureOptions:
    """Return the options of a capture; a relative directory is relative to *directory*.

    Raises:
        ValueError: A header may contain a credential, or `wire` lacks `payload: full`.
    """
    return CaptureOptions(
        directory=directory / config.directory,
        percent=config.percent if config.enabled else 0.0,
        models=frozenset(config.models),
        privacy=privacy_of(config),
        segment_bytes=config.segment_bytes,
        segment_s=config.segment_time,
        max_bytes=config.max_bytes,
        rotates=config.when_full == "rotate",
        min_free=config.min_free / 100,
        outbox_bytes=config.outbox_bytes,
    )
