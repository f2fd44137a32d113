"""The options of all captures, from the configuration: `capture`, and those of migrations."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.config.yaml_tree import Finding, KeyPath
from gateway.migration.captures.sampling import CaptureOptions
from gateway.migration.settings import (
    CAPTURE,
    MIGRATIONS,
    CaptureConfig,
    MigrationCaptureConfig,
    MigrationConfig,
    RecordingConfig,
)
from gateway.shadow.objects import check_object_url
from gateway.shadow.records.privacy import Privacy

CAPTURE_CHANNEL: Final = ""
"""The channel of `capture`; that of a mirror has the name of its migration."""


def capture_channel(migration: str) -> str:
    """Return the channel of a migration's capture. No name of a migration has a line break."""
    return f"\n{migration}"


def captures_of(loaded: LoadedConfig) -> dict[str, CaptureOptions]:
    """Return the options of all captures of a configuration without problems, by channel."""
    config = loaded.config
    found = {}
    capture = CAPTURE.of(config)
    if capture is not None:
        options = capture_options(capture, loaded.directory)
        found[CAPTURE_CHANNEL] = replace(options, upstreams=_upstreams(config))
    for name, migration in MIGRATIONS.of(config).items():
        if migration.capture is not None:
            directory = loaded.directory / _directory(name, migration.capture, config)
            found[capture_channel(name)] = CaptureOptions(
                directory=directory,
                percent=migration.capture.percent,
                route=migration.route or "",
                draw_key=name,
                upstreams=_upstreams(config),
                **_recording(migration.capture),
            )
    return found


def _upstreams(config: Config) -> dict[str, str]:
    return {
        name: ", ".join(map(str, upstream.all_urls)) for name, upstream in config.upstreams.items()
    }


def check_captures(config: Config) -> Iterator[Finding]:
    """Yield what is wrong with captures: contents that are refused, and where they are kept."""
    users: dict[Path, str] = {}
    capture = CAPTURE.of(config)
    if capture is not None:
        yield from _privacy_findings(("capture",), capture)
        yield from _upload_findings(("capture",), capture)
        users[Path(capture.directory)] = "capture"
    for name, migration in MIGRATIONS.of(config).items():
        if migration.capture is None:
            continue
        at: KeyPath = ("migrations", name, "capture")
        yield from _privacy_findings(at, migration.capture)
        yield from _upload_findings(at, migration.capture)
        if migration.capture.directory is None and config.state is None:
            yield at, "needs 'directory', or 'state: {directory: DIR}' for its files"
            continue
        directory = _directory(name, migration.capture, config)
        if directory in users:
            yield at, f"directory '{directory}' is already that of {users[directory]}"
        users[directory] = f"migrations.{name}.capture"


def _upload_findings(at: KeyPath, capture: RecordingConfig) -> Iterator[Finding]:
    if capture.upload is None:
        return
    try:
        check_object_url(capture.upload)
    except ValueError as error:
        yield (*at, "upload"), str(error)
    else:
        if not capture.upload.startswith("file:") and find_spec("fsspec") is None:
            yield (*at, "upload"), "needs fsspec: pip install 'tensor-gateway[objects]'"


def shown_elements(migration: MigrationConfig, config: Config) -> Privacy:
    """Return which elements of the compared calls of a migration may be shown."""
    capture = CAPTURE.of(config) if migration.capture is None else migration.capture
    return Privacy() if capture is None else privacy_of(capture)


def privacy_of(config: RecordingConfig) -> Privacy:
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
        **_recording(config),
    )


def _recording(config: RecordingConfig) -> dict[str, Any]:
    return {
        "privacy": privacy_of(config),
        "segment_bytes": config.segment_bytes,
        "segment_s": config.segment_time,
        "max_bytes": config.max_bytes,
        "rotates": config.when_full == "rotate",
        "min_free": config.min_free / 100,
        "outbox_bytes": config.outbox_bytes,
        "upload": config.upload or "",
        "keep_local_s": config.keep_local,
    }


def _directory(name: str, capture: MigrationCaptureConfig, config: Config) -> Path:
    """Return the directory of a migration's capture, relative to the configuration file."""
    if capture.directory is not None:
        return Path(capture.directory)
    assert config.state is not None  # noqa: S101  # `check_captures` wants it
    own = quote(name, safe=" ")
    # A name that begins with a dot would be hidden, or lead to another directory.
    own = f"%2E{own[1:]}" if own.startswith(".") else own
    return Path(config.state.directory) / "captures" / own


def _privacy_findings(at: KeyPath, config: RecordingConfig) -> Iterator[Finding]:
    try:
        privacy_of(config)
    except ValueError as error:
        yield at, str(error)
