"""AccessExtension: who calls and what clients may do, by `gateway.api.Extension`.

This module is imported at every start, so it imports the others of its folder on use only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from gateway.api.access import ExampleCall, ExplainedAccess
from gateway.api.extension import Extension, ServingPart, ServingProcess
from gateway.api.layer import Entries, Layer, LayerContext
from gateway.config.load import LoadedConfig
from gateway.policies.access.external import AUTHORISER, AskAuthoriser
from gateway.policies.access.layers import ASK_EXTERNAL, AUTHORISE
from gateway.registry import authoriser
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding


def _ask_authoriser(inner: Entries, at: LayerContext) -> Service | None:
    name = at.setting(AUTHORISER)
    return None if name is None else AskAuthoriser(inner, authoriser(name), name)


def _check_authoriser(config: ConfigView) -> Iterator[Finding]:
    for path, name in config.values(AUTHORISER):
        if name is not None:
            try:
                authoriser(name)
            except LookupError as error:
                yield path, str(error)


ASK_AUTHORISER: Final = Layer(
    "AskAuthoriser",
    "refuses what an installed package denies, if `authoriser` is set",
    "listener",
    _ask_authoriser,
    settings=(AUTHORISER,),
    check=_check_authoriser,
)


class AccessExtension(Extension):
    """Names clients by their credentials, and refuses what they may not do."""

    name = "access"
    commands: Mapping[str, str] = MappingProxyType({"keys": "gateway.access.command:keys"})
    layers = (AUTHORISE, ASK_EXTERNAL, ASK_AUTHORISER)

    def check(self, config: ConfigView, /) -> Iterator[Finding]:
        """Yield what is wrong with clients, credentials and rules."""
        from gateway.access.checks import check_access  # noqa: PLC0415  # if it is checked
        from gateway.access.permissions import check_rules  # noqa: PLC0415  # likewise

        own = LoadedConfig.of(config).config
        yield from check_rules(own)
        yield from check_access(own)

    def check_file(self, path: tuple[str | int, ...], file: Path, /) -> None:
        """Check a file of API keys, or of the keys of an issuer. Raises OSError, ValueError."""
        from gateway.access.key_file import read_key_file  # noqa: PLC0415  # if it is checked
        from gateway.access.key_sets import read_key_set  # noqa: PLC0415  # likewise

        if path[-1] == "jwks":
            read_key_set(file.read_bytes())
        elif path[:2] == ("security", "keys"):
            read_key_file(file.read_bytes())

    def client_names(self, config: ConfigView, /) -> Iterable[str]:
        """Return the clients of API keys; none where the file cannot be read here."""
        from gateway.access.key_file import KeyFileError, load_key_file  # noqa: PLC0415  # if asked

        keys = LoadedConfig.of(config).config.security.keys
        if keys is None:
            return ()
        try:
            return [each.client for each in load_key_file(config.directory / keys.file).keys]
        except (OSError, KeyFileError):
            return ()

    def explain_access(
        self, config: ConfigView, example: ExampleCall, found: ExplainedAccess, /
    ) -> ExplainedAccess:
        """Return what the rules decide about a call. Raises LookupError."""
        from gateway.access.permissions import explain_access  # noqa: PLC0415  # if asked

        return replace(explain_access(LoadedConfig.of(config).config, example), quotas=found.quotas)

    def serve(self, process: ServingProcess, /) -> ServingPart:
        """Return who calls, and what clients may do, in a serving process. Raises StartError."""
        from gateway.access.parts import ServingAccess  # noqa: PLC0415  # if it serves

        return ServingAccess(process)


EXTENSION: Final = AccessExtension()
