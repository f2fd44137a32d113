"""How to start TorchServe with the models of `handler.py`; it needs Java."""

import json
import zipfile
from pathlib import Path

from tests.interop.environments import environment
from tests.interop.programs import program
from tests.interop.servers.process import Command, Ports, free_ports

MODELS = ("digits", "add_sub", "raw", "columns", "fail")


def prepare(folder: Path, ports: Ports) -> Command:
    """Write the archives into *folder* and return the command that serves them."""
    venv = environment("torchserve")
    site = next((venv / "lib").glob("python*/site-packages"))
    # No model has tensors of torch: an empty module stands in for it.
    stub = folder / "stub" / "torch"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("class Tensor: pass\n")
    store = folder / "store"
    store.mkdir()
    for name in MODELS:
        write_archive(store / f"{name}.mar", name)
    properties = {
        "inference_address": f"http://127.0.0.1:{ports.http}",
        "management_address": f"http://127.0.0.1:{ports.http}",
        "metrics_address": f"http://127.0.0.1:{ports.metrics}",
        "grpc_inference_port": ports.grpc,
        "grpc_management_port": free_ports().grpc,
        "grpc_inference_address": "127.0.0.1",
        "grpc_management_address": "127.0.0.1",
        "disable_token_authorization": "true",
        "default_workers_per_model": 1,
        "model_store": store,
        "load_models": ",".join([f"{name}.mar" for name in MODELS]),
        "number_of_netty_threads": 2,
    }
    lines = [f"{key}={value}" for key, value in properties.items()]
    (folder / "config.properties").write_text("\n".join(lines))
    python = venv / "bin" / "python"
    words = (
        program("java"),
        "-Xmx256m",
        f"-Dmodel_server_home={site}",
        f"-Djava.io.tmpdir={folder}",
        *("-cp", f"{site}/ts/frontend/*", "org.pytorch.serve.ModelServer"),
        *("--python", str(python), "-f", "config.properties", "-ncs", "-s", "store"),
    )
    variables = {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(stub.parent)}
    return Command(words, folder, variables, ready_path="/ping")


def write_archive(path: Path, name: str) -> None:
    """Write a model archive."""
    model = {"modelName": name, "handler": "handler.py:handle", "modelVersion": "1.0"}
    manifest = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(Path(__file__).with_name("handler.py"), "handler.py")
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
