"""Values of JSON in another form than usual, with nothing lost: 1.0 for 1, base64 in lines."""

import base64
from typing import Any

from gateway.ir.values.doubles import MOST_EXACT


def whole_number(value: Any) -> Any:
    """Return a float without a fraction, up to 2**53, as an integer; anything else as it is."""
    is_whole = type(value) is float and value.is_integer() and abs(value) <= MOST_EXACT
    return int(value) if is_whole else value


def base64_bytes(text: str) -> bytes:
    """Decode base64, which may have ends of lines and blanks, as programs write it.

    Raises:
        ValueError: It is no base64.
    """
    return base64.b64decode("".join(text.split()), validate=True)
