"""What makes an HTTP request ask for a stream of answers, and how the stream is labelled.

Source: docs/protocols/grps.md, "10. Streams over HTTP".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.wire.http import Headers

QUERY, HEADER, BODY = "query_param", "header_param", "body_param"
_MODES: Final = (QUERY, HEADER, BODY)


@dataclass(frozen=True, slots=True)
class Streaming:
    """The switch of streams.

    Attributes:
        mode: Where it is: in the query, in a header, or in the JSON body.
        key: Its name there.
        content_type: Of the answer.
    """

    mode: str = QUERY
    key: str = "streaming"
    content_type: str = "application/octet-stream"

    def asked(
        self, query: Mapping[str, str], headers: Headers, body: Mapping[str, Any] | None
    ) -> bool:
        """Tell whether a request asks for a stream.

        In query and header the word is "true" in any case; in the body only the boolean counts.
        """
        if self.mode == BODY:
            return body is not None and body.get(self.key) is True
        found = query.get(self.key) if self.mode == QUERY else headers.get(self.key.lower())
        return found is not None and found.lower() == "true"


def read_streaming(key: str, value: Any) -> Streaming:
    """Read the option of this name.

    Raises:
        ValueError: A key or value is not one of ours.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} is {value!r}, needed is a mapping of mode, key and content_type")  # noqa: TRY004
    for name, entry in value.items():
        if name not in ("mode", "key", "content_type"):
            raise ValueError(f"{key} has no option {name!r}, only mode, key and content_type")
        if not isinstance(entry, str) or not entry.isascii() or not entry.isprintable():
            raise ValueError(f"{key}.{name} is {entry!r}, needed is printable ASCII text")
    found = Streaming(**value)
    if found.mode not in _MODES:
        raise ValueError(f"{key}.mode {found.mode!r} is none of {', '.join(_MODES)}")
    return found
