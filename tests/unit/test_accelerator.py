"""Which build is in use: the environment and the presence of the extension decide."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gateway.accelerator import EXTENSION

_BUILD = "from gateway.accelerator import BUILD; print(BUILD)"
_ABSENT = f"import sys; sys.modules[{EXTENSION!r}] = None; "


def _printed(script: str, accelerator: str) -> str:
    environment = {**os.environ, "GATEWAY_ACCELERATOR": accelerator}
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, check=True, env=environment, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_extension_is_used_if_it_is_built() -> None:
    """No setting is needed to use it."""
    pytest.importorskip(EXTENSION, reason="the extension is not built: no C compiler")
    assert _printed(_BUILD, "") == "compiled"


def test_a_variable_selects_plain_python() -> None:
    """GATEWAY_ACCELERATOR=off disables an extension that is built."""
    assert _printed(_BUILD, "off") == "plain Python"


def test_without_the_extension_the_gateway_is_plain_python() -> None:
    """A missing extension is not an error, and the functions are those in Python."""
    name = "gateway.protocols.oip.json.templates"
    script = f"{_ABSENT}{_BUILD}; from {name} import split_holes; print(split_holes.__module__)"
    assert _printed(script, "") == f"plain Python\n{name}"
