"""The layers of residency. What they build is imported only where the file has `residency`."""

from typing import Final

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.routing.residency.settings import LOCAL_RESIDENCY, RESIDENCY
from gateway.service import Service


def _build(inner: Entries, at: LayerContext) -> Service | None:
    config = at.setting(RESIDENCY)
    if config is None:
        return None
    from gateway.routing.residency.layer import build  # noqa: PLC0415  # only with the key

    return build(inner, at, config)


def _build_local(inner: Entries, at: LayerContext) -> Service | None:
    if at.setting(LOCAL_RESIDENCY) is None:
        return None
    from gateway.routing.residency.local import LocalModels  # noqa: PLC0415  # only with the key

    return at.part(LocalModels).layer(inner)


RESIDENCY_LAYER: Final = Layer(
    "Residency",
    "loads the models that calls need, and unloads others, if `residency` is set",
    "upstream",
    _build,
    settings=(RESIDENCY,),
)
LOCAL_RESIDENCY_LAYER: Final = Layer(
    "Residency",
    "loads the model when a call needs it, if the file has `residency`",
    "model",
    _build_local,
    settings=(LOCAL_RESIDENCY,),
)
