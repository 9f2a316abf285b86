"""The folder of all clusters of this user.

It holds sockets that run code for whoever can reach them, so it must be the user's alone: no link,
not somebody else's, mode 0700, and not in a folder in which another user could put a folder of his
own in its place. This is checked each time.
"""

from __future__ import annotations

import functools
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from jaxcluster.errors import JaxClusterError

VARIABLE = "JAXCLUSTER_RUNTIME_DIR"
MAX_SOCKET_PATH = 100  # sun_path holds 108 bytes, and rank-1234.sock must fit behind the folder
SHARED_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
CHOOSE = f"Set {VARIABLE} to a folder of your own with a short path."


def choose(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the folder is to be: ``JAXCLUSTER_RUNTIME_DIR``, else the session's, else in /tmp.

    Some containers have a /tmp without its sticky bit, in which anybody could exchange the folder:
    then the next of these that is safe.
    """
    chosen, session = environ.get(VARIABLE), environ.get("XDG_RUNTIME_DIR")
    return _choose(
        os.path.abspath(chosen) if chosen else session and f"{session}/jaxcluster",
        (tempfile.gettempdir(), *SHARED_PLACES),
    )


@functools.lru_cache  # every cell asks; and what was chosen once stays
def _choose(wanted: str | None, folders: tuple[str, ...]) -> Path:
    if wanted and len(os.fsencode(Path(wanted))) <= MAX_SOCKET_PATH - 40:
        return Path(wanted)
    name = f"jaxcluster-{os.getuid()}"
    places = [Path(folder) / name for folder in folders]
    short = [path for path in places if len(os.fsencode(path)) <= MAX_SOCKET_PATH - 40]
    safe = (path for path in short if path.parent.is_dir() and replaceable_in(path) is None)
    return next(safe, short[0])


def runtime_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The path of the folder, which is made if need be.

    Raises:
      JaxClusterError: it can't be made, or is not safely this user's alone.
    """
    root = choose(environ)
    make_private(root)
    return root


def make_private(path: Path) -> None:
    """Have a folder at ``path`` that is safely this user's alone.

    Raises:
      JaxClusterError: it can't be made, or another user has it or could exchange it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise JaxClusterError(
                f"{path} is a symbolic link (to {os.readlink(path)}), and the folder of your "
                "clusters must not be one: the link's owner could redirect it.",
                CHOOSE,
            ) from None
        raise JaxClusterError(
            f"{path}, the folder of your clusters, can't be used: {error.strerror}.", CHOOSE
        ) from None
    try:
        _check(path, descriptor)
    finally:
        os.close(descriptor)


def _check(root: Path, descriptor: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.getuid():
        raise JaxClusterError(f"{root} belongs to another user.", CHOOSE)
    if (by := replaceable_in(root)) is not None:
        raise JaxClusterError(
            f"Every user can write to {by}, and so could replace {root}.",
            f"{CHOOSE[:-1]}, or: chmod o-w {by}",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        try:
            os.fchmod(descriptor, 0o700)
        except OSError as error:
            raise JaxClusterError(
                f"{root} is open to other users and can't be closed: {error.strerror}.", CHOOSE
            ) from None
    if not os.access(root, os.W_OK | os.X_OK):
        why = _why_not_writable(root)
        raise JaxClusterError(
            f"{root}, the folder of your clusters, can't be written to{why}.", CHOOSE
        )


def _why_not_writable(root: Path) -> str:
    try:
        os.close(os.open(root, os.O_TMPFILE | os.O_WRONLY, 0o600))
    except OSError as error:
        return f": {error.strerror}"
    return ""


def replaceable_in(root: Path) -> Path | None:
    """The first folder above ``root`` in which any user could rename what lies on its path.

    /tmp is not such a folder: its sticky bit leaves renaming to each entry's owner.
    """
    for parent in Path(os.path.realpath(root)).parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None
