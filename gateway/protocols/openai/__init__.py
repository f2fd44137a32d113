"""The HTTP form of OpenAI for embeddings, completions and models, and of Cohere for rerank.

Read `http/codec.py` first. `options.py` describes the options of listeners and upstreams,
`declarations.py` what the configuration declares of a model.
"""

from collections.abc import Sequence
from typing import Final

from gateway.api.protocol import HttpBinding, ProtocolSpec, QuotaNote
from gateway.protocols.openai.declarations import read_declaration
from gateway.protocols.openai.http.codec import HttpCodec
from gateway.protocols.openai.options import check_options, process_options
from gateway.protocols.openai.paths import claims

_CLIENT_HEADERS = (
    "openai-organization",
    "openai-project",
    "x-stainless-arch",
    "x-stainless-helper-method",
    "x-stainless-lang",
    "x-stainless-os",
    "x-stainless-package-version",
    "x-stainless-retry-count",
    "x-stainless-runtime",
    "x-stainless-runtime-version",
    "x-stainless-timeout",
)
"""What OpenAI's own client for JavaScript sends, from web pages too."""

_VARYING = frozenset(
    {
        "id",
        "created",
        "system_fingerprint",
        "timings",
        "choices.message.tool_calls.id",
        "choices.delta.tool_calls.id",
        "usage.queue_time",
        "usage.prompt_time",
        "usage.completion_time",
        "usage.total_time",
    }
)
"""Ids, and times that some servers measure: those of llama.cpp and of Groq."""

# Quotas in the words of OpenAI's clients. Source: docs/protocols/openai.md, "8. Errors".
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


SPEC = ProtocolSpec(
    name="openai",
    title="OpenAI embeddings, rerank and completions",
    page="openai.md",
    http=HttpBinding(
        codec=HttpCodec,
        claims=claims,
        path_option="base",
        sets_root_path=True,
        quota_headers=quota_headers,
        request_headers=_CLIENT_HEADERS,
        response_headers=QUOTA_HEADERS,
    ),
    options=check_options,
    process_options=process_options,
    declaration=read_declaration,
    varying=_VARYING,
)
