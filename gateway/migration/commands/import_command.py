"""The command `import`: the configuration of another server, as one of the gateway."""

import enum
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml

from gateway.cli.configuration import load_checked_mapping
from gateway.cli.output import FAILED, WRONG_USAGE, fail, print_note, print_text
from gateway.cli.serving.sidecar import DEFAULT_GRPC, DEFAULT_HTTP
from gateway.config.load import ConfigError
from gateway.migration.importers.graphpipe_command import import_graphpipe
from gateway.migration.importers.grps_config import import_grps
from gateway.migration.importers.imported import Imported
from gateway.migration.importers.kserve_services import import_kserve
from gateway.migration.importers.mlflow_model import import_mlflow
from gateway.migration.importers.ovms_config import import_ovms
from gateway.migration.importers.seldon_deployments import import_seldon
from gateway.migration.importers.tensorflow_models import import_models
from gateway.migration.importers.torchserve_properties import import_torchserve
from gateway.migration.importers.triton_repository import import_repository


class ImportSource(enum.Enum):
    """A server whose configuration can be imported."""

    TRITON = "triton"
    TRTIS = "trtis"
    GRAPHPIPE = "graphpipe"
    GRPS = "grps"
    TFS = "tfs"
    MLFLOW = "mlflow"
    TORCHSERVE = "torchserve"
    OVMS = "ovms"
    SELDON = "seldon"
    KSERVE = "kserve"


def import_(
    source: Annotated[ImportSource, typer.Argument(help="The server.")],
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="REPOSITORY|CONF|MLMODEL|FILE|-- COMMAND...",
            help="Model repository of Triton or TensorRT, directory `conf` of grps, file MLmodel "
            "of MLflow, models.config of TensorFlow Serving, config.properties, archive or model "
            "store of TorchServe, config.json of OpenVINO Model Server, resources of Seldon or "
            "KServe, or command line of a GraphPipe server.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="File to write; standard output by default.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if a setting has no equivalent.")
    ] = False,
) -> None:
    """Write a configuration that replaces a server, or stands before one.

    Settings without an equivalent are named with file and line on standard error. Exit status: 0
    success, 1 no model or, with --strict, a setting without an equivalent, 2 usage error.

    Example: gateway import triton models -o gateway.yaml
    """
    found = _import(source, what)
    for each in found.unmapped:
        print_note(str(each))
    if not found.models:
        fail(f"no model of {what[0]} can run in the gateway")
    try:
        load_checked_mapping(found.config)
    except ConfigError as error:
        fail(f"the imported configuration is invalid:\n{error}")
    text = f"# Imported by gateway import {source.value} from {shlex.join(what)}.\n"
    text += yaml.safe_dump(found.config, sort_keys=False)
    if out is None:
        print_text(text.rstrip())
    else:
        try:
            out.write_text(text)
        except OSError as error:
            fail(f"cannot write {out}: {error.strerror}")
        print_text(f"{found.models} {'model' if found.models == 1 else 'models'} written to {out}")
    if strict and found.unmapped:
        raise typer.Exit(FAILED)


def _import(source: ImportSource, what: list[str]) -> Imported:
    try:
        if source is ImportSource.GRAPHPIPE:
            return import_graphpipe(what)
        if len(what) > 1:
            fail(f"too many arguments: {len(what)}; expected one path", WRONG_USAGE)
        return _OF_PATHS[source](Path(what[0]))
    except OSError as error:
        fail(f"cannot read {error.filename or what[0]}: {error.strerror}", WRONG_USAGE)
    except ValueError as error:
        fail(str(error), WRONG_USAGE)


def _import_repository(path: Path) -> Imported:
    repository = import_repository(path)
    config = {
        "version": "1",
        "listeners": [{"name": "main", "http": DEFAULT_HTTP, "grpc": DEFAULT_GRPC}],
        "models": repository.models,
        **({"pipelines": repository.pipelines} if repository.pipelines else {}),
    }
    return Imported(config, repository.unmapped)


_OF_PATHS: Final[Mapping[ImportSource, Callable[[Path], Imported]]] = {
    ImportSource.TRITON: _import_repository,
    ImportSource.TRTIS: _import_repository,
    ImportSource.GRPS: import_grps,
    ImportSource.TFS: import_models,
    ImportSource.MLFLOW: partial(import_mlflow, http=DEFAULT_HTTP, grpc=DEFAULT_GRPC),
    ImportSource.TORCHSERVE: import_torchserve,
    ImportSource.OVMS: import_ovms,
    ImportSource.SELDON: partial(import_seldon, http=DEFAULT_HTTP, grpc=DEFAULT_GRPC),
    ImportSource.KSERVE: partial(import_kserve, http=DEFAULT_HTTP, grpc=DEFAULT_GRPC),
}
