"""The configuration file on the command line: an argument, or the option `--config`."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.output import WRONG_USAGE, fail

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="CONFIG.yaml", exists=True, dir_okay=False)
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-c", exists=True, dir_okay=False, help="The same as CONFIG.yaml."),
]


def config_path(argument: Path | None, option: Path | None) -> Path | None:
    """Return the configuration file of the argument or the option; fail if both are present."""
    if argument is not None and option is not None:
        fail("two configuration files; expected either CONFIG.yaml or --config", WRONG_USAGE)
    return option if argument is None else argument
