"""The container image: built without a daemon, run as user 10001 on a read-only file system in 256 MiB.

IMAGE_VARIANTS="slim onnx torch kubernetes" builds these variants. PyTorch with its libraries for GPUs
takes several GB. By default it is built for the CPU, where the package index offers that.
What would be installed is checked for all variants.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from gateway import __version__
from tests.integration.cli_kit import free_port, get, serving
from tests.integration.container_kit import CONTRACTS, Contract
from tests.integration.runc_kit import Container, listening
from tests.interop.programs import program
from tests.unit.release.loading import RELEASE, load

ROOT = RELEASE.parent
VARIANTS = os.environ.get("IMAGE_VARIANTS", "slim onnx torch-cpu").split()
OPTIONAL = "torch-cpu"
LOCKS = ["slim", "onnx", "torch", "kubernetes"]
BUILDAH = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
MB = 1_000_000
ROW = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
# The modules of Python and of the gateway that a check imports, and where their bytecode would be.
CHECK = """
import json, os, sys
from gateway.cli import main
sys.argv = ["gateway", "health", "--live", "127.0.0.1:1"]
try: main()
except SystemExit: pass
cached = [getattr(module, "__cached__", None) for module in list(sys.modules.values())]
print(json.dumps([path for path in cached if path and "gateway" in path]))
print(json.dumps([path for path in cached if path and not os.path.exists(path)]))
"""
# The CPU time of the health check and of a Python that connects: the least of five.
COST = """
import resource, subprocess, sys
def cost(*command):
    found = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(found)
