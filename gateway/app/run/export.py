"""Opens the export to OpenTelemetry, whose packages are an extra and are imported only for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.config.telemetry import OtlpConfig

if TYPE_CHECKING:
    from gateway.otlp.export import Export


def open_export(config: OtlpConfig, **changed: bool) -> Export | None:
    """Return the export that the configuration asks for; None if it asks for none.

    Args:
        config: What to export.
        changed: Fields of *config* that another process exports.

    Raises:
        ValueError: The packages of the extra `otel` are missing, or a variable `OTEL_*` is invalid.
    """
    config = config.model_copy(update=changed)
    if not config.is_on:
        return None
    try:
        from gateway.otlp.export import Export  # noqa: PLC0415  # optional, and slow to import
    except ImportError as error:
        raise ValueError(
            f"telemetry.otlp needs OpenTelemetry: pip install 'tensor-gateway[otel]': {error}"
        ) from error
    return Export(config)
