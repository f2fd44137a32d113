"""`gateway kserve`: the command lines of `deploy/kserve` as KServe renders them, and the forms of a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from gateway.config.load import LoadedConfig
from gateway.migration.importers.model_folder import NoModels, models_in
from tests.integration import cli_kit
from tests.integration.cli_kit import free_port, get
from tests.integration.http2_kit import h2_client
from tests.integration.migration.kserve_kit import BODY, CONFIG, ONNX, rendered, serving
from tests.integration.workers_kit import eventually

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def port() -> int:
    return free_port()


def url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


def as_file(folder: Path) -> None:
    folder.write_bytes(ONNX)


def in_folder(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.onnx").write_bytes(ONNX)


def versions(folder: Path) -> None:
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(ONNX)


def configured_versions(folder: Path) -> None:
    versions(folder)
    (folder / "config.pbtxt").write_text(CONFIG)


def repository(folder: Path) -> None:
    versions(folder / "digits")
    configured_versions(folder / "other")


FORMS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "a file": (as_file, {"digits"}),
    "a file in a folder": (in_folder, {"digits"}),
    "versions": (versions, {"digits"}),
    "versions with a configuration": (configured_versions, {"digits"}),
    "several models": (repository, {"digits", "other"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_folder_has_its_models(tmp_path: Path, form: str) -> None:
    """Links are followed, and a model that is alone has the name of the service."""
    write, names = FORMS[form]
    write(tmp_path / "content.onnx")
    folder = tmp_path / "models"
    folder.symlink_to(tmp_path / "content.onnx")
    assert names == models_in(folder, "digits").models.keys()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    """An absent folder, an empty one, and one with several files have none."""
    with pytest.raises(NoModels, match="cannot be read: No such file"):
        models_in(tmp_path / "absent", "m")
    with pytest.raises(NoModels, match=r"has no model; expected model.onnx, N/model.onnx or"):
        models_in(tmp_path, "m")
    for name in "ab":
        (tmp_path / f"{name}.onnx").touch()
    with pytest.raises(NoModels, match=r"has 2 model files: a.onnx, b.onnx; expected one"):
        models_in(tmp_path, "m")


@pytest.mark.parametrize("workers", [1, 2])
async def test_one_port_serves_http_grpc_and_metrics(
    tmp_path: Path, port: int, workers: int
) -> None:
    """The command line of the runtime serves the model under the name of the service."""
    repository(tmp_path / "models")
    words = rendered(
        "runtime.yaml",
        "digits",
        model_dir=str(tmp_path / "models"),
        http_port=str(port),
        workers=str(workers),
        enable_docs_url="true",
    )
    with serving(*words) as running:
        assert any("--enable_docs_url=true" in line for line in running.log)
        address = f"127.0.0.1:{port}"
        status, reply = get(url(port, "/v2/models/digits/infer"), BODY)
        assert (200, [3.0, 4.0]) == (status, reply["outputs"][0]["data"])
        assert 200 == get(url(port, "/v2/models/other/ready"))[0]
        rows = {"instances": [[1.5, 2]]}
        assert (200, {"predictions": [[3.0, 4.0]]}) == get(
            url(port, "/v1/models/digits:predict"), rows
        )
        assert get(url(port, "/"))[1] == {"status": "alive"}
        with grpc.insecure_channel(address) as channel:
            ready = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
            assert b"\x08\x01" == ready(b"\x0a\x06digits", timeout=60)
        async with h2_client(address) as client:
            page = await client.ask("GET", "/metrics")
            assert (200, True) == (page.status, b"gateway_requests_total" in bytes(page.body))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_late_folder_is_served_when_it_rests(tmp_path: Path, port: int, workers: int) -> None:
    """Before it comes the gateway is live and not ready, and a part of it changes nothing."""
    folder = tmp_path / "models"
    words = rendered(
        "runtime.yaml",
        "digits",
        model_dir=str(folder),
        http_port=str(port),
        workers=str(workers),
    )
    with serving(*words) as running:
        assert 200 == get(url(port, "/v2/health/live"))[0]
        assert 200 != get(url(port, "/v2/health/ready"))[0]
        assert 200 != get(url(port, "/v2/models/digits/infer"), BODY)[0]
        part = tmp_path / "content" / "1"
        part.mkdir(parents=True)
        folder.symlink_to(tmp_path / "content")
        eventually(lambda: sum("no model yet" in line for line in running.log) >= 1)
        assert 200 != get(url(port, "/v2/health/ready"))[0]
        (part / "model.onnx").write_bytes(ONNX)
        # Workers get the models one after the other; the event comes after the last one.
        eventually(lambda: any("configuration reloaded" in line for line in running.log))
        assert 200 == get(url(port, "/v2/health/ready"))[0]
        status, reply = get(url(port, "/v2/models/digits/infer"), BODY)
        assert (200, [3.0, 4.0]) == (status, reply["outputs"][0]["data"])


def test_a_broken_model_is_tried_again_when_it_has_changed(tmp_path: Path, port: int) -> None:
    """The gateway stays live, and not ready."""
    folder = tmp_path / "models"
    words = rendered("runtime.yaml", "digits", model_dir=str(folder), http_port=str(port))
    with serving(*words) as running:
        in_folder(folder)
        (folder / "model.onnx").write_bytes(b"broken")
        eventually(lambda: any("configuration not reloaded" in line for line in running.log))
        assert 200 == get(url(port, "/v2/health/live"))[0]
        assert 200 != get(url(port, "/v2/health/ready"))[0]
        (folder / "model.onnx").write_bytes(ONNX)
        eventually(lambda: get(url(port, "/v2/health/ready"))[0] == 200)


@pytest.mark.parametrize(
    ("file", "protocol"),
    [("transformer.yaml", "v2"), ("transformer.yaml", "grpc-v2"), ("sidecar.yaml", "grpc-v2")],
)
def test_a_transformer_calls_the_predictor(
    tmp_path: Path, port: int, file: str, protocol: str
) -> None:
    """Either protocol leads to the server that KServe names."""
    in_folder(tmp_path / "models")
    behind = free_port()
    predictor = rendered(
        "runtime.yaml", "m", model_dir=str(tmp_path / "models"), http_port=str(behind)
    )
    words = rendered(
        file,
        "m",
        http_port=str(port),
        predictor_host=f"127.0.0.1:{behind}",
        predictor_protocol=protocol,
    )
    with serving(*predictor), serving(*words):
        eventually(lambda: get(url(port, "/v2/health/ready"))[0] == 200)
        status, reply = get(url(port, "/v2/models/m/infer"), BODY)
        assert (200, [3.0, 4.0]) == (status, reply["outputs"][0]["data"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--predictor_host=h", "--predictor_protocol=v3"), "--predictor_protocol is 'v3'"),
        (("--predictor_host=h", "--predictor-use-ssl=maybe"), "--predictor_use_ssl is 'maybe'"),
        (("--workers=0",), "greater than or equal to 1"),
        (("--workers", "0"), "greater than or equal to 1"),
        (("--workers=257",), "less than or equal to 256"),
    ],
)
def test_wrong_arguments_are_refused(words: tuple[str, ...], text: str) -> None:
    """The error names the argument and what was found."""
    done = cli_kit.gateway("kserve", *words)
    assert 2 == done.returncode
    assert text in done.stderr


def test_a_transformer_called_one_of_several_predictors(monkeypatch: pytest.MonkeyPatch) -> None:
    """KServe's Services are headless by default, so that all addresses of the predictor count."""
    loaded: list[LoadedConfig] = []

    def run(load: Callable[[], LoadedConfig]) -> int:
        loaded.append(load())
        return 0

    monkeypatch.setattr("gateway.migration.commands.kserve.run_loaded", run)
    words = ["--predictor_host=fraud-predictor.default", "--predictor_protocol=grpc-v2"]
    CliRunner().invoke(command_line(["kserve"]), ["kserve", *words])
    (upstream,) = loaded[0].config.upstreams.values()
    assert ("all", "fraud-predictor.default") == (upstream.resolve, upstream.all_urls[0].host)


def test_a_port_of_its_own_for_grpc(tmp_path: Path, port: int) -> None:
    """KServe's servers have two; with --grpc_port there are two here."""
    in_folder(tmp_path / "models")
    other = free_port()
    more: dict[str, Any] = {"grpc_port": str(other), "model_dir": str(tmp_path / "models")}
    with (
        serving(*rendered("runtime.yaml", "digits", http_port=str(port), **more)),
        grpc.insecure_channel(f"127.0.0.1:{other}") as channel,
    ):
        ready = channel.unary_unary("/inference.GRPCInferenceService/ModelReady")
        assert b"\x08\x01" == ready(b"\x0a\x06digits", timeout=60)
