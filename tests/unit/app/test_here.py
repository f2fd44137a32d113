"""One list of what a start on this machine refuses: `gateway validate --here` and the start itself."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from gateway.api.start_error import StartError
from gateway.app.check.check import check
from gateway.app.check.here import check_here, outside
from gateway.app.run.run import _run
from gateway.config.extended import config_type
from gateway.config.load import LoadedConfig, load_text
from gateway.config.tls import TlsConfig
from gateway.settings.fields import Outside
from gateway.settings.model import Model

BASE: dict[str, Any] = {
    "version": 1,
    "listeners": [{"http": "127.0.0.1:0"}],
    "admin": {"address": "off"},
    "lifecycle": {"pre_stop": "0s"},
}
TLS = {"cert": "absent.pem", "key": "absent.pem"}
KEY_SET = {"name": "a", "issuer": "i", "audience": "a"}
FAR = {"url": "oip+https://127.0.0.1:9"}
MIGRATION = {
    "upstreams": {"a": {"url": "oip+http://127.0.0.1:9"}, "b": {"url": "oip+http://127.0.0.1:8"}},
    "routes": [
        {"name": "r", "targets": [{"upstream": "a", "weight": 1}, {"upstream": "b", "weight": 0}]}
    ],
    "state": {"directory": "state"},
}

# What is wrong, by the key that names it. `broken` is a file that has no valid content.
CASES: dict[str, dict[str, Any]] = {
    "listeners[0].tls.cert": {"listeners": [{"http": "127.0.0.1:0", "tls": TLS}]},
    "listeners[0].tls.ca": {
        "listeners": [
            {"http": "127.0.0.1:0", "tls": {"cert": "broken", "key": "broken", "ca": "no"}}
        ]
    },
    "listeners[0].tls.certificates[0].key": {
        "listeners": [
            {
                "http": "127.0.0.1:0",
                "tls": {
                    "cert": "broken",
                    "key": "broken",
                    "certificates": [{"cert": "broken", "key": "absent.pem"}],
                },
            }
        ]
    },
    "listeners[0].tls": {
        "listeners": [{"http": "127.0.0.1:0", "tls": {"cert": "broken", "key": "broken"}}]
    },
    "listeners[0].streams[0].address": {
        "listeners": [{"streams": [{"protocol": "grps", "address": "unix:{folder}/absent/s"}]}]
    },
    "listeners[0].http": {"listeners": [{"http": "192.0.2.1:0"}]},
    "admin.address": {"admin": {"address": "unix:{folder}/absent/s", "metrics": None}},
    "admin.audit": {"admin": {"address": "127.0.0.1:0", "metrics": None, "audit": "absent/a.log"}},
    "admin.tls.key": {
        "admin": {"address": "127.0.0.1:0", "metrics": None, "tls": {**TLS, "cert": "broken"}}
    },
    "admin.tokens[0].file": {
        "admin": {
            "address": "127.0.0.1:0",
            "metrics": None,
            "tokens": [{"name": "a", "roles": ["read"], "file": "broken"}],
        }
    },
    "upstreams.far.tls.ca": {"upstreams": {"far": {**FAR, "tls": {"ca": "absent.pem"}}}},
    "upstreams.far.rolling_load.warm_up.capture": {
        "upstreams": {
            "far": {
                "urls": ["oip+http://127.0.0.1:9", "oip+http://127.0.0.1:8"],
                "rolling_load": {"warm_up": {"capture": "absent"}},
            }
        }
    },
    "security.external.python": {"security": {"external": {"python": "absent_module:decide"}}},
    "security.external.tls.ca": {
        "security": {"external": {"grpc": "127.0.0.1:9", "tls": {"ca": "absent.pem"}}}
    },
    "security.keys.file": {"security": {"keys": {"file": "broken"}}},
    "security.jwt[0].jwks": {"security": {"jwt": [{**KEY_SET, "jwks": "absent.json"}]}},
    "security.jwt[0].tls.ca": {
        "security": {
            "jwt": [{**KEY_SET, "jwks": "https://127.0.0.1:9/", "tls": {"ca": "absent.pem"}}]
        }
    },
    "telemetry.log.access.path": {"telemetry": {"log": {"access": {"path": "absent/a.log"}}}},
    "state.directory": {"state": {"directory": "broken/state"}},
    "capture.directory": {"capture": {"directory": "broken/capture"}},
    "migrations.r.capture.directory": {
        **MIGRATION,
        "migrations": {
            "r": {"route": "r", "old": "a", "new": "b", "capture": {"directory": "broken/capture"}},
        },
    },
    "migrations.r.cutover.directory": {
        **MIGRATION,
        "migrations": {
            "r": {"route": "r", "old": "a", "new": "b", "cutover": {"directory": "broken/cut"}}
        },
    },
    "models.m.path": {"models": {"m": {"backend": "onnx", "path": "absent.onnx"}}},
    "models.m": {"models": {"m": {"backend": "python", "options": {"callable": "absent:m"}}}},
}

# Keys whose description speaks of files, and which name none of this machine that a start needs.
NO_FILES = {
    "address": "a type of its own, `StreamAddress`",
    "upload": "a store, which is tried again",
    "url": "a server, or a store that is tried again",
}


def loaded_of(change: dict[str, Any], folder: Path) -> LoadedConfig:
    text = json.dumps({**BASE, **change}).replace("{folder}", str(folder))
    (folder / "broken").write_text("broken")
    loaded = load_text(text, directory=folder, source="gateway.yaml")
    assert [] == check(loaded), "the file alone has no error"
    return loaded


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(
            key, marks=[pytest.mark.migration] if key.startswith(("capture", "migrations")) else []
        )
        for key in CASES
    ],
)
async def test_what_a_start_refuses_is_found_before_it(key: str, tmp_path: Path) -> None:
    """The list has the key, and the start refuses the same file."""
    loaded = loaded_of(CASES[key], tmp_path)
    found = [problem.path for problem in check_here(loaded)]
    assert key in found
    # What calls need later is found as well, and the start waits for it.
    if "warm_up" not in key:
        assert {each.partition(".tls")[0] for each in found} == {key.partition(".tls")[0]}
    with pytest.raises(StartError):
        await _run(loaded, None, lambda: loaded)


def test_a_file_without_faults_has_none_here(tmp_path: Path) -> None:
    """Addresses in use are none: the gateway that is replaced has them."""
    assert [] == check_here(loaded_of({"state": {"directory": "new/state"}}, tmp_path))
    assert not (tmp_path / "new").exists(), "nothing is written"


def _fields(model: type[Model], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each key of the configuration whose type names something outside of it."""
    for name, field in model.model_fields.items():
        text = repr((field.annotation, field.metadata))
        for mark in Outside:
            if re.search(rf"<Outside\.{mark.name}:", text):
                yield f"{at}.{name}".strip("."), mark
        for inner in _models_in(field.annotation):
            yield from _fields(inner, f"{at}.{name}".strip("."))


