"""The options that a listener or an upstream may set.

Source: docs/protocols/openai.md, "9. Configuration".
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.protocols.openai.paths import DEFAULT_PREFIXES
from gateway.wire.options import Reader, list_of, matching, number, one_of, read_values, text, wrong

REFUSE, IGNORE = "refuse", "ignore"
EMBEDDINGS, RERANK, COMPLETIONS = "embeddings", "rerank", "completions"
MODELS, HEALTH, NONE = "models", "health", "none"
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~!$&'()*+,;=:@-]+)*")
_BASE: Final = re.compile(r"/[!\"$->@-~]*")
_MOST_PREFIXES: Final = 16
_MOST_INPUTS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiOptions:
    """The options, typed.

    Attributes:
        prefixes: Listener: what may stand before `/v1` and `/v2`.
        owned_by: Listener: `owned_by` of each model.
        unknown_members: Listener: whether members that do not exist are refused or ignored.
        created: Listener: when the process started, seconds since 1970.
        task: Upstream: what its models do.
        max_inputs: Upstream: most inputs of one request.
        probe: Upstream: how its readiness is found out.
        base: Upstream: what stands before each path, without a slash at its end.
    """

    prefixes: tuple[str, ...] = DEFAULT_PREFIXES
    owned_by: str = "tensor-gateway"
    unknown_members: str = REFUSE
    created: int = 0
    task: str = EMBEDDINGS
    max_inputs: int = 2048
    probe: str = MODELS
    base: str = "/v1"


def check_options(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return *options* unchanged.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    read_values("openai", _READERS, options)
    return options


def read_options(options: Mapping[str, Any]) -> OpenAiOptions:
    """Return *options*, typed; those of the process too.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return OpenAiOptions(**read_values("openai", {**_READERS, **_OF_PROCESS}, options))


def process_options(_number: int, _count: int, /) -> Mapping[str, Any]:
    """Return when the process started, which all models have as their time of creation."""
    return {"created": int(time.time())}  # noqa: TID251  # a time of day, which clients show


def _prefixes(key: str, value: Any) -> tuple[str, ...]:
    found: tuple[str, ...] = list_of(
        matching(_PREFIX, "a path that begins with '/' and does not end with it, or nothing")
    )(key, value)
    if not found or len(found) > _MOST_PREFIXES or len(set(found)) < len(found):
        raise wrong(key, value, f"a list of 1 to {_MOST_PREFIXES} prefixes, each of them once")
    return found


def _base(key: str, value: Any) -> str:
    found: str = matching(_BASE, "a path of printable ASCII that begins with '/'")(key, value)
    return found.rstrip("/")


_READERS: Final[Mapping[str, Reader]] = {
    "prefixes": _prefixes,
    "owned_by": text,
    "unknown_members": one_of(REFUSE, IGNORE),
    "task": one_of(EMBEDDINGS, RERANK, COMPLETIONS),
    "max_inputs": number(1, _MOST_INPUTS),
    "probe": one_of(MODELS, HEALTH, NONE),
    "base": _base,
}
_OF_PROCESS: Final[Mapping[str, Reader]] = {"created": number(0, 1 << 40)}
