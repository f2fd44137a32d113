"""QuotaExtension: quotas as the gateway finds them, by `gateway.api.Extension`.

This module is imported at every start, so it imports the others of its folder on use only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final

from gateway.api.access import ExampleCall, ExplainedAccess
from gateway.api.extension import Extension, LeadingPart, Processes, ServingPart, ServingProcess
from gateway.api.layer import Entries, Layer, LayerContext
from gateway.config.load import LoadedConfig
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding


def _build(inner: Entries, at: LayerContext) -> Service | None:
    from gateway.quotas.parts import build  # noqa: PLC0415  # in serving processes

    return build(inner, at)


APPLY_QUOTAS: Final = Layer(
    "ApplyQuotas",
    "charges calls to `quotas`, and refuses those beyond one",
    "listener",
    _build,
)


class QuotaExtension(Extension):
    """Lets clients use so much of something in a time."""

    name = "quotas"
    commands: Mapping[str, str] = MappingProxyType({"quotas": "gateway.quotas.command:quotas"})
    layers = (APPLY_QUOTAS,)

    def check(self, config: ConfigView, /) -> Iterator[Finding]:
        """Yield why the store of quotas cannot be asked."""
        store = LoadedConfig.of(config).config.quota_store
        if store is None:
            return
        if find_spec("redis") is None:
            yield ("quota_store",), "needs a client of Redis: pip install 'tensor-gateway[quota]'"
            return
        from gateway.quotas.store import client_of  # noqa: PLC0415  # if there is a store

        try:
            client_of(store)
        except ValueError:  # its text may hold a part of a password
            yield (
                ("quota_store", "url"),
                "the address, the port or an option is wrong; expected redis://HOST:PORT/NUMBER",
            )

    def explain_access(
        self, config: ConfigView, example: ExampleCall, found: ExplainedAccess, /
    ) -> ExplainedAccess:
        """Add the names of the quotas that count a call. Raises LookupError."""
        from gateway.access.permissions import facts_of, identity_of  # noqa: PLC0415  # if asked
        from gateway.quotas.parts import quotas_of_call  # noqa: PLC0415  # likewise

        own = LoadedConfig.of(config).config
        client, facts = identity_of(own, example), facts_of(own, example)
        return replace(found, quotas=quotas_of_call(own, client, facts, example.route))

    def serve(self, process: ServingProcess, /) -> ServingPart:
        """Return the accounts of a serving process."""
        from gateway.quotas.parts import ServingQuotas  # noqa: PLC0415  # in serving processes

        return ServingQuotas(process)

    def lead(self, processes: Processes, /) -> LeadingPart:
        """Return the budgets, or in the only process what asks it for them.

        Raises:
            StartError: The store of quotas cannot be used.
        """
        from gateway.quotas.parts import LeadingQuotas, OnlyQuotas  # noqa: PLC0415  # if it leads

        return (LeadingQuotas if processes.count > 1 else OnlyQuotas)(processes)


EXTENSION: Final = QuotaExtension()