def _models_in(annotation: Any) -> set[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return {annotation}
    return {one for each in getattr(annotation, "__args__", ()) for one in _models_in(each)}


def test_each_key_that_names_something_outside_has_a_case() -> None:
    """A new key of such a type needs a case; TLS is one type, so one key of each section suffices."""
    cases = {re.sub(r"\[\d+\]", "", each) for each in CASES}
    plain = {re.sub(r"\.(far|r|m)\b", "", each) for each in cases}
    needed = {
        at for at, _ in _fields(config_type()) if ".tls." not in at and "server_tls" not in at
    }
    assert needed <= plain, sorted(needed - plain)
    assert {"listeners", "admin", "upstreams", "security.external", "security.jwt"} <= {
        at.partition(".tls.")[0] for at, _ in _fields(config_type()) if ".tls." in at
    }


def test_each_key_of_a_file_has_a_type_of_files() -> None:
    """So that a new key is not a plain text that the check does not see."""
    schema = json.loads((resources.files("gateway.config") / "schema.json").read_text())
    marked = {at.rpartition(".")[2] for at, _ in _fields(config_type())}
    found: set[str] = set()

    def walk(node: Any) -> None:
        for key, each in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(each, dict) and isinstance(each.get("description"), str):
                is_text = '"text"' in json.dumps(each) or '"type": "string"' in json.dumps(each)
                of_file = re.match(
                    r"(\w+ )?(file|folder|directory|dotted name)\b",
                    each["description"],
                    re.IGNORECASE,
                )
                if is_text and of_file and "properties" not in json.dumps(each):
                    found.add(str(key))
            if isinstance(each, dict | list):
                walk(each)

    walk(schema)
    assert found
    assert found <= marked | NO_FILES.keys(), sorted(found - marked)


# Where the start is refused, by module, and why `--here` knows it, or cannot.
REFUSALS = {
    "gateway/app/check/here.py": "the list itself",
    "gateway/access/control.py": "keys and key sets: cases; a package: `check`",
    "gateway/access/external.py": "case security.external.python",
    "gateway/access/parts.py": "any reason of key sets and proxies: cases",
    "gateway/app/run/gateway.py": "any reason of a part that is built: the cases",
    "gateway/quotas/parts.py": "a file of the state that cannot be read: the folder is a case",
    "gateway/quotas/counts.py": "another gateway that counts in the directory",
    "gateway/app/run/reload.py": "a reload that takes too long",
    "gateway/api/start_error.py": "a part of a package that fails",
    "gateway/app/build/parts.py": "a package: a misspelt member, a second gatekeeper",
    "gateway/app/listen/activation.py": "sockets of a service manager, which only its process has",
    "gateway/processes/worker_process.py": "what a worker says",
    "gateway/app/workers/supervisor.py": "what a worker says, and ports in use",
    "gateway/migration/cutover/controller.py": "states of an earlier run: the folder is a case",
    "gateway/migration/cutover/kubernetes_replicas.py": "the environment of a pod",
    "gateway/shadow/keeper.py": "a process that cannot be started",
}


@pytest.mark.migration
def test_each_place_that_refuses_a_start_is_known() -> None:
    """A new one needs a case above, or a reason why only the start can know."""
    root = Path(__file__).parents[3]
    found = set()
    for path in (root / "gateway").rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "StartError" in text else ():
            call = node.exc if isinstance(node, ast.Raise) else None
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "StartError":
                found.add(str(path.relative_to(root)))
    assert set(REFUSALS) == found


def test_the_walk_finds_values_of_all_shapes(tmp_path: Path) -> None:
    """In lists, in maps and in sections of sections."""
    loaded = loaded_of({**CASES["listeners[0].tls"], **CASES["upstreams.far.tls.ca"]}, tmp_path)
    kinds = [kind for _, kind, _ in outside(loaded.config)]
    assert 2 == kinds.count(TlsConfig)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_gets_errors_for_files_that_it_may_not_use(tmp_path: Path) -> None:
    """`--here` judges for the user who runs it."""
    loaded = loaded_of(
        {
            "security": {"keys": {"file": "keys.yaml"}},
            "state": {"directory": "state/deep"},
            "telemetry": {"log": {"access": {"path": "a.log"}}},
        },
        tmp_path,
    )
    (tmp_path / "keys.yaml").write_text(f"version: 1\nsalt: {'0' * 32}\nkeys: []\n")
    (tmp_path / "keys.yaml").chmod(0o600)
    for each in (tmp_path, *tmp_path.parents[:2]):
        each.chmod(0o755)
    assert [] == check_here(loaded)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgroups([])
            os.setgid(10_001)
            os.setuid(10_001)
            found = {problem.path for problem in check_here(loaded)}
            expected = {"security.keys.file", "state.directory", "telemetry.log.access.path"}
            status = 0 if found == expected else 2
        finally:
            os._exit(status)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
