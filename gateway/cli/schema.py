"""The command `schema`."""

import typer

from gateway.cli.output import fail
from gateway.config.schema import schema_text
from gateway.registry import package_faults


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors.

    Example: gateway schema > gateway.schema.json
    """
    try:
        text = schema_text()
    except LookupError as error:  # of an installed package
        fail(str(error))
    for fault in package_faults():
        typer.echo(f"warning: {fault}", err=True)
    typer.echo(text, nl=False)
