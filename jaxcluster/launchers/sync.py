"""Whose code the hosts are to get: ``--sync`` and ``--no-sync``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.errors import UsageError


@dataclass(frozen=True)
class SyncedFolder:
    """What is to be on the ranks' hosts.

    Attributes:
      folder: whose code; None: nothing.
      whole: all its files; else its modules and packages alone.
    """

    folder: Path | None
    whole: bool = False


def synced_folder(options: Mapping[str, object]) -> SyncedFolder:
    """What ``--sync`` and ``--no-sync`` ask for; without them the modules of this folder.

    Raises:
      UsageError: there is no such folder, or both were given.
    """
    named, off = options.get("sync"), bool(options.get("no_sync"))
    if off and named:
        raise UsageError("--sync and --no-sync can't be used together.", "Leave out one of them.")
    if off or named == "":
        return SyncedFolder(None)
    if named is None:
        with contextlib.suppress(OSError):  # it was removed
            return SyncedFolder(Path.cwd())
        return SyncedFolder(None)
    folder = Path(os.path.abspath(os.path.expanduser(str(named))))
    if not folder.is_dir():
        raise UsageError(
            f"--sync: there is no folder {folder}.",
            "Name one of this machine's, for example: --sync .   or turn it off: --no-sync",
        )
    return SyncedFolder(folder, whole=True)
