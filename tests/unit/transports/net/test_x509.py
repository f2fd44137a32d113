"""What the gateway reads of certificates."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.transports.net.x509 import certificates_in, dns_names, valid_until


def certificate(end: datetime, *extensions: Any) -> bytes:
    """Return a self-signed certificate in DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "h" * 60)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1 << 150)
        .not_valid_before(datetime(1990, 1, 1, tzinfo=UTC))
        .not_valid_after(end)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize("year", [1999, 2049, 2050, 9998])
def test_reads_the_end_of_both_forms_of_time(year: int) -> None:
    """Until 2049 a year has two digits, from 2050 on four (RFC 5280 4.1.2.5)."""
    end = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    assert end.timestamp() == valid_until(certificate(end))


def test_reads_dns_names() -> None:
    """Other names, and certificates without names, have none."""
    end = datetime(2040, 1, 1, tzinfo=UTC)
    names = [
        x509.DNSName("A.example"),
        x509.UniformResourceIdentifier("spiffe://x/y"),
        x509.DNSName("*.b.example"),
    ]
    found = certificate(
        end,
        x509.BasicConstraints(ca=False, path_length=None),
        x509.SubjectAlternativeName(names),
    )
    assert ["a.example", "*.b.example"] == dns_names(found)
    assert [] == dns_names(certificate(end))


def test_reads_all_certificates_of_a_file() -> None:
    """Text between them is ignored."""
    pems = [trustme.CA().cert_pem.bytes() for _ in range(2)]
    found = certificates_in(b"first\n" + pems[0] + b"second\n" + pems[1])
    expected = [x509.load_pem_x509_certificate(each).public_bytes(Encoding.DER) for each in pems]
    assert expected == found


def test_damaged_certificates_are_refused() -> None:
    """Each prefix of a certificate, and other data, is an error and no crash."""
    whole = certificate(datetime(2040, 1, 1, tzinfo=UTC))
    for damaged in (b"", b"\x30\x00", b"\x30\x82", *(whole[:size] for size in range(len(whole)))):
        with pytest.raises(ValueError, match=r"not an X\.509 certificate"):
            valid_until(damaged)
