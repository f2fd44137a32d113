"""Patterns of names in the configuration: `*`, `?` and `[...]`, with the case as it is."""

import fnmatch
import re
from collections.abc import Callable, Iterable

Matches = Callable[[str], bool]


def globs(patterns: Iterable[str]) -> Matches:
    """Return a function that tells whether a text matches one of *patterns*."""
    # The patterns of `translate` do not backtrack exponentially on any input.
    match = re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)").match
    return lambda text: match(text) is not None
