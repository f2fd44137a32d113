"""Directories and files that only the user of the gateway can read, whatever the umask is.

`replace_kept` is for a file of another user: a command changes it, and a running gateway reads it.
"""

import errno
import os
import pwd
import tempfile
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Final

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600

_OF_GROUP: Final = 0o640
_ACL: Final = "system.posix_acl_access"


def make_directory(directory: Path) -> None:
    """Create *directory* for this user only, and each missing directory above it.

    Directories that exist keep their modes.

    Raises:
        OSError: It cannot be created.
    """
    for each in (*reversed(directory.parents), directory):
        # With `parents`, `mkdir` would create those above it with the modes of the umask.
        if not each.is_dir():
            each.mkdir(DIRECTORY_MODE, exist_ok=True)


def write_private(path: Path, body: bytes) -> None:
    """Write a file that nobody else can read at any time.

    Raises:
        OSError: It cannot be written.
    """
    with open(path, "wb", opener=private_opener) as file:
        file.write(body)


def replace_private(path: Path, body: bytes) -> None:
    """Replace a file as a whole; missing directories are created for this user only.

    Raises:
        OSError: It cannot be written. The previous file stays.
    """
    make_directory(path.parent)
    aside = path.with_suffix(".new")
    write_private(aside, body)
    aside.replace(path)


def replace_kept(path: Path, body: bytes) -> None:
    """Replace a file as a whole; its owner, group, mode and access control list stay.

    A new file belongs to the owner and the group of its folder, as far as this user may give it
    to them. Only its owner reads it, and the group of a folder of root that has another group.

    Raises:
        OSError: It cannot be written, or would get another owner. The previous file stays.
    """
    target = path.resolve()
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
            if target.exists():
                _keep_access(descriptor, target)
            else:
                _adopt_access(descriptor, target.parent)
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(target)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _keep_access(descriptor: int, old: Path) -> None:
    """Give a new file the owner, the group, the mode and the access control list of *old*."""
    found, own = old.stat(), os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != (own.st_uid, own.st_gid):
        try:
            os.fchown(descriptor, found.st_uid, found.st_gid)
        except PermissionError as error:
            owner = f"{_user_name(found.st_uid)} (group {found.st_gid})"
            reason = f"it belongs to {owner}, which would change; expected this user or root"
            raise PermissionError(errno.EPERM, reason, str(old)) from error
    try:
        os.setxattr(descriptor, _ACL, os.getxattr(old, _ACL))
    except OSError as error:
        if error.errno not in {errno.ENODATA, errno.ENOTSUP}:
            raise
        with suppress(OSError):  # one of the folder, which *old* does not have
            os.removexattr(descriptor, _ACL)
    os.fchmod(descriptor, S_IMODE(found.st_mode))


def _adopt_access(descriptor: int, folder: Path) -> None:
    """Give a new file the owner and the group of its folder, if this user may."""
    found = folder.stat()
    with suppress(PermissionError):
        os.fchown(descriptor, found.st_uid, found.st_gid)
        if found.st_uid == 0 and found.st_gid != 0:
            os.fchmod(descriptor, _OF_GROUP)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def private_opener(path: str, flags: int) -> int:
    """Open a file as `open` does, but create it for this user only."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
