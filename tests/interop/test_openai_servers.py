"""The real infinity, a server of OpenAI's form, behind the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.integration.cli_kit import get
from tests.interop.client import SCRIPTS, Client
from tests.interop.environments import environment
from tests.interop.gateways import serving
from tests.interop.servers.infinity.start import MODEL, WIDTH, prepare
from tests.interop.servers.process import RunningServer, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CONFIG = """
version: 1
listeners: [{{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}}]
admin: {{address: "off"}}
upstreams:
  infinity: {{url: "openai+http://{address}", options: {{max_inputs: 2}}}}
  healthy: {{url: "openai+http://{address}/v1", options: {{probe: health}}}}
  scores: {{url: "openai+http://{address}/v1", options: {{task: rerank}}}}
routes:
  - {{match: {{model: renamed}}, targets: [{{upstream: healthy, model: dummy}}]}}
  - {{match: {{model: scored}}, targets: [{{upstream: scores, model: dummy}}]}}
  - {{targets: [{{upstream: infinity}}]}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Run infinity."""
    with running("infinity", prepare, tmp_path_factory.mktemp("infinity")) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a gateway before infinity."""
    path = tmp_path_factory.mktemp("gateway") / "gateway.yaml"
    path.write_text(CONFIG.format(address=server.http_address))
    with serving(str(path)) as gateway:
        yield f"http://{gateway.addresses['main.http']}"


def texts(*values: str, name: str = "text") -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(values)], "data": list(values)}


@pytest.mark.parametrize("model", [MODEL, "renamed"])
def test_open_inference_reaches_infinity(url: str, model: str) -> None:
    """Five texts are three requests of at most two, and their rows come in order."""
    values = ("a", "bb", "ccc", "dddd", "eeeee")
    status, reply = get(f"{url}/v2/models/{model}/infer", {"inputs": [texts(*values)]})
    assert 200 == status, reply
    (output,) = reply["outputs"]
    assert ("embedding", "FP32", [5, WIDTH]) == (
        output["name"],
        output["datatype"],
        output["shape"],
    )
    rows = np.array(output["data"]).reshape(5, WIDTH)
    assert [[number] * WIDTH for number in range(1, 6)] == rows.tolist()


def test_its_models_are_listed_and_described(url: str) -> None:
    """Readiness, the index and the made metadata are those of the server and of its task."""
    assert 200 == get(f"{url}/v2/models/{MODEL}/ready")[0]
    status, listed = get(f"{url}/v1/models")
    assert (200, [MODEL, "renamed", "scored"]) == (status, [each["id"] for each in listed["data"]])
    status, found = get(f"{url}/v2/models/{MODEL}")
    assert 200 == status
    assert [("text", "BYTES", [-1])] == [
        (each["name"], each["datatype"], each["shape"]) for each in found["inputs"]
    ]


def test_a_model_that_it_does_not_list_is_unknown(url: str) -> None:
    """Infinity itself answers an unknown name with 400."""
    status, reply = get(f"{url}/v2/models/absent/infer", {"inputs": [texts("a")]})
    assert 404 == status
    assert "absent" in reply["error"]


def test_a_task_that_it_does_not_have_is_an_error_of_the_request(url: str) -> None:
    """The text of its 400 reaches the client."""
    inputs = [texts("q", name="query"), texts("a", name="document")]
    status, reply = get(f"{url}/v2/models/scored/infer", {"inputs": inputs})
    assert 400 == status
    assert "rerank" in reply["error"]


def test_the_real_client_reaches_infinity(url: str) -> None:
    """Both encodings pass, with its count of tokens."""
    script = SCRIPTS / "openai_embeddings.py"
    seen = Client(environment("openai")).run(script, url, MODEL)
    assert [[3.0] * WIDTH, [1.0] * WIDTH] == seen["base64"]
    assert seen["base64"] == seen["float"]
    assert 0 < seen["tokens"]
