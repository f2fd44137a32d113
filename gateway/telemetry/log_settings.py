"""The gateway's own log in the words of Triton's logging extension.

Levels come one above the other: whoever hears of information hears of warnings. Errors are always
logged, where and in which form the configuration says.

Source: docs/protocols/open-inference.md, "14. Models, statistics and settings".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.ir.errors import InvalidRequest, Unsupported

Settings = Mapping[str, bool | int | str]

_LEVELS = ("debug", "info", "warning", "error")
_VERBOSE, _INFO, _WARNING, _ERROR = "log_verbose_level", "log_info", "log_warning", "log_error"
_FIXED = ("log_file", "log_format", _ERROR)


class LogSettings:
    """What the gateway logs, as settings that can be read and changed.

    Args:
        level: From which it logs now.
        form: "console" or "json"; told only.
        set_level: Makes another level hold.
    """

    def __init__(self, level: str, form: str, set_level: Callable[[str], None]) -> None:
        self._level = level
        self._form = form
        self._set_level = set_level

    def __call__(self, changes: Settings) -> Settings:
        """Make *changes* and return all settings.

        Raises:
            InvalidRequest: A setting does not exist, has a wrong type or contradicts another.
            Unsupported: It cannot be changed while the gateway runs.
        """
        if changes:
            level = _level_after(self._told(), changes)
            if level != self._level:
                self._set_level(level)
                self._level = level
        return self._told()

    def _told(self) -> dict[str, bool | int | str]:
        rank = _LEVELS.index(self._level)
        return {
            "log_file": "",
            _INFO: rank <= _LEVELS.index("info"),
            _WARNING: rank <= _LEVELS.index("warning"),
            _ERROR: True,
            _VERBOSE: int(self._level == "debug"),
            "log_format": self._form,
        }


def _level_after(told: Settings, changes: Settings) -> str:
    for key, value in changes.items():
        if key not in told:
            raise InvalidRequest(f"there is no log setting {key!r}, only {', '.join(told)}")
        if type(value) is not type(told[key]):
            needed = type(told[key]).__name__
            raise InvalidRequest(f"log setting {key!r} is {value!r}, needed is a {needed}")
        if key in _FIXED and value != told[key]:
            raise Unsupported(f"log setting {key!r} is {told[key]!r} while the gateway runs")
    wanted = {**told, **changes}
    if _INFO in changes and not changes[_INFO] and _VERBOSE not in changes:
        wanted[_VERBOSE] = 0  # whoever wants less than before wants no details either
    if wanted[_INFO] and not wanted[_WARNING]:
        raise InvalidRequest(
            f"{_WARNING} is false and {_INFO} true: warnings come with information"
        )
    if wanted[_VERBOSE] and not wanted[_INFO]:
        raise InvalidRequest(f"{_INFO} is false and {_VERBOSE} above 0: information comes with it")
    if wanted[_VERBOSE]:
        return "debug"
    if wanted[_INFO]:
        return "info"
    return "warning" if wanted[_WARNING] else "error"
