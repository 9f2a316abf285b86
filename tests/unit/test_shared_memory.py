"""What transfers of killed processes have left in shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxcluster.host import shared_memory
from jaxcluster.supervision.processes import process_token


def test_files_go_with_the_process_that_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "FOLDER", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        names = [
            f"{shared_memory.prefix(pid)}{end}" for pid in (os.getpid(), other.pid) for end in "ab"
        ]
        kept = "jaxcluster-state-a"
        for name in [*names, kept]:
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (0, time.time() - 2 * shared_memory.OLD_S))
        token = process_token(other.pid)
        assert not shared_memory.remove_of(token)
        shared_memory.remove_old()
        assert {path.name for path in tmp_path.iterdir()} == {*names, kept}
        other.kill()
    (tmp_path / names[3]).touch()  # not old yet: another container's process may have this number
    shared_memory.remove_old()
    assert {path.name for path in tmp_path.iterdir()} == {*names[:2], names[3], kept}
    assert shared_memory.remove_of(token)
    assert {path.name for path in tmp_path.iterdir()} == {*names[:2], kept}
