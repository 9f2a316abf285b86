"""Compiled programs of this cluster's ranks on this host, for the processes that come after them.

A private folder beside the ranks' logs, which is removed with the cluster. Whoever writes to it can
run code in a rank, so nothing is read from it that another user could have written. What can't be
read, or is not whole, is not there: the program is compiled, as it would be without the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxcluster.host.free_space import memory_room

MAX_NBYTES = 512 << 20
SHARE = 8  # an eighth of what may be written there, at most: it may be memory
STALE_S = 60.0  # what was not finished by then never will be: its writer has died
PART = ".part"
DIGEST_NBYTES = 32


class Refused(OSError):
    """Another user could have written it."""


class CompiledFolder:
    """Compiled programs by their keys.

    Args:
      path: the folder; its parent is there, and private.
      max_nbytes: what all programs in it may have together. Those that were not used for the
        longest time go first.
    """

    def __init__(self, path: Path, max_nbytes: int = MAX_NBYTES) -> None:
        self.path = path
        self.max_nbytes = max_nbytes

    def read(self, key: str) -> bytes | None:
        """What was written under ``key``; None if it is not there or not whole."""
        with contextlib.suppress(OSError), self._opened() as folder:
            file = os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with open(file, "rb") as opened:
                _check_owner(os.fstat(file))
                data = opened.read()
                os.utime(file)  # it is used, so others go first
            digest, content = data[:DIGEST_NBYTES], data[DIGEST_NBYTES:]
            if _digest(content) == digest:
                return content
            os.unlink(key, dir_fd=folder)
        return None

    def write(self, key: str, make: Callable[[], bytes]) -> None:
        """Keep what ``make`` returns, unless it is there or another rank is writing it.

        Ranks compile the same program at the same time. The first one to be done writes it, and
        the others do not even make the bytes.

        Raises:
          Exception: whatever ``make`` raises.
        """
        part = f"{key}{PART}"
        with contextlib.suppress(OSError), self._opened(make=True) as folder:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                if os.access(key, os.F_OK, dir_fd=folder):
                    return
                file = os.open(part, flags, 0o600, dir_fd=folder)
            except FileExistsError:
                return
            try:
                with open(file, "wb") as opened:
                    content = make()
                    if not self._make_room(folder, DIGEST_NBYTES + len(content)):
                        raise OSError("too large")
                    opened.write(_digest(content) + content)
                os.rename(part, key, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=folder)
                raise

    @contextlib.contextmanager
    def _opened(self, make: bool = False) -> Iterator[int]:
        """A descriptor of the folder, checked.

        For a moment only: a cell may close any descriptor, and another file then has its number.

        Raises:
          OSError: it is not there, or is not this user's alone.
        """
        if make:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            _check_owner(os.fstat(folder))
            yield folder
        finally:
            os.close(folder)

    def _make_room(self, folder: int, nbytes: int) -> bool:
        """Remove what was not used for longest, until there is room for ``nbytes`` more."""
        now, total = time.time(), 0
        found: list[tuple[float, int, str]] = []
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    about = entry.stat(follow_symlinks=False)
                    if not entry.name.endswith(PART):
                        found.append((about.st_mtime, about.st_size, entry.name))
                        total += about.st_size
                    elif now - about.st_mtime > STALE_S:
                        os.unlink(entry.name, dir_fd=folder)
        most = min(self.max_nbytes, (total + memory_room(self.path)) // SHARE)
        for _, size, name in sorted(found):
            if total + nbytes <= most:
                break
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            total -= size
        return total + nbytes <= most


def _check_owner(about: os.stat_result) -> None:
    """Refuse what another user has, or could write to.

    Raises:
      Refused: it is so.
    """
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
        raise Refused


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_NBYTES).digest()
