"""The folder of all clusters of this user: chosen, checked, and used by its descriptor.

It holds sockets that run code for whoever can reach them, so it must be the user's alone: no link,
not somebody else's, mode 0700, and not in a folder in which another user could put a folder of his
own in its place. It is opened once, checked on the descriptor, and all files in it are reached
through that descriptor: what happens to its path afterwards changes nothing.
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

_opened: dict[str, int] = {}  # path -> descriptor, for the life of this process


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
    """The path of the folder, which is made if need be. For sockets and for people.

    Raises:
      JaxClusterError: it can't be made, or is not safely this user's alone.
    """
    root = choose(environ)
    _descriptor(root)
    return root


def inside(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder by its descriptor (``/proc/self/fd/7``): the files in it, whatever its path is.

    Good in this process only.

    Raises:
      JaxClusterError: as ``runtime_root``.
    """
    return Path(f"/proc/self/fd/{_descriptor(choose(environ))}")


def _descriptor(root: Path) -> int:
    """An open descriptor of the folder, checked."""
    known = _opened.get(str(root))
    if known is not None and _is_still(known, root):
        return known
    if known is not None:
        del _opened[str(root)]
        os.close(known)
    _opened[str(root)] = found = _open(root)
    return found


def _is_still(descriptor: int, root: Path) -> bool:
    """Whether what was opened is what the path names: else it is opened and checked again."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(root))
    except OSError:
        return False


def make_private(path: Path) -> None:
    """Have a folder at ``path`` that is safely this user's alone.

    Raises:
      JaxClusterError: it can't be made, or another user has it or could exchange it.
    """
    os.close(_open(path))


def _open(root: Path) -> int:
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if root.is_symlink():
            raise JaxClusterError(
                f"{root} is a symbolic link (to {os.readlink(root)}), and the folder of your "
                "clusters must not be one: the link's owner could redirect it.",
                CHOOSE,
            ) from None
        raise JaxClusterError(
            f"{root}, the folder of your clusters, can't be used: {error.strerror}.", CHOOSE
        ) from None
    try:
        _check(root, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


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
        raise JaxClusterError(f"{root}, the folder of your clusters, can't be written to.", CHOOSE)


def replaceable_in(root: Path) -> Path | None:
    """The first folder above ``root`` in which any user could rename what lies on its path.

    /tmp is not such a folder: its sticky bit leaves renaming to each entry's owner.
    """
    for parent in Path(os.path.realpath(root)).parents:
        mode = parent.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return parent
    return None
