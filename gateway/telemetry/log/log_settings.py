"""The gateway's log settings in the terms of Triton's logging extension.

A level includes all more severe levels. Errors are always logged; the configuration defines their
destination and format.

Source: docs/protocols/open-inference.md, "14. Models, statistics and settings".
"""

from collections.abc import Callable, Mapping

from gateway.ir.errors import InvalidRequest, Unsupported

Settings = Mapping[str, bool | int | str]

_LEVELS = ("debug", "info", "warning", "error")
_VERBOSE, _INFO, _WARNING, _ERROR = "log_verbose_level", "log_info", "log_warning", "log_error"
_FIXED = ("log_file", "log_format", _ERROR)


class LogSettings:
    """The log settings, which clients can read and change.

    Args:
        level: The current level.
        form: "console" or "json"; read-only.
        set_level: Sets the level.
    """

    def __init__(self, level: str, form: str, set_level: Callable[[str], None]) -> None:
        self._level = level
        self._form = form
        self._set_level = set_level

    def __call__(self, changes: Settings) -> Settings:
        """Apply *changes* and return all settings.

        Raises:
            InvalidRequest: A setting does not exist, has the wrong type or contradicts another.
            Unsupported: A setting is fixed while the gateway runs.
        """
        if changes:
            level = _level_after(self._current(), changes)
            if level != self._level:
                self._set_level(level)
                self._level = level
        return self._current()

    def _current(self) -> dict[str, bool | int | str]:
        rank = _LEVELS.index(self._level)
        return {
            "log_file": "",
            _INFO: rank <= _LEVELS.index("info"),
            _WARNING: rank <= _LEVELS.index("warning"),
            _ERROR: True,
            _VERBOSE: int(self._level == "debug"),
            "log_format": self._form,
        }


def _level_after(current: Settings, changes: Settings) -> str:
    for key, value in changes.items():
        if key not in current:
            raise InvalidRequest(
                f"unknown log setting {key!r}; expected one of {', '.join(current)}"
            )
        if type(value) is not type(current[key]):
            expected = type(current[key]).__name__
            raise InvalidRequest(f"log setting {key!r} is {value!r}; expected type {expected}")
        if key in _FIXED and value != current[key]:
            raise Unsupported(
                f"log setting {key!r} is {current[key]!r} and cannot change while the gateway runs"
            )
    new = {**current, **changes}
    if _INFO in changes and not changes[_INFO] and _VERBOSE not in changes:
        new[_VERBOSE] = 0  # disabling info also disables verbose logging
    if new[_INFO] and not new[_WARNING]:
        raise InvalidRequest(f"{_WARNING} cannot be false while {_INFO} is true")
    if new[_VERBOSE] and not new[_INFO]:
        raise InvalidRequest(f"{_INFO} cannot be false while {_VERBOSE} is above 0")
    if new[_VERBOSE]:
        return "debug"
    if new[_INFO]:
        return "info"
    return "warning" if new[_WARNING] else "error"
