"""`gateway import torchserve`: a gateway before the server, with what its archives tell."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from gateway.cli.configuration import load_checked_mapping
from gateway.migration.importers.torchserve_properties import import_torchserve

PROPERTIES = """\
# the server
inference_address=http://0.0.0.0:8085
management_address = http://127.0.0.1:8081
grpc_inference_port: 7075
model_store=store
load_models=cat.mar,dog=hound.mar
models={\\
  "cat": {\\
    "blue": {"minWorkers": 1}\\
  }\\
}
max_request_size=1000000
default_response_timeout=30
service_envelope=json
certificate_file=cert.pem
enable_model_api=true
number_of_netty_threads=2
"""


def archive(path: Path, **model: str) -> Path:
    document = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("MAR-INF/MANIFEST.json", json.dumps(document))
    return path


def test_the_server_stays_behind_the_gateway(tmp_path: Path) -> None:
    """The gateway has its ports, its limits, and its models with their versions."""
    (tmp_path / "store").mkdir()
    handler = "image_classifier"
    archive(tmp_path / "store" / "cat.mar", modelName="cat", handler=handler, modelVersion="1.0")
    archive(tmp_path / "store" / "hound.mar", modelName="hound", handler="h.py:handle")
    file = tmp_path / "config.properties"
    file.write_text(PROPERTIES)
    found = import_torchserve(file)
    load_checked_mapping(found.config)
    (listener,) = found.config["listeners"]
    assert (listener["http"], listener["grpc"]) == ("0.0.0.0:8085", "127.0.0.1:7075")
    assert listener["limits"] == {"message_bytes": 1_000_000}
    assert found.config["upstreams"] == {
        "torchserve": {"url": "torchserve+http://127.0.0.1:18085"},
        "torchserve_grpc": {"url": "torchserve+grpc://127.0.0.1:17075"},
    }
    assert found.config["policies"] == {"timeout": "30s"}
    models = {"model": ["cat", "dog"]}
    matches = [route["match"] for route in found.config["routes"]]
    assert matches == [{"protocol": "torchserve.grpc", **models}, models]
    declared = {
        name: model["protocols"]["torchserve"] for name, model in found.config["models"].items()
    }
    assert declared == {
        "cat": {"envelope": "json", "version_map": {"blue": "2"}},
        "dog": {"envelope": "json"},
    }
    texts = [str(each) for each in found.unmapped]
    assert any("config.properties:15: 'certificate_file': TLS" in text for text in texts)
    assert any("asks for a token" in text for text in texts)
    assert any("cat.mar:1: model 'cat'" in text for text in texts)
    assert not any("netty" in text for text in texts)


def test_an_archive_alone_has_its_model(tmp_path: Path) -> None:
    """A stock handler tells what its body is; a folder may hold several archives."""
    path = archive(tmp_path / "t.mar", modelName="t", handler="text_classifier", modelVersion="2.0")
    found = import_torchserve(path)
    load_checked_mapping(found.config)
    assert found.config["models"] == {"t": {"protocols": {"torchserve": {"request": "text"}}}}
    unpacked = tmp_path / "plain" / "MAR-INF"
    unpacked.mkdir(parents=True)
    (unpacked / "MANIFEST.json").write_text('{"model": {"modelName": "p"}}')
    assert set(import_torchserve(tmp_path).config["models"]) == {"p", "t"}


def test_a_model_whose_server_batches_has_one_item_in_a_request(tmp_path: Path) -> None:
    """A batch of 1, or of no number, says nothing."""
    models = {"owl": {"1.0": {"batchSize": 4}}, "cat": {"1.0": {"batchSize": 1}, "2.0": 7}}
    file = tmp_path / "config.properties"
    file.write_text(f"models={json.dumps(models)}\n")
    found = import_torchserve(file)
    load_checked_mapping(found.config)
    declared = {
        name: model["protocols"]["torchserve"] for name, model in found.config["models"].items()
    }
    assert declared == {"owl": {"batch": True}, "cat": {}}


def test_a_snapshot_has_the_models_of_a_server(tmp_path: Path) -> None:
    """KServe configures TorchServe with one."""
    models = {"mnist": {"1.0": {"batchSize": 4}}}
    file = tmp_path / "config.properties"
    file.write_text(f"model_snapshot={json.dumps({'name': 'startup.cfg', 'models': models})}\n")
    found = import_torchserve(file)
    load_checked_mapping(found.config)
    assert found.config["models"] == {"mnist": {"protocols": {"torchserve": {"batch": True}}}}


def test_archives_of_another_host_are_named(tmp_path: Path) -> None:
    """All models take the route, because nothing tells those of the archives."""
    file = tmp_path / "config.properties"
    for wanted in ("all", "cat.mar"):
        file.write_text(
            f'model_store=/far/store\nload_models={wanted}\nmodels={{"owl": {{"1.0": {{}}}}}}\n'
        )
        found = import_torchserve(file)
        load_checked_mapping(found.config)
        assert [each["match"] for each in found.config["routes"][:1]] == [
            {"protocol": "torchserve.grpc"}
        ]
        assert "match" not in found.config["routes"][1]
        assert "is not here, so any model takes the route" in str(found.unmapped[0])


@pytest.mark.parametrize(
    ("address", "url", "note"),
    [
        ("https://127.0.0.1:8443", "torchserve+https://127.0.0.1:18443", "set tls.ca"),
        ("unix:/tmp/s", "torchserve+http://127.0.0.1:18080", "'unix:/tmp/s' is left out"),
    ],
)
def test_other_addresses_are_named(tmp_path: Path, address: str, url: str, note: str) -> None:
    """A server with TLS keeps it, and one of a socket is moved."""
    file = tmp_path / "config.properties"
    file.write_text(f"load_models=\ninference_address={address}\n")
    found = import_torchserve(file)
    load_checked_mapping(found.config)
    assert found.config["upstreams"]["torchserve"]["url"] == url
    assert any(note in str(each) and each.line == 2 for each in found.unmapped)


@pytest.mark.parametrize(
    "data",
    [b"no zip", b'{"model": {}}', b"[]", b"{", b'{"model": {"modelName": 1}}'],
)
def test_a_broken_archive_is_an_error(tmp_path: Path, data: bytes) -> None:
    """It names the file."""
    path = tmp_path / "m.mar"
    if data == b"no zip":
        path.write_bytes(data)
    else:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("MAR-INF/MANIFEST.json", data)
    with pytest.raises(ValueError, match=r"m\.mar"):
        import_torchserve(path)


def test_a_setting_of_another_form_is_an_error(tmp_path: Path) -> None:
    """It names the setting."""
    file = tmp_path / "config.properties"
    for text, word in (
        ("models={", "models is not JSON"),
        ('models=["a"]', "models has no models: expected an object"),
        ("grpc_inference_port=x", "grpc_inference_port"),
        ("inference_address=http://a:x", "inference_address"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=word):
            import_torchserve(file)
