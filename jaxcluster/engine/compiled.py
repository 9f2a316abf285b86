"""Compiled programs of this cluster's ranks on this host, for the processes that come after them.

A private folder beside the ranks' logs, which is removed with the cluster. What is not whole there
is not there: the program is compiled, as it would be without the folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
import zlib
from collections.abc import Callable
from pathlib import Path

from jaxcluster.host.free_space import memory_room

MAX_NBYTES = 512 << 20  # of all programs together: then the folder is emptied
SHARE = 8  # an eighth of what may be written there, at most: it may be memory
DEAD_S = 30.0  # a file that has not been whole for that long is nobody's: its writer has died
PART = ".part"


class CompiledFolder:
    """Compiled programs by their keys, in a folder whose parent is there and private."""

    def __init__(self, path: Path, max_nbytes: int = MAX_NBYTES) -> None:
        self.path, self.max_nbytes = path, max_nbytes

    def read(self, key: str) -> bytes | None:
        """What was written under ``key``; None if it is not there or not whole."""
        with contextlib.suppress(OSError):
            if self._is_private():
                packed = (self.path / key).read_bytes()
                with contextlib.suppress(zlib.error):
                    return zlib.decompress(packed)  # it has a checksum
                (self.path / key).unlink()
        return None

    def write(self, key: str, make: Callable[[], bytes]) -> None:
        """Keep what ``make`` returns, unless it is there or another rank is writing it.

        Ranks compile the same program at the same time. The first one to be done writes it.

        Raises:
          Exception: whatever ``make`` raises.
        """
        path, part = self.path / key, self.path / f"{key}{PART}"
        with contextlib.suppress(OSError):
            self.path.mkdir(mode=0o700, exist_ok=True)
            if not self._is_private() or path.exists():
                return
            others = self._others()
            with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                try:
                    # A fifth of the bytes, in 1 % of the time to compile them.
                    packed = zlib.compress(make(), 1)
                    if self._make_room(len(packed), others):
                        file.write(packed)
                        file.flush()
                        os.rename(part, path)
                finally:
                    part.unlink(missing_ok=True)

    def _is_private(self) -> bool:
        """Whether nobody else can have put a program there, which a rank would then run."""
        about = os.lstat(self.path)
        is_mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
        return is_mine and not about.st_mode & 0o022

    def _others(self) -> dict[Path, int]:
        """All programs and their sizes. What dead writers have left behind is removed."""
        found = {}
        for path in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another rank has just renamed it
                about = path.stat()
                if path.suffix != PART:
                    found[path] = about.st_size
                elif about.st_mtime < time.time() - DEAD_S:
                    path.unlink()
        return found

    def _make_room(self, nbytes: int, others: dict[Path, int]) -> bool:
        """Whether there is room for ``nbytes`` more, for which all others may have to go."""
        total = sum(others.values())
        most = min(self.max_nbytes, (total + memory_room(self.path)) // SHARE)
        for path in others if nbytes <= most < total + nbytes else ():
            path.unlink(missing_ok=True)
        return nbytes <= most
