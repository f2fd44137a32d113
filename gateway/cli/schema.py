"""The command `schema`."""

import typer

from gateway.config.schema import schema_text


def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors.

    Example: gateway schema > gateway.schema.json
    """
    typer.echo(schema_text(), nl=False)
