"""The runtime of KServe with KServe's own client, over the one port that the runtime has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli_kit import free_port
from tests.integration.migration.kserve_kit import ONNX, rendered, serving
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_the_client_of_kserve_needs_one_port(tmp_path: Path) -> None:
    """Its REST client and its gRPC client get the same replies from one address."""
    folder, port = tmp_path / "models" / "1", free_port()
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(ONNX)
    words = rendered("runtime.yaml", "digits", model_dir=str(folder.parent), http_port=str(port))
    with serving(*words):
        client = Client(environment("kserve"))
        found = client.run(SCRIPTS / "kserve_client.py", f"127.0.0.1:{port}", "digits")
    assert [[True, True, True, [[3.0, 4.0]]]] * 2 == found
