"""Quotas in the words of OpenAI's clients.

Source: docs/protocols/openai.md, "8. Errors".
"""

from collections.abc import Sequence
from typing import Final

from gateway.api.protocol import QuotaNote

_KINDS: Final = {"calls": "requests", "elements": "tokens"}


QUOTA_HEADERS: Final = tuple(
    f"x-ratelimit-{name}-{kind}"
    for kind in _KINDS.values()
    for name in ("limit", "remaining", "reset")
)
"""The headers of `quota_headers`."""


def quota_headers(notes: Sequence[QuotaNote]) -> tuple[tuple[str, str], ...]:
    """Return `x-ratelimit-*` of the quotas of calls and of elements, of each the shortest."""
    found: list[tuple[str, str]] = []
    for unit, kind in _KINDS.items():
        of_unit = [note for note in notes if note.unit == unit]
        if of_unit:
            note = min(of_unit, key=lambda each: each.left)
            found += [
                (f"x-ratelimit-limit-{kind}", str(note.limit)),
                (f"x-ratelimit-remaining-{kind}", str(note.left)),
                (f"x-ratelimit-reset-{kind}", duration_text(note.reset_s)),
            ]
    return tuple(found)


def duration_text(seconds: int) -> str:
    """Return a duration as OpenAI writes it: `1s`, `6m0s`, `1h0m0s`."""
    minutes, left = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{left}s"
    return f"{minutes}m{left}s" if minutes else f"{left}s"
