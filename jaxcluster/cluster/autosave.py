"""What the ranks had at the end of the last cell that ended well: saved after each, if wanted.

It is saved among the cells, so that all ranks save the same moment, while nobody waits for it. A
rank that dies later has its values from there, and ``restore --last`` brings all of it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from jaxcluster.allocation.states import Kept
from jaxcluster.cluster import saving
from jaxcluster.cluster.world import World
from jaxcluster.errors import JaxClusterError, RecoveryError
from jaxcluster.wire.link import replies
from jaxcluster.wire.ops.saving import Checkpoint, SavePlace

MOST_NBYTES = 4 << 30  # that the ranks may take together, two copies of what they have
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
            kept, self.kept = self.kept, None
        if kept is not None:
            kept.folder.remove()

    def _save(self, world: World, cell: int, sent: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            with self._lock:
                before, self.kept = self.kept, self._saved(world, sent)
            self.cell, self.why_not = cell, ""
            if before is not None:
                before.folder.remove()
        except JaxClusterError as error:  # a rank has died, or there is no room
            self.why_not = error.message
        finally:
            sent()
            took = time.monotonic() - began
            self._not_before = time.monotonic() + SHARE * took if took > LONG_S else 0.0

    def _saved(self, world: World, sent: Callable[[], None]) -> Kept:
        """A new copy; the one before stays until this one is whole."""
        folder, each = world.processes.state_folder(), {}
        most = MOST_NBYTES // 2 // world.num_processes
        for rank in range(world.num_processes):
            rooms = [
                SavePlace(path, most if room is None else min(most, room // 2))
                for path, room in folder.places_for(rank)
            ]
            each[rank] = partial(Checkpoint, places=rooms)

        def check() -> None:
            sent()
            if world.is_broken or self._is_cancelled:
                raise RecoveryError("it was given up for new processes")

        try:
            answers = world.ask_in_turn(each, timeout_s=saving.TIMEOUT_S, check=check)
        except BaseException:
            folder.remove()
            raise
        return Kept(folder, replies(answers), world.num_processes)
