"""The address of the admin port on the command line of the migration kit."""

from __future__ import annotations

import pytest

from tests.integration.test_tls_commands import check_address


@pytest.mark.parametrize(
    "words",
    [
        ["capture", "start", "m", "127.0.0.1:1"],
        ["capture", "stop", "127.0.0.1:1"],
        ["capture", "status", "127.0.0.1:1"],
        ["cutover", "status", "m", "127.0.0.1:1"],
        ["stock", "127.0.0.1:1"],
        ["advise", "m", "127.0.0.1:1"],
    ],
)
def test_commands_take_the_address_as_an_argument(words: list[str]) -> None:
    """Nothing listens at port 1, which the error names; so does `--admin`."""
    check_address(words)
