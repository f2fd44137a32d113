"""How an HTTP request selects a stream of responses, and the stream's content type.

Source: docs/protocols/grps.md, "10. Streams over HTTP".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.wire.http import Headers
from gateway.wire.options import Reader, mapping, matching, one_of, read_values

QUERY, HEADER, BODY = "query_param", "header_param", "body_param"


@dataclass(frozen=True, slots=True)
class Streaming:
    """The switch of streams.

    Attributes:
        mode: Its place: in the query, in a header, or in the JSON body.
        key: Its name.
        content_type: The content type of the response.
    """

    mode: str = QUERY
    key: str = "streaming"
    content_type: str = "application/octet-stream"

    def is_requested(
        self, query: Mapping[str, str], headers: Headers, body: Mapping[str, Any] | None
    ) -> bool:
        """Return whether a request selects a stream.

        In query and header the value is "true" in any case; in the body only the boolean counts.
        """
        if self.mode == BODY:
            return body is not None and body.get(self.key) is True
        found = query.get(self.key) if self.mode == QUERY else headers.get(self.key.lower())
        return found is not None and found.lower() == "true"


def read_streaming(key: str, value: Any) -> Streaming:
    """Read the option of this name.

    Raises:
        ValueError: A key does not exist, or a value is wrong.
    """
    return Streaming(**read_values(key, STREAMING_READERS, mapping(key, value), f"{key}."))


_ASCII: Final = matching(re.compile("[ -~]*"), "printable ASCII text")

STREAMING_READERS: Final[Mapping[str, Reader]] = {
    "mode": one_of(QUERY, HEADER, BODY),
    "key": _ASCII,
    "content_type": _ASCII,
}
