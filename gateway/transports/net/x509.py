"""Reads what the gateway needs of an X.509 certificate: how long it is valid, and its DNS names.

OpenSSL has verified the encoding before, and decides everything else.

Source: RFC 5280 4.1, and X.690 8 for the encoding.
"""

import re
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_DNS_NAME: Final = 0x82
_UTC_TIME: Final = 0x17
_ALTERNATIVE_NAMES: Final = bytes.fromhex("551d11")  # 2.5.29.17
_LONG: Final = 0x80
_PIVOT_YEAR: Final = 50  # RFC 5280 4.1.2.5.1


def certificates_in(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM file, each in DER, in the order of the file."""
    text = pem.decode("ascii", "replace")
    return [ssl.PEM_cert_to_DER_cert(found[0]) for found in _PEM.finditer(text)]


def valid_until(certificate: bytes) -> float:
    """Return until when a certificate in DER is valid, in seconds since the epoch.

    Raises:
        ValueError: It is not a certificate.
    """
    validity = _fields(certificate)[3][1]
    tag, text = list(_elements(validity))[1]
    digits = text.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("20" if int(digits[:2]) < _PIVOT_YEAR else "19") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def dns_names(certificate: bytes) -> list[str]:
    """Return the DNS names that a certificate in DER is for, in lower case, wildcards too.

    Raises:
        ValueError: It is not a certificate.
    """
    for tag, content in _fields(certificate):
        if tag != _EXTENSIONS:
            continue
        for _, extension in _elements(_first(content)[1]):
            parts = list(_elements(extension))
            if parts[0][1] == _ALTERNATIVE_NAMES:
                names = _first(parts[-1][1])[1]
                found = [name for kind, name in _elements(names) if kind == _DNS_NAME]
                return [name.decode("ascii", "replace").lower() for name in found]
    return []


def _fields(certificate: bytes) -> list[tuple[int, bytes]]:
    """Return the fields of the signed part: serial number, algorithm, issuer, validity, ..."""
    tag, signed = _first(_first(certificate)[1])
    fields = [each for each in _elements(signed) if each[0] != _VERSION]
    if tag != _SEQUENCE or len(fields) < 6:  # noqa: PLR2004  # up to the public key
        raise ValueError("not an X.509 certificate")
    return fields


def _first(data: bytes) -> tuple[int, bytes]:
    for element in _elements(data):
        return element
    raise ValueError("not an X.509 certificate: an element is empty")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element that follows another in *data*."""
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("not an X.509 certificate: an element is cut")
        tag, length, start = data[at], data[at + 1], at + 2
        if length >= _LONG:
            size = length - _LONG
            length = int.from_bytes(data[start : start + size], "big")
            start += size
        at = start + length
        if at > len(data):
            raise ValueError("not an X.509 certificate: an element is cut")
        yield tag, data[start:at]
