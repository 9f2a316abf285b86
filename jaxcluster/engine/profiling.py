"""A rank's profiles: of a cell, or of some seconds of the one that runs, by JAX's profiler."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster import wire
from jaxcluster.engine import tracks
from jaxcluster.engine.cost import named_files, packed
from jaxcluster.engine.private import profiles, programs
from jaxcluster.wire.hlo import ANY_COLLECTIVE

if TYPE_CHECKING:
    from jaxcluster.engine.control import Request
    from jaxcluster.engine.journal import Journal
    from jaxcluster.wire.ops.profile import Profile, ProfileReady, ProfileStop, ReadTracks

_OPERATION = re.compile(
    rf"^\s*(?:ROOT )?%?(\S+) = .*? (?:{ANY_COLLECTIVE})(?:-start)?\(", re.MULTILINE
)


MOST_READY = 16  # cells that wait for their turn to be profiled


class AlreadyProfiled(Exception):
    """This process is being profiled already."""

    hint = "jax.profiler.stop_trace() in a cell ends it."


class Profiler:
    """Starts, names and reads them.

    Args:
      cells: the numbers of cells, by their files.
    """

    def __init__(self, rank: int, journal: Journal, cells: dict[str, int]) -> None:
        self.rank = rank
        self._journal, self._cells = journal, cells
        # A file for each rank is written, in ``session`` of ``folder``.
        self._ready: dict[str, ProfileReady] = {}
        self._own: ProfileReady | Profile | None = None  # what is being written by us
        self._cell: wire.CellRequest | None = None
        self._count = 0  # of the profiles that the cell itself has written
        self._is_over = threading.Event()  # the cell that is profiled
        self._stopped = ""  # the token of the last one that was to end
        self._lock = threading.Lock()  # held while a part of a cell is profiled

    def install(self) -> None:
        """Have the user's own profiles named by the rank. Before any cell."""
        profiles.name_by_rank(self._name)

    def on_ready(self, request: Request[ProfileReady]) -> None:
        """``profile_ready``: a cell with this token is to be profiled.

        Raises:
          AlreadyProfiled: it can't be.
        """
        self._check()
        self._ready[request.body.token] = request.body
        for old in list(self._ready)[:-MOST_READY]:
            del self._ready[old]

    def on_run(self, request: Request[Profile]) -> None:
        """``profile``: the cell that runs is profiled now, for so long or to its end.

        Raises:
          AlreadyProfiled: it can't be.
        """
        body = request.body
        with self._lock:
            self._check()
            self._is_over.clear()
            if body.token == self._stopped:  # that came first
                return
            self._start(body)
            try:
                self._is_over.wait(body.seconds)
            finally:
                self._stop()

    def on_stop(self, request: Request[ProfileStop]) -> None:
        """``profile_stop``: the ``profile`` that runs ends now; answered when it has ended."""
        self._stopped = request.body.token
        self._is_over.set()
        with self._lock:
            pass

    def on_tracks(self, request: Request[ReadTracks]) -> Any:
        """``profile_tracks``: what is in a file that this rank, or one before it, has written.

        Raises:
          tracks.Unreadable: nothing can be.
        """
        body = request.body
        known = _Programs(self._journal)
        message, columns = tracks.read(body.path, self.rank, body.most, known.collectives)
        if body.texts:
            modules = {module for module, _ in message.operations}
            texts = {module: known.text(module) for module in sorted(modules)}
            message = replace(
                message,
                texts={module: packed(text) for module, text in texts.items() if text},
                processes={module: known.processes(module) for module in texts if texts[module]},
                files=named_files("\n".join(texts.values()), self._cells),
            )
        return message, columns

    def begin(self, cell: wire.CellRequest) -> None:
        """A cell's own code is about to begin. On the main thread."""
        self._cell, self._count = cell, 0
        if (target := self._ready.pop(cell.profile, None)) is not None:
            self._check()
            self._start(target)

    def end(self, cell: wire.CellRequest) -> None:
        """A cell's own code is over. On the main thread."""
        self._is_over.set()
        if cell.profile:
            self._stop()

    def _check(self) -> None:
        if profiles.is_on():
            raise AlreadyProfiled(f"Rank {self.rank} is being profiled already.")

    def _start(self, target: ProfileReady | Profile) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        # Of each Python call there would be an event, and Python 2 to 3 times as slow: what is slow
        # in a step would be another thing.
        options.python_tracer_level = 0
        jax.profiler.start_trace(target.folder, profiler_options=options)
        self._own = target

    def _stop(self) -> None:
        target = self._own
        if target is None:
            return
        try:
            if profiles.is_on():  # the cell may have stopped it
                folder = Path(target.folder) / "plugins" / "profile" / target.session
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"rank-{self.rank}.xplane.pb").write_bytes(profiles.take())
        finally:
            self._own = None

    def _name(self) -> profiles.Name:
        """How a profile that is written now is called."""
        if self._own is not None:
            return profiles.Name(self.rank, self._own.session)
        cell, self._count = self._cell, self._count + 1
        if cell is None:
            return profiles.Name(self.rank, wire.session_name(0, time.time_ns()))
        session = wire.session_name(cell.execution_count, cell.sent_ns)
        if self._count > 1:
            session += f"-{self._count}"
        return profiles.Name(self.rank, session, links=self.rank == cell.ranks[0])


class _Programs:
    """The compiled texts of the programs that a rank has launched, by their modules' names."""

    def __init__(self, journal: Journal) -> None:
        found = [one for one in journal.programs() if one.collective]
        self._executables = {wire.module_name(one.name): one.executable for one in found}
        self._texts: dict[str, str] = {}
        self._collectives: dict[str, frozenset[str]] = {}

    def text(self, module: str) -> str:
        """That of the one that was launched last; "" where it is not known."""
        if module not in self._texts:
            executable = self._executables.get(wire.module_name(module))
            self._texts[module] = programs.compiled_text(executable) if executable else ""
        return self._texts[module]

    def processes(self, module: str) -> list[int]:
        """That of each of its devices."""
        return [
            device.process_index
            for device in self._executables[wire.module_name(module)].device_list
        ]

    def collectives(self, module: str) -> frozenset[str]:
        """What its collectives are called."""
        if module not in self._collectives:
            self._collectives[module] = frozenset(_OPERATION.findall(self.text(module)))
        return self._collectives[module]
