"""The command `kserve`: the gateway as a runtime of KServe, with the arguments of its servers.

Source: kserve/model_server.py, "parser"; the runtime is in `deploy/kserve`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
import typer

from gateway.app.run.reload import FollowedLoad, ReloadResult
from gateway.backends.absent import ABSENT
from gateway.cli.configuration import load_checked_mapping
from gateway.cli.output import WRONG_USAGE, fail, print_note
from gateway.cli.serving.run import run_loaded
from gateway.cli.serving.sidecar import sidecar_config
from gateway.config.load import LoadedConfig
from gateway.migration.importers.model_folder import (
    Fingerprint,
    NoModels,
    configuration_of,
    fingerprint,
    models_in,
)
from gateway.telemetry.reload_metrics import APPLIED

log = structlog.get_logger(__name__)

POLL_S: Final = 1.0
"""The pause between two looks at a folder that has no model yet."""

_PORTS: Final = {True: 443, False: 80}
_V1: Final = "tfs"
_V1_OPTIONS: Final = {"dialect": "kserve"}
"""The protocol of KServe's V1, which other servers have from TensorFlow Serving."""


def kserve(  # noqa: PLR0913  # one for each argument of KServe
    context: typer.Context,
    *,
    model_name: Annotated[
        str,
        typer.Option("--model_name", "--model-name", metavar="NAME", help="Name of the model."),
    ] = "model",
    model_dir: Annotated[
        Path,
        typer.Option(
            "--model_dir",
            "--model-dir",
            metavar="DIR",
            help="Folder with a model file, N/model.onnx or NAME/N/model.onnx; it may come later.",
        ),
    ] = Path("/mnt/models"),
    http_port: Annotated[
        int,
        typer.Option(
            "--http_port", "--http-port", metavar="PORT", help="Port of HTTP, gRPC and /metrics."
        ),
    ] = 8080,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            "--grpc_port",
            "--grpc-port",
            metavar="PORT",
            help="A further port of gRPC. Default: only the other one.",
        ),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers", metavar="N", min=1, max=256, help="Processes that share the port."
        ),
    ] = 1,
    predictor_host: Annotated[
        str | None,
        typer.Option(
            "--predictor_host",
            "--predictor-host",
            metavar="HOST",
            help="Server to stand before, as HOST or HOST:PORT, instead of a folder.",
        ),
    ] = None,
    predictor_protocol: Annotated[
        str,
        typer.Option(
            "--predictor_protocol",
            "--predictor-protocol",
            metavar="v1|v2|grpc-v2",
            help="Protocol of that server.",
        ),
    ] = "v2",
    predictor_use_ssl: Annotated[
        str,
        typer.Option(
            "--predictor_use_ssl",
            "--predictor-use-ssl",
            metavar="true|false",
            help="Whether that server has TLS.",
        ),
    ] = "false",
    predictor_request_timeout_seconds: Annotated[
        float,
        typer.Option(
            "--predictor_request_timeout_seconds",
            "--predictor-request-timeout-seconds",
            metavar="SECONDS",
            help="Longest time of a call of that server.",
        ),
    ] = 600.0,
) -> None:
    """Serve as a runtime of KServe: one port for HTTP, HTTP/2, gRPC and /metrics.

    Other arguments of KServe's servers have no effect, and are named on standard error. While the
    folder has no model, the gateway is live and not ready. Exit status: as `serve`.

    Example: gateway kserve --model_name=digits --model_dir=/mnt/models
    """
    if context.args:
        print_note(f"arguments without an effect here: {' '.join(context.args)}")
    listeners = _listeners(http_port, grpc_port)
    if predictor_host is not None:
        config = _transformer(
            predictor_host,
            predictor_protocol,
            predictor_request_timeout_seconds,
            has_tls=_flag("--predictor_use_ssl", predictor_use_ssl),
        )
        config["listeners"] = [{**config["listeners"][0], **each} for each in listeners]
        raise typer.Exit(run_loaded(lambda: load_checked_mapping(config, workers=workers)))
    listeners[0]["options"] = {_V1: _V1_OPTIONS}
    models = _ModelFolder(model_dir, model_name, {"version": "1", "listeners": listeners}, workers)
    raise typer.Exit(run_loaded(FollowedLoad(models.load, models.follow)))


