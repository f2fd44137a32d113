"""ResidencyExtension: residency as the gateway finds it, by `gateway.api.Extension`.

This module is imported at every start, so it imports the others of its folder on use only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from gateway.api.extension import (
    Extension,
    LeadingPart,
    ModelLoader,
    Processes,
    ServingPart,
    ServingProcess,
)
from gateway.api.layer import LayerContext
from gateway.config.load import LoadedConfig
from gateway.ir.calls import RepositoryIndexRequest
from gateway.residency.settings import (
    LOCAL_RESIDENCY,
    LOCAL_RESIDENCY_LAYER,
    RESIDENCY,
    RESIDENCY_LAYER,
)
from gateway.settings.config_view import ConfigView, Finding


class ResidencyExtension(Extension):
    """Lets calls load their models, where a server has less memory than models."""

    name = "residency"
    commands: Mapping[str, str] = MappingProxyType(
        {"residency": "gateway.residency.command:residency"}
    )
    layers = (RESIDENCY_LAYER, LOCAL_RESIDENCY_LAYER)

    def check(self, config: ConfigView, /) -> Iterator[Finding]:
        """Yield the upstreams with `residency` whose protocol has no loads or no index."""
        from gateway.app.check.check import LOAD, check_model_control  # noqa: PLC0415  # it calls

        needed = (LOAD, RepositoryIndexRequest())
        yield from check_model_control(LoadedConfig.of(config).config, RESIDENCY, *needed)

    def model_loader(self, config: ConfigView, /) -> Callable[[LayerContext], ModelLoader] | None:
        """Return what makes the loader of the gateway's models; None without `residency`."""
        if config.setting(LOCAL_RESIDENCY) is None:
            return None
        from gateway.residency.local import local_models  # noqa: PLC0415  # only with the key

        return local_models

    def serve(self, process: ServingProcess, /) -> ServingPart:
        """Return what does in a serving process what operators request."""
        from gateway.residency.parts import ServingResidency  # noqa: PLC0415  # if it serves

        return ServingResidency(process.setup)

    def lead(self, processes: Processes, /) -> LeadingPart:
        """Return what passes requests of operators to all serving processes."""
        from gateway.residency.parts import LeadingResidency  # noqa: PLC0415  # if it leads

        return LeadingResidency(processes)


EXTENSION: Final = ResidencyExtension()
