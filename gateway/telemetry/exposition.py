"""The metrics page: Prometheus' text format, or OpenMetrics."""

import re
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

# Triton's counters have no `_total`, and a counter of OpenMetrics must have it: there they are
# unknown.
_TRITON: Final = re.compile(rb"^(# TYPE nv_\w+) untyped$", re.MULTILINE)


def encode_page(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the page and its content type, in a format that the header *accept* allows."""
    encode, content_type = choose_encoder(accept)
    page: bytes = encode(registry)
    return _TRITON.sub(rb"\1 counter", page), content_type