kserve.passes_unknown = True  # type: ignore[attr-defined]  # `command_line` reads it


def _listeners(http_port: int, grpc_port: int | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"address": f":{http_port}", "metrics": True}]
    if grpc_port is not None and grpc_port != http_port:
        found.append({"name": "grpc", "grpc": f":{grpc_port}"})
    return found


def _flag(name: str, text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        fail(f"{name} is {text!r}; expected true or false", WRONG_USAGE)
    return text.lower() == "true"


def _transformer(host: str, protocol: str, timeout_s: float, *, has_tls: bool) -> dict[str, Any]:
    """Return the configuration of a gateway before another server."""
    if ":" not in host:
        host = f"{host}:{_PORTS[has_tls]}"
    schemes = {"v2": f"oip+http{'s' * has_tls}", "grpc-v2": f"oip+grpc{'s' * has_tls}"}
    schemes["v1"] = f"{_V1}+http{'s' * has_tls}"
    if protocol not in schemes:
        expected = " or ".join(sorted(schemes))
        fail(f"--predictor_protocol is {protocol!r}; expected {expected}", WRONG_USAGE)
    config = sidecar_config([f"{schemes[protocol]}://{host}"], timeout=f"{timeout_s:g}s")
    listener = config["listeners"][0]
    for key in ("http", "grpc"):
        listener.pop(key)
    listener["options"] = {**listener["options"], _V1: _V1_OPTIONS}
    (upstream,) = config["upstreams"].values()
    upstream["resolve"] = "all"  # KServe's Services are headless by default
    if protocol == "v1":
        upstream["options"] = dict(_V1_OPTIONS)
    return config


class _ModelFolder:
    """Serves the models of a folder, also if they arrive later.

    Args:
        folder: The folder, or a model file.
        name: The name of a model that is alone there.
        config: The other keys of the configuration.
        workers: The number of processes.
    """

    def __init__(self, folder: Path, name: str, config: dict[str, Any], workers: int) -> None:
        self._folder = folder
        self._name = name
        self._config = config
        self._workers = workers
        self._reason = ""
        self._tried: Fingerprint = ()

    def load(self) -> LoadedConfig:
        """Return the configuration that serves what is there now.

        Raises:
            ConfigError: A `config.pbtxt` has a wrong value.
        """
        self._tried = fingerprint(self._folder)
        try:
            found = models_in(self._folder, self._name)
        except NoModels as error:
            self._reason = str(error)
            keys: dict[str, Any] = {"models": {self._name: {"backend": ABSENT}}}
        else:
            self._reason = ""
            for each in found.unmapped:
                log.warning("setting without an equivalent", what=str(each))
            keys = configuration_of(found)
        return load_checked_mapping({**self._config, **keys}, workers=self._workers)

    async def follow(self, reload: Callable[[], Awaitable[ReloadResult]]) -> None:
        """Wait for models, and load them once the folder rests; try again after each change."""
        if not self._has_reason():
            return
        before = self._tried
        while True:
            await asyncio.sleep(POLL_S)
            found = await asyncio.to_thread(fingerprint, self._folder)
            is_resting, before = found == before, found
            if found == self._tried or not is_resting:
                continue
            result = await reload()
            if not self._has_reason() and result.outcome == APPLIED:
                return

    def _has_reason(self) -> bool:
        """Return whether there is no model yet, and log why."""
        if self._reason:
            log.warning("no model yet: the gateway is not ready", reason=self._reason)
        return bool(self._reason)
