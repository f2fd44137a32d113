"""ShadowExtension: the shadow process as the gateway finds it, by `gateway.api.Extension`.

This module is imported at every start, so it imports the others of its folder on use only.
"""

from __future__ import annotations

from typing import Final

from gateway.api.extension import Extension, LeadingPart, Processes, ServingPart, ServingProcess
from gateway.shadow.names import METRICS


class ShadowExtension(Extension):
    """Keeps the shadow process of the extensions that need one.

    It is before them in the registry: what starts first ends last.
    """

    name = "shadow"
    metrics = METRICS

    def serve(self, process: ServingProcess, /) -> ServingPart:
        """Return what keeps the shadow process of a serving process that nothing leads."""
        from gateway.shadow.parts import ServingShadow  # noqa: PLC0415  # in serving processes

        return ServingShadow(process)

    def lead(self, processes: Processes, /) -> LeadingPart:
        """Return what keeps the shadow process."""
        from gateway.shadow.parts import LeadingShadow  # noqa: PLC0415  # if it leads

        return LeadingShadow(processes)


EXTENSION: Final = ShadowExtension()
