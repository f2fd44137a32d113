"""When the TLS files of a process are read, and what is said of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme

from gateway.transports.net.certificates import Certificates
from gateway.transports.net.tls import ServerTls
from gateway.transports.net.tls_files import TlsFiles
from tests.fakes import FakeClock
from tests.integration.tls_kit import write_pair

_DAY_S = 86_400


def files_in(folder: Path) -> TlsFiles:
    tls = ServerTls(cert=str(folder / "server.pem"), key=str(folder / "server.key"))
    return TlsFiles("listener main", tls)


def counted(certificates: Certificates) -> dict[str, float]:
    """Return the counts of renewals by outcome."""
    found = next(iter(certificates.collect())).samples
    return {each.labels["outcome"]: each.value for each in found}


def logged(lines: list[Any], event: str) -> list[Any]:
    return [each for each in lines if each["event"] == event]


async def test_a_half_written_pair_is_an_error_after_five_seconds(tmp_path: Path) -> None:
    """Until then it is tried again without a word, and the old pair serves."""
    authority, clock = trustme.CA(), FakeClock()
    write_pair(tmp_path, authority)
    files = files_in(tmp_path)
    certificates = Certificates(lambda: [files], clock=clock)
    old, key = files.contents, (tmp_path / "server.key").read_bytes()
    write_pair(tmp_path, authority)
    new = (tmp_path / "server.key").read_bytes()
    (tmp_path / "server.key").write_bytes(key)
    with structlog.testing.capture_logs() as lines:
        for seconds, errors in ((0, 0), (4.9, 0), (0.2, 1), (60, 1)):
            clock.advance(seconds)
            await certificates.renew()
            assert errors == len(logged(lines, "TLS files not replaced"))
    assert old == files.contents
    assert {"failed": 1} == counted(certificates)
    (tmp_path / "server.key").write_bytes(new)
    await certificates.renew()
    assert old != files.contents
    assert {"failed": 1, "applied": 1} == counted(certificates)
    assert ["listener main"] == certificates.take_replaced()
    assert [] == certificates.take_replaced()


@pytest.mark.parametrize(("days", "is_warned"), [(15, False), (13, True), (-1, True)])
async def test_certificates_are_reported_from_fourteen_days_ahead(
    days: int, is_warned: bool, tmp_path: Path
) -> None:
    """The log has a line a day, and the status always has one."""
    pair = trustme.CA().issue_cert("h", not_after=datetime.now(UTC) + timedelta(days=days))
    (tmp_path / "server.pem").write_bytes(pair.cert_chain_pems[0].bytes())
    (tmp_path / "server.key").write_bytes(pair.private_key_pem.bytes())
    clock = FakeClock()
    files = files_in(tmp_path)
    certificates = Certificates(lambda: [files], clock=clock)
    with structlog.testing.capture_logs() as lines:
        for seconds in (0, 3600, _DAY_S):
            clock.advance(seconds)
            certificates._warn()
    assert 2 * is_warned == len(logged(lines, "certificate expires"))
    assert is_warned == any(
        each["file"] == str(tmp_path / "server.pem") for each in certificates.with_warnings([])
    )
