"""The folder of all clusters of this user.

Anyone who reaches its sockets can run code, so only the user may enter it. It is checked each
time: no link, mode 0700, and no place in which another user could exchange it.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jaxcluster.errors import JaxClusterError

VARIABLE = "JAXCLUSTER_RUNTIME_DIR"
MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, and /rank-1234.sock must fit after the folder
CHOOSE = f"Set {VARIABLE} to a folder of your own with a short path."


def choose(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder's place: ``JAXCLUSTER_RUNTIME_DIR``, else the session's, else in /tmp.

    One whose path is too long for its sockets is not taken.
    """
    own, session = f"jaxcluster-{os.getuid()}", environ.get("XDG_RUNTIME_DIR")
    places = [f"{folder}/{own}" for folder in (tempfile.gettempdir(), "/tmp")]
    if wanted := environ.get(VARIABLE) or (session and f"{session}/jaxcluster"):
        places.insert(0, os.path.abspath(wanted))
    return Path(next(path for path in places if len(os.fsencode(path)) <= MAX_SOCKET_PATH - 40))


def runtime_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the folder, which is made if need be.

    Raises:
      JaxClusterError: it can't be made, or is not safely this user's alone.
    """
    root = choose(environ)
    make_private(root)
    return root


def make_private(path: Path, what: str = "the folder of your clusters", hint: str = CHOOSE) -> None:
    """Have a folder at ``path`` that is safely this user's alone.

    Args:
      what, hint: what it is for people, and how they choose another.

    Raises:
      JaxClusterError: it can't be made, or another user has it or could exchange it.
    """
    told = f"{path}, {what}, can't be "
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        link = f" It is a symbolic link (to {os.readlink(path)})." if path.is_symlink() else ""
        raise JaxClusterError(f"{told}used: {error.strerror}.{link}", hint) from None
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.getuid():
            raise JaxClusterError(f"{path} belongs to another user.", hint)
        if (by := replaceable_in(path)) is not None:
            raise JaxClusterError(
                f"Every user can write to {by}, and so could replace {path}.",
                f"{hint}   or: chmod o-w {by}",
            )
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
        if not os.access(path, os.W_OK | os.X_OK):
            os.close(os.open(path, os.O_TMPFILE | os.O_WRONLY, 0o600))  # says why
    except OSError as error:
        raise JaxClusterError(f"{told}written to: {error.strerror}.", hint) from None
    finally:
        os.close(descriptor)


def replaceable_in(root: Path) -> Path | None:
    """The first folder above ``root`` in which any user could rename what lies on its path.

    /tmp is not such a folder: its sticky bit leaves renaming to each entry's owner.
    """
    for parent in Path(os.path.realpath(root)).parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None