address = sys.argv[1]
bare = f"import socket; socket.create_connection({tuple(address.split(':'))}).close()"
print(cost("gateway", "health", "--live", address), cost(sys.executable, "-c", bare))
"""
MOST_COST = 50 / 30  # of such a Python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def buildah(*arguments: str) -> str:
    command = ["buildah", *arguments]
    done = subprocess.run(command, env=BUILDAH, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def tag(variant: str) -> str:
    return f"tensor-gateway:{__version__}" + ("" if variant == "slim" else f"-{variant}")


def config_of(variant: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", tag(variant)))
    config: dict[str, Any] = found["Docker"]["config"]
    return config


@pytest.fixture(scope="module")
def built() -> None:
    if os.geteuid() != 0:
        pytest.skip("the image cannot be built here: mmdebstrap and chroot need root")
    for name in ("mmdebstrap", "buildah", "runc"):
        program(name)
    variants = " ".join(each for each in VARIANTS if each != OPTIONAL)
    command = ["make", "--silent", "image-offline", f"VARIANTS={variants}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def build_optional() -> None:
    command = [str(RELEASE / "image.sh"), "--offline", OPTIONAL]
    variables = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if "No matching distribution found for torch" in done.stderr:
        pytest.skip("no index here offers PyTorch for the CPU: set PIP_FIND_LINKS")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


@pytest.fixture(scope="module", params=VARIANTS)
def image(
    request: pytest.FixtureRequest, built: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Container]]:
    """Return a variant, and its image."""
    if request.param == OPTIONAL:
        build_optional()
    name = buildah("from", "--pull-never", tag(request.param))
    root = Path(buildah("mount", name))
    yield request.param, Container(config_of(request.param), root, tmp_path_factory.mktemp("runs"))
    buildah("rm", name)


def test_settings_of_the_image(image: tuple[str, Container]) -> None:
    """It runs without root, ends by SIGTERM, and asks for liveness."""
    config = image[1].config
    assert "10001" == config["User"]
    assert "SIGTERM" == config["StopSignal"]
    assert ["CMD", "gateway", "health", "--live"] == config["Healthcheck"]["Test"]
    assert __version__ == config["Labels"]["org.opencontainers.image.version"]
    assert re.fullmatch(r"[0-9a-f]{40}", config["Labels"]["org.opencontainers.image.revision"])


def test_the_bill_of_materials_is_what_is_installed(image: tuple[str, Container]) -> None:
    """No package is missing, and none is too much; each has the version of the lock."""
    variant, container = image
    home = container.root / "opt" / "gateway"
    (site,) = (home / "lib").glob("python3*/site-packages")
    document = json.loads((home / "sbom.cdx.json").read_text())
    listed = {each["name"]: each["version"] for each in document["components"]}
    own = document["metadata"]["component"]
    installed = {
        (re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower(), each.version)
        for each in distributions(path=[str(site)])
    }
    assert installed == {*listed.items(), (own["name"], own["version"])}
    lock = (ROOT / "requirements" / f"{variant}.lock").read_text()
    pins = set(re.findall(r"^([a-z0-9-]+)(?:\[[^\]]*\])?==([^\s;]+)", lock, re.MULTILINE))
    assert set() == set(listed.items()) - pins


def test_the_provenance_names_its_sources(image: tuple[str, Container]) -> None:
    """It has the commit, the hash of each lock, the builder and the time."""
    found = json.loads((image[1].root / "opt/gateway/provenance.json").read_text())
    definition, details = (found["predicate"][key] for key in ("buildDefinition", "runDetails"))
    digests = {each["name"]: each["digest"] for each in definition["resolvedDependencies"]}
    assert "gitCommit" in digests["source"]
    lock = ROOT / "requirements" / f"{image[0]}.lock"
    assert load("dist").sha256(lock) == digests[f"requirements/{lock.name}"]["sha256"]
    assert details["builder"]["id"]
    assert details["metadata"]["finishedOn"]
    assert found["subject"]


def test_the_slim_image_is_small(image: tuple[str, Container]) -> None:
    """What is above the base has at most 130 MB."""
    if image[0] != "slim":
        return
    found = (each for each in (image[1].root / "opt/gateway").rglob("*") if not each.is_symlink())
    assert sum(path.stat().st_size for path in found if path.is_file()) <= 130 * MB


def test_a_sidecar_serves_in_it(image: tuple[str, Container], tmp_path: Path) -> None:
    """A call reaches the server; without the server the gateway still lives, cheaply, and SIGTERM ends it."""
    server = tmp_path / "server.yaml"
    server.write_text(
        "version: 1\nlisteners: [{grpc: '127.0.0.1:0'}]\nadmin: {address: 'off'}\n"
        "lifecycle: {pre_stop: 0s}\n"
        "models: {simple: {backend: python, options: {callable: 'gateway.backends.examples:simple'}}}\n"
    )
    flags = ["--http", "127.0.0.1:0", "--grpc", "off", "--admin", "127.0.0.1:0"]
    with serving(str(server)) as behind:
        upstream = f"oip+grpc://{behind.addresses['main.grpc']}"
        with image[1].started("serve", "--upstream", upstream, *flags) as running:
            addresses = listening(running.process)
            body = {"inputs": [{"name": f"INPUT{number}", **ROW} for number in range(2)]}
            url = f"http://{addresses['main.http']}/v2/models/simple/infer"
            status, document = get(url, body)
            assert (200, [2 * each for each in range(16)]) == (
                status,
                document["outputs"][0]["data"],
            )
            behind.stop()
            live = running.execute("gateway", "health", "--live", addresses["admin"])
            assert (0, "live\n") == (live.returncode, live.stdout), live.stderr
            measured = running.execute("python", "-c", COST, addresses["admin"])
            health_s, bare_s = map(float, measured.stdout.split())
            print(f"{image[0]}: health {1000 * health_s:.0f} ms, Python {1000 * bare_s:.0f} ms")
            assert health_s <= MOST_COST * bare_s
            assert 503 == get(url, body)[0]
            running.signal("TERM")
            assert running.process.wait(60) == 0


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS)
def test_a_platform_starts_it_with_its_variables_alone(
    image: tuple[str, Container], contract: Contract, tmp_path: Path
) -> None:
    """In 256 MiB, `serve` alone is ready as a container of SageMaker and of Vertex AI."""
    path, port = Path("/", contract.file), free_port()
    (tmp_path / path.name).write_text(contract.config)
    tmp_path.chmod(0o755)
    variables, folders = contract.environment(port), {str(path.parent): tmp_path}
    with image[1].started("serve", variables=variables, folders=folders) as running:
        assert f"127.0.0.1:{port}" == listening(running.process)["main.http"]
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            connection.request("GET", contract.health)
            assert 200 == connection.getresponse().status
        running.signal("TERM")
        assert running.process.wait(60) == 0


def test_nothing_can_be_written(image: tuple[str, Container]) -> None:
    """The file system is read-only, and the user is not root."""
    program_text = "import os; print(os.getuid()); open('/tmp/x', 'w')"
    with image[1].started("-c", program_text, entry=["/opt/gateway/bin/python"]) as running:
        out, err = running.process.communicate(timeout=60)
    assert ("10001\n", True) == (out, "Read-only file system" in err)


def test_the_demo_runs_in_the_image_with_models(image: tuple[str, Container]) -> None:
    """All protocols agree; the image without ONNX Runtime names the extra that is missing."""
    addresses = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "off"]
    done = image[1].run("demo", "--once", *addresses)
    if image[0] == "onnx":
        assert (0, True) == (done.returncode, "results agree" in done.stdout), done.stderr
    else:
        assert (1, True) == (done.returncode, "tensor-gateway[onnx]" in done.stderr), done.stderr


def test_pytorch_works_in_its_image(image: tuple[str, Container]) -> None:
    """What the image leaves out of packages is not missing."""
    if not image[0].startswith("torch"):
        return
    program_text = "import torch; print(torch.ones(2, 2) @ torch.ones(2))"
    with image[1].started("-c", program_text, entry=["/opt/gateway/bin/python"]) as running:
        out, err = running.process.communicate(timeout=120)
    assert "tensor([2., 2.])" in out, err


def test_no_bytecode_of_the_image_was_in_force(image: tuple[str, Container]) -> None:
    """A start compiled everything again: all bytecode counts whatever the times of files are."""
    found = [
        path
        for folder in ("opt/gateway/lib", "usr/lib", "usr/local/lib")
        for path in (image[1].root / folder).rglob("*.pyc")
    ]
    assert len(found) > 1000
    assert [] == [path for path in found if path.read_bytes()[4:8] != b"\1\0\0\0"]


def test_the_health_check_compiles_nothing(image: tuple[str, Container]) -> None:
    """Bytecode of all that it imports is in the image, since nothing can be written there."""
    with image[1].started("-c", CHECK, entry=["/opt/gateway/bin/python"]) as running:
        out, err = running.process.communicate(timeout=60)
    found, missing = (json.loads(line) for line in out.splitlines()[-2:])
    assert len(found) >= 3, err
    assert [] == missing


@pytest.mark.parametrize("variant", LOCKS)
def test_each_variant_can_be_installed(variant: str, tmp_path: Path) -> None:
    """Each pin of the lock has a file for Python 3.11 in Debian, with a hash that the lock has.

    Nothing is downloaded but the metadata, so that this also holds for variants that are not built.
    """
    command = ["uv", "pip", "install", "--dry-run", "--no-deps", "--require-hashes"]
    command += ["--requirement", str(ROOT / "requirements" / f"{variant}.lock")]
    command += ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_36"]
    command += ["--only-binary", ":all:", "--target", str(tmp_path / "nothing")]
    tool = Path(sys.executable).with_name("uv")
    done = subprocess.run([str(tool), *command[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"Would install \d+ packages", done.stderr)
