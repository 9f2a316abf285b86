"""The ranks' variables on disk under a name, and those of the end of each cell, if wanted.

A cell's end is saved among the cells, so that all ranks save the same moment, while nobody waits
for it. A rank that dies later has its values from there, and ``restore --last`` brings all of it
back.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jaxcluster import wire
from jaxcluster.cluster import saving, stopbutton
from jaxcluster.cluster.world import World
from jaxcluster.errors import CellInterrupted, JaxClusterError, RecoveryError, UsageError
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.states import Folder, Kept
from jaxcluster.text import format_nbytes, plural
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.saving import Checkpoint, Saved, SavePlace

NAME = "a checkpoint's name"
INDEX = "checkpoint.json"  # what each rank says of its files
MOST_NBYTES = 4 << 30  # that the ranks may take together, two copies of what they have
SHARE = 10  # the next save begins after so many times what the last one took, where that was long
LONG_S = 1.0
UNTOUCHED = "Nothing was restored: all ranks keep the variables they have."


def save(world: World, name: str, folder: str | Path) -> str:
    """See ``Cluster.checkpoint``. An older one of that name is replaced once this one is whole."""
    registry.check_name(name, NAME, "%jaxcluster checkpoint before-tuning")
    final = Path(folder).resolve() / name
    final.parent.mkdir(parents=True, exist_ok=True)
    for old in final.parent.glob(f".{name}.part*"):
        shutil.rmtree(old, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=final.parent))
    draft.chmod(0o700)  # whatever umask this process has
    try:
        make = partial(Checkpoint, places=[SavePlace(str(draft))], compare=True)
        each = dict.fromkeys(range(world.num_processes), make)
        reports = replies(world.ask_in_turn(each, timeout_s=saving.TIMEOUT_S))
        index = {str(rank): wire.plain(report) for rank, report in sorted(reports.items())}
        (draft / INDEX).write_text(json.dumps(index))
        (draft / INDEX).chmod(0o600)
        old = draft.with_name(f"{draft.name}-old")
        with contextlib.suppress(FileNotFoundError):
            final.rename(old)
        draft.rename(final)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    kept = plural(len({name for report in reports.values() for name in report.kept}), "variable")
    lost = {n: why for one in reports.values() for n, why in (one.lost | one.left).items()}
    size = format_nbytes(sum(report.nbytes for report in reports.values()))
    line = f"Saved {kept} of {plural(len(reports), 'rank')} ({size}) in {final}."
    return f"{line} Not saved: {saving.tell_lost(lost)}." if lost else line


def restore(world: World, name: str, folder: str | Path) -> str:
    """See ``Cluster.restore``."""
    registry.check_name(name, NAME, "%jaxcluster restore before-tuning")
    path = Path(folder).resolve() / name
    if not path.is_dir():
        others = ", ".join(sorted(one.name for one in path.parent.glob("[!.]*")))
        there = f"There are: {others}." if others else "%jaxcluster checkpoint NAME saves one."
        raise UsageError(f"There is no checkpoint {name!r} in {path.parent}.", there)
    reports = _read_index(path)
    kept = Kept(Folder(path), reports, len(reports))
    return restore_from(world, kept, f"when {name!r} was restored")


def restore_from(world: World, kept: Kept, when: str) -> str:
    """Bind what was saved on all ranks, or on none; returns in a line what came back.

    Args:
      when: names that are lost were lost then.

    Raises:
      CellInterrupted: stop was pressed before any rank has bound a name.
    """
    with stopbutton.held() as presses:

        def check() -> None:
            world.check()
            if presses:
                raise CellInterrupted(f"Stopped. {UNTOUCHED}")

        restored = saving.load(world, kept, check, when)
    count, ranks = plural(len(restored.names), "variable"), plural(world.num_processes, "rank")
    return " ".join([f"Restored {count} on {ranks}.", *restored.details])


def _read_index(path: Path) -> dict[int, Saved]:
    """What the ranks have said of their files.

    Raises:
      RecoveryError: it can't be read, or others could have written it: pickles run code.
    """
    try:
        for one in (path, *path.iterdir()):
            found = one.stat()
            if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
                raise RecoveryError(
                    f"Other users can write {one}, and a checkpoint can run any code. {UNTOUCHED}",
                    f"If you trust it: chmod -R go-w {path}",
                )
        index = json.loads((path / INDEX).read_text())
        return {int(rank): wire.read(Saved, one, INDEX) for rank, one in index.items()}
    except (OSError, ValueError, TypeError) as error:
        raise RecoveryError(f"{path} can't be read ({error}). {UNTOUCHED}") from None


# --------------------------------------------------------------------------- after each cell


class Autosave:
    """The saves of one cluster.

    Attributes:
      is_on: whether there are any.
      kept: the last one that is whole; ``cell``: the number of the cell at whose end it was.
      why_not: why the last cell's end was not saved; "" where it was.
    """

    def __init__(self) -> None:
        self.is_on, self.cell, self.why_not = False, 0, ""
        self.kept: Kept | None = None
        self._thread = threading.Thread()
        self._not_before = 0.0
        self._is_cancelled = False

    def after(self, world: World, cell: int) -> None:
        """Save the end of a cell, on a thread; returns when its place among the cells is taken."""
        if not self.is_on or world.is_broken:
            return
        if time.monotonic() < self._not_before:
            self.why_not = "the last save took so long that the next one comes later"
            return
        self.wait()
        sent = threading.Event()
        save = partial(self._save, world, cell, sent.set)
        self._thread = threading.Thread(target=save, name="jaxcluster-autosave", daemon=True)
        self._thread.start()
        sent.wait(saving.TIMEOUT_S)

    def cancel(self) -> None:
        """Give up what is being saved: the ranks are about to end."""
        self._is_cancelled = True
        self.wait()
        self._is_cancelled = False

    def wait(self) -> None:
        """Wait until a save in progress has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def forget(self) -> None:
        """Remove the last save: new ranks never had its values. None is in progress."""
        kept, self.kept = self.kept, None
        if kept is not None:
            kept.folder.remove()

    def _save(self, world: World, cell: int, sent: Callable[[], None]) -> None:
        """Make a new copy; the one before stays until this one is whole."""
        began, before, each = time.monotonic(), self.kept, {}
        most = MOST_NBYTES // 2 // world.num_processes

        def check() -> None:
            sent()
            if world.is_broken or self._is_cancelled:
                raise RecoveryError("it was given up for new processes")

        spare: Folder | None = None
        try:
            spare = folder = world.processes.state_folder()
            for rank in range(world.num_processes):
                rooms = [
                    SavePlace(path, most if room is None else min(most, room // 2))
                    for path, room in folder.places_for(rank)
                ]
                each[rank] = partial(Checkpoint, places=rooms)
            answers = world.ask_in_turn(each, timeout_s=saving.TIMEOUT_S, check=check)
            self.kept = Kept(folder, replies(answers), world.num_processes)
            self.cell, self.why_not, spare = cell, "", before.folder if before else None
        except JaxClusterError as error:  # a rank has died, or there is no room
            self.why_not = error.message
        finally:
            if spare is not None:
                spare.remove()
            sent()
            took = time.monotonic() - began
            self._not_before = time.monotonic() + SHARE * took if took > LONG_S else 0.0
