"""`gateway keys` by root, for a gateway that runs as another user, as a service and an image do."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from shutil import rmtree

import pytest

from gateway.access.key_file import KeyFile, save_key_file
from tests.integration.access_kit import NOW
from tests.integration.cli_kit import Running
from tests.integration.cli_kit import gateway as command
from tests.integration.users_kit import USER, as_user, environment, serving_as

ACL = "system.posix_acl_access"
CONFIG = """
version: 1
workers: {workers}
listeners: [{{http: "127.0.0.1:0"}}]
admin: {{address: "127.0.0.1:0", metrics: null}}
security: {{keys: {{file: keys.yaml}}}}
upstreams: {{absent: {{url: "oip+http://127.0.0.1:9"}}}}
lifecycle: {{pre_stop: 0s}}
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a process of another user"),
]


def key_of(number: int) -> str:
    return f"tg_{number:040}"


@pytest.fixture(scope="module", params=[1, 2], ids=["one_process", "two_workers"])
def service(request: pytest.FixtureRequest) -> Iterator[tuple[Running, Path]]:
    """Yield a gateway of another user with ten keys, and the folder of its files."""
    folder = Path(tempfile.mkdtemp())  # those of pytest are closed to other users
    try:
        folder.chmod(0o755)
        (folder / "gateway.yaml").write_text(CONFIG.format(workers=request.param))
        file = KeyFile.new()
        for number in range(10):
            file = file.added("fraud", key_of(number), NOW, key_id=f"k{number}")
        save_key_file(folder / "keys.yaml", file)
        os.chown(folder / "keys.yaml", USER, USER)
        with serving_as(USER, folder) as running:
            yield running, folder
    finally:
        rmtree(folder)


def status_of(running: Running, key: str) -> int:
    with closing(HTTPConnection(running.addresses["main.http"], timeout=60)) as connection:
        connection.request("GET", "/v2", headers={"x-api-key": key})
        return connection.getresponse().status


def acl_of(user: int) -> bytes:
    """Return a list by which *user* reads a file beside its owner."""
    entries = [(1, 6, -1), (2, 4, user), (4, 0, -1), (16, 4, -1), (32, 0, -1)]
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, rights, who & 0xFFFFFFFF) for tag, rights, who in entries
    )


def access_of(path: Path) -> tuple[int, int, int, bytes]:
    found = path.stat()
    rights = os.getxattr(path, ACL) if ACL in os.listxattr(path) else b""
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), rights


@pytest.mark.parametrize(
    ("number", "owner", "group", "mode", "has_acl"),
    [(0, USER, USER, 0o600, False), (1, 0, USER, 0o640, False), (2, 0, 0, 0o640, True)],
    ids=["owner", "group", "acl"],
)
def test_a_key_that_root_revokes_is_refused_when_the_command_ends(
    service: tuple[Running, Path], number: int, owner: int, group: int, mode: int, has_acl: bool
) -> None:
    """The new file has the access of the old one, and the command has asked the gateway."""
    running, folder = service
    path = folder / "keys.yaml"
    os.chown(path, owner, group)
    if has_acl:
        os.setxattr(path, ACL, acl_of(USER))
    path.chmod(mode)
    before = access_of(path)
    assert 200 == status_of(running, key_of(number))
    admin = running.addresses["admin"]
    words = ["--file", str(path), "--admin", admin]
    done = command("keys", "revoke", f"k{number}", *words)
    assert (0, f"the gateway at {admin} has it in force") == (
        done.returncode,
        done.stderr.splitlines()[-1],
    )
    assert 401 == status_of(running, key_of(number))
    for verb in (["add", "web"], ["rotate", "web"]):
        made = command("keys", *verb, *words)
        assert 0 == made.returncode, made.stderr
        assert 200 == status_of(running, made.stdout.strip())
    assert before == access_of(path)


def test_a_key_that_the_gateway_still_accepts_is_no_success(service: tuple[Running, Path]) -> None:
    """The gateway cannot read the file any more; the command fails with its reason."""
    running, folder = service
    path = folder / "keys.yaml"
    if ACL in os.listxattr(path):
        os.removexattr(path, ACL)
    os.chown(path, 0, 0)
    path.chmod(0o600)
    admin = running.addresses["admin"]
    done = command("keys", "revoke", "k5", "--file", str(path), "--admin", admin)
    assert 1 == done.returncode
    assert done.stderr.splitlines()[-1] == (
        f"gateway: {path} is written, but the gateway at {admin} does not use it: Permission denied"
    )
    assert 200 == status_of(running, key_of(5))
    os.chown(path, USER, USER)


@pytest.mark.parametrize(
    ("owner", "group", "expected"),
    [(USER, USER, (USER, USER, 0o600)), (0, USER, (0, USER, 0o640)), (0, 0, (0, 0, 0o600))],
)
def test_a_new_key_file_belongs_to_the_owner_of_its_folder(
    tmp_path: Path, owner: int, group: int, expected: tuple[int, int, int]
) -> None:
    """So a service reads a file that root adds to its folder."""
    os.chown(tmp_path, owner, group)
    path = tmp_path / "keys.yaml"
    done = command("keys", "add", "web", "--file", str(path), "--admin", "127.0.0.1:9")
    assert 0 == done.returncode
    assert "no gateway could be asked whether it is in force" in done.stderr
    assert expected == access_of(path)[:3]


def test_a_user_that_would_become_the_owner_is_refused() -> None:
    """The gateway of the owner could not read the file any more; the command says who may."""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o777)
        path = folder / "keys.yaml"
        save_key_file(path, KeyFile.new().added("fraud", key_of(0), NOW, key_id="k0"))
        path.chmod(0o644)
        before = path.read_bytes()
        spare = folder / "spare"
        spare.mkdir()
        words = as_user(USER, spare, "keys", "revoke", "k0", "--file", str(path))
        done = subprocess.run(
            words, check=False, cwd="/", env=environment(), capture_output=True, text=True
        )
        assert 1 == done.returncode
        assert "it belongs to" in done.stderr
        assert before == path.read_bytes()
        assert {path, spare} == set(folder.iterdir())
    finally:
        rmtree(folder)
