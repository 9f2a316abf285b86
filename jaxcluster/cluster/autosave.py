"""What the ranks had at the end of the last cell that ended well: saved after each, if wanted.

It is saved among the cells, so that all ranks save the same moment, while nobody waits for it. A
rank that dies later has its values from there, and ``restore --last`` brings all of it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.allocation.states import HostStates, Kept
from jaxcluster.cluster import saving
from jaxcluster.cluster.world import World
from jaxcluster.errors import JaxClusterError, RecoveryError
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.saving import Checkpoint, SavePlace

MOST_NBYTES = 4 << 30  # that the ranks may take together, two copies of what they have
COPIES = ("a", "b")  # one is kept until the other is whole
SHARE = 10  # the next save begins after so many times what the last one took, where that was long
LONG_S = 1.0


class Autosave:
    """The saves of one cluster.

    Attributes:
      is_on: whether there are any.
      kept: the last one that is whole.
      cell: the number of the cell at whose end it was.
      why_not: why the last cell's end was not saved; "" where it was.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.kept: Kept | None = None
        self.cell = 0
        self.why_not = ""
        self._folder: HostStates | None = None
        self._lock = threading.Lock()  # one save at a time
        self._thread: threading.Thread | None = None
        self._not_before = 0.0
        self._is_cancelled = False

    def after(self, world: World, cell: int) -> None:
        """Save the end of a cell, on a thread; returns when its place among the cells is taken."""
        if not self.is_on or world.is_broken:
            return
        if time.monotonic() < self._not_before:
            self.why_not = "the last save took so long that the next one comes later"
            return
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
        """Return when what is being saved is saved."""
        if (thread := self._thread) is not None:
            thread.join()

    def forget(self) -> None:
        """Remove what was saved: it is not what the next ranks have had."""
        with self._lock:
            folder, self._folder, self.kept = self._folder, None, None
        if folder is not None:
            folder.remove()

    def _save(self, world: World, cell: int, sent: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            with self._lock:
                self.kept = self._saved(world, sent)
            self.cell, self.why_not = cell, ""
        except JaxClusterError as error:  # a rank has died, or there is no room
            self.why_not = error.message
        finally:
            sent()
            took = time.monotonic() - began
            self._not_before = time.monotonic() + SHARE * took if took > LONG_S else 0.0

    def _saved(self, world: World, sent: Callable[[], None]) -> Kept:
        folder = self._folder = world.processes.state_folder(self._folder)
        ranks = range(world.num_processes)
        other = next(copy for copy in COPIES if self.kept is None or copy != self._copy())
        most = MOST_NBYTES // len(COPIES) // len(ranks)
        each = {}
        for rank in ranks:
            places = [
                SavePlace(
                    str(Path(path) / other),
                    most if room is None else min(most, room // 2),
                    is_new=True,
                )
                for path, room in folder.places_for(rank)
            ]

            def make(turn: CellSpec, places: list[SavePlace] = places) -> Checkpoint:
                return Checkpoint(turn, places)

            each[rank] = make

        def check() -> None:
            sent()
            if world.is_broken or self._is_cancelled:
                raise RecoveryError("it was given up for new processes")

        answers = world.ask_in_turn(each, timeout_s=saving.TIMEOUT_S, check=check)
        return Kept(folder, replies(answers), len(ranks))

    def _copy(self) -> str:
        reports = self.kept.reports if self.kept is not None else {}
        return next((Path(report.folder).name for report in reports.values()), "")
