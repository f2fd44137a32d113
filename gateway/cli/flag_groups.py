"""Flags that several commands share: one parameter of a command stands for all of a group."""

import inspect
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, TypeVar

C = TypeVar("C", bound=Callable[..., Any])


def flag(name: str, annotation: Any, default: Any = None) -> Parameter:
    """Return a flag as a parameter of a command; *annotation* is typer's."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def with_flags(
    group: str, flags: Sequence[Parameter], combine: Callable[..., Any]
) -> Callable[[C], C]:
    """Return a decorator of commands with a parameter *group*.

    Args:
        group: Name of the parameter.
        flags: What users write instead of it, in its place.
        combine: Returns the value of the parameter, given the flags by their names.
    """

    def decorate(command: C) -> C:
        found = inspect.signature(command, eval_str=True).parameters.values()
        shown = [each for one in found for each in (flags if one.name == group else (one,))]

        def run(**arguments: Any) -> Any:
            given = {each.name: arguments.pop(each.name) for each in flags}
            return command(**arguments, **{group: combine(**given)})

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {}
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
            [each.replace(kind=Parameter.KEYWORD_ONLY) for each in shown]
        )
        return run  # type: ignore[return-value]  # called by typer alone, by name

    return decorate
