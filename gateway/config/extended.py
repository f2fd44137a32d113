"""The models of the configuration file with the keys that extensions and layers add.

`Config` here is `models.Config` with the settings of `registry.settings()`. It is built on first
use, because it imports their owners. The names of this module are those of the models, so that a
worker process finds the class of an unpickled section.
"""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from pydantic import Field, PydanticUserError, TypeAdapter, create_model
from pydantic.fields import FieldInfo

from gateway import registry
from gateway.config import models, routes
from gateway.settings.fields import Name
from gateway.settings.model import Model
from gateway.settings.setting import Place, Setting

_PLACES: Final[Mapping[str, Place]] = MappingProxyType(
    {
        "Config": "top",
        "PoliciesConfig": "policies",
        "RouteConfig": "route",
        "TargetConfig": "target",
        "ListenerConfig": "listener",
        "UpstreamConfig": "upstream",
        "ModelConfig": "model",
    }
)
"""The section of each model that may have further keys."""


def config_type() -> type[models.Config]:
    """Return the model of the whole file, with the keys of all extensions."""
    return cast("type[models.Config]", _extended("Config"))


def __getattr__(name: str) -> type[Model]:
    """Return an extended model by its name, for `pickle`."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _extended(name)


@functools.cache
def _extended(name: str) -> type[Model]:
    """Return the model *name* with the keys that belong to its place, or as it is without any."""
    base: type[Model] = getattr(routes, name, None) or getattr(models, name)
    own = [each for each in registry.settings() if _PLACES[name] in each.places]
    fields = {setting.key: (setting.type, _field(setting)) for setting in own}
    for key in fields.keys() & base.model_fields.keys():
        raise LookupError(
            f"an installed package has the key {key!r} of {_PLACES[name]!r}, which the gateway "
            "has too; expected another key"
        )
    fields |= _sections(name, base)
    if not fields:
        return base
    try:
        return create_model(  # type: ignore[call-overload,no-any-return]  # its fields are known here
            name, __base__=base, __module__=__name__, __doc__=base.__doc__, **fields
        )
    except PydanticUserError:
        for setting in own:
            _check_type(setting)
        raise


def _check_type(setting: Setting[Any]) -> None:
    """Check that pydantic validates the type of a key.

    Raises:
        LookupError: It does not.
    """
    try:
        TypeAdapter(setting.type)
    except PydanticUserError as error:
        reason = error.message.partition("\n")[0]
        raise LookupError(
            f"the key {setting.key!r} of an installed package has a wrong type: {reason}; expected "
            "one that pydantic validates"
        ) from error


def _field(setting: Setting[Any]) -> FieldInfo:
    """Return the field of a setting; a default that can change is made anew for each file."""
    if isinstance(setting.default, Mapping):
        empty = type(setting.default)
        return cast("FieldInfo", Field(default_factory=empty, description=setting.help))
    return cast("FieldInfo", Field(setting.default, description=setting.help))


def _sections(name: str, base: type[Model]) -> dict[str, tuple[Any, FieldInfo]]:
    """Return the fields of a model that hold sections with further keys."""
    inner: dict[str, Any] = {}
    if name == "Config":
        inner = {
            "policies": _extended("PoliciesConfig"),
            "routes": tuple[_extended("RouteConfig"), ...],  # type: ignore[misc]  # a type at run time
            "listeners": tuple[_extended("ListenerConfig"), ...],  # type: ignore[misc]  # as above
            "upstreams": Mapping[Name, _extended("UpstreamConfig")],  # type: ignore[misc]  # as above
            "models": Mapping[Name, _extended("ModelConfig")],  # type: ignore[misc]  # as above
        }
    elif name == "RouteConfig":
        inner = {"targets": tuple[_extended("TargetConfig"), ...]}  # type: ignore[misc]  # as above
    return {
        key: (annotation, base.model_fields[key])
        for key, annotation in inner.items()
        if annotation != base.model_fields[key].annotation
    }
