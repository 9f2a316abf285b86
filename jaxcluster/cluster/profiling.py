"""Profiles of a cluster's ranks: made ready before a cell, and put together after it.

Each rank writes a file of its own. On this machine it lies where it is to be; on other hosts it is
in their memory first, and is brought here. What the files say, each rank reads itself: that takes
jax.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from jaxcluster import wire
from jaxcluster.allocation import bulk
from jaxcluster.cluster import stragglers
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.model import arrivals, perfetto, profile
from jaxcluster.model.arrivals import Clocks, RankProfile
from jaxcluster.model.profile import Profile
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops import profile as requests
from jaxcluster.wire.ops.profile import ProfileReady, ProfileStop, ReadTracks

FOLDER = "jaxcluster-profiles"
READY_S = 10.0
READ_S = 300.0  # a rank reads a million events in a few seconds
JOURNAL, LEAST_LAUNCHES = 4096, 512  # all that a rank remembers, and what each is asked for
ALL_LAUNCHES = 1 << 16  # of all ranks together
EXAMPLE = "%%spmd --profile NAME"


@dataclass
class Profiling:
    """A profile on its way: ``ready`` makes one, ``collect`` puts it together.

    Attributes:
      token: by which the ranks know it.
      session: how it is called, in ``folder``.
      target: the folder of its files.
    """

    folder: Path
    session: str
    ranks: Sequence[int]
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _memory: bulk.Memory | None = None  # None: they write to ``folder``

    @property
    def target(self) -> Path:
        return self.folder / "plugins" / "profile" / self.session

    def prepare(self, world: World) -> dict[int, ProfileReady]:
        """What is said to each rank; hosts have a folder for it from here on.

        Raises:
          UsageError: its folder can't be made.
          LaunchError: a host does not answer.
        """
        try:
            self.target.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.target}: {error.strerror}.", EXAMPLE) from None
        with contextlib.suppress(bulk.NoRoom):
            self._memory = self._open.enter_context(world.processes.memory(self.ranks))
        return {
            rank: ProfileReady(self.token, self._folder_of(rank), self.session)
            for rank in self.ranks
        }

    def close(self) -> None:
        """Nothing of it is left on hosts."""
        self._open.close()
        with contextlib.suppress(OSError):  # there are files in it
            for folder in (self.target, *self.target.parents[:3]):
                folder.rmdir()

    def collect(self, world: World, cell_seq: int | None) -> Profile:
        """Bring the ranks' files here, put them together, and say what is in them.

        Args:
          cell_seq: of the cell that was profiled; None for what ran meanwhile.
        """
        try:
            return self._collect(world, cell_seq)
        finally:
            self.close()

    def _folder_of(self, rank: int) -> str:
        return self._memory.path(rank) if self._memory is not None else str(self.folder)

    def _name(self, rank: int) -> str:
        """The rank's file, from its folder."""
        return f"plugins/profile/{self.session}/rank-{rank}.xplane.pb"

    def _collect(self, world: World, cell_seq: int | None) -> Profile:
        most = profile.most_slices(len(self.ranks))
        each = {
            rank: ReadTracks(
                f"{self._folder_of(rank)}/{self._name(rank)}", most, rank == min(self.ranks)
            )
            for rank in self.ranks
        }
        answers = {}
        if not world.is_over:
            answers = world.link.gather(self.ranks, each, timeout_s=READ_S)
        missing = {rank: _why(answers.get(rank)) for rank in self.ranks}
        missing = {rank: why for rank, why in missing.items() if why}
        found = {
            rank: arrivals.unpacked(event.body, event.buffers)
            for rank, event in sorted(answers.items())
            if rank not in missing
        }
        self._fetch(found)
        files = {rank: str(self.folder / self._name(rank)) for rank in self.ranks}
        files = {rank: path for rank, path in files.items() if os.path.exists(path)}
        made = Profile(0.0, None, (), {}, None, "", 0.0)
        if found:
            made = self._put_together(world, found, cell_seq)
        return replace(made, folder=str(self.folder), files=files, missing=missing)

    def _fetch(self, found: Mapping[int, RankProfile]) -> None:
        """Bring files from other hosts."""
        if self._memory is None:
            return
        with contextlib.ExitStack() as opened:
            files = []
            for rank, one in found.items():
                file = opened.enter_context(open(self.folder / self._name(rank), "wb"))
                files.append((rank, self._name(rank), one.told.nbytes, partial(_write_part, file)))
            self._memory.get(files)

    def _put_together(
        self, world: World, found: Mapping[int, RankProfile], cell_seq: int | None
    ) -> Profile:
        count = min(JOURNAL, max(LEAST_LAUNCHES, ALL_LAUNCHES // len(found)))
        times = stragglers.ask(world, count, list(found), timeout_s=READY_S)
        hosts = {rank: host for rank, host in times.hosts.items() if rank in found}
        unknown = 0.0, (stragglers.ASK_S if len(set(hosts.values())) > 1 else 0.0)
        offsets = {host: times.offsets.get(host, unknown) for host in hosts.values()}
        clocks = Clocks(hosts, offsets)
        places = {rank: f" ({host})" for rank, host in world.hosts.items()}
        names = {rank: f"rank {rank}{places.get(rank, '')}" for rank in found}
        told, processes = profile.put_together(found, clocks, times.made, names, cell_seq)
        trace = self.folder / f"{self.session}.pftrace.gz"
        write(trace, processes)
        return replace(told, trace=str(trace))


def write(path: Path, processes: Sequence[perfetto.Process]) -> None:
    """A trace for Perfetto."""
    with gzip.open(path, "wb", compresslevel=1) as file:  # a higher one takes 5 times as long
        for part in perfetto.trace(processes):
            file.write(part)


def ready(
    world: World, folder: str | Path | None, ranks: Sequence[int], number: int | None
) -> Profiling:
    """All ranks are ready to profile the cell that has the token.

    Args:
      folder: where its files go, for TensorBoard; None: ``FOLDER`` beside the notebook.
      number: the cell's; None names it by the time alone.

    Raises:
      UsageError: the folder can't be made, or a rank is being profiled already.
    """
    made = start(folder, ranks, number)
    try:
        world.ask(list(ranks), made.prepare(world), timeout_s=READY_S)
    except BaseException:
        made.close()
        raise
    return made


def start(folder: str | Path | None, ranks: Sequence[int], number: int | None) -> Profiling:
    """One that is called by the time, and by its cell."""
    session = wire.session_name(number or 0, time.time_ns())
    return Profiling(Path(folder or FOLDER).expanduser().absolute(), session, list(ranks))


def run(world: World, folder: str | Path | None, seconds: float) -> Profile:
    """Profile the cell that runs, for so many seconds or to its end.

    Raises:
      UsageError: no cell runs, a rank is being profiled already, or the folder can't be made.
    """
    states = [state for state in world.status() if state.state == "running"]
    if not states:
        raise UsageError(
            "No cell runs that could be profiled.",
            f"To profile a cell from its beginning: {EXAMPLE}",
        )
    made = start(folder, [state.rank for state in states], states[0].cell)
    try:
        each = {
            rank: requests.Profile(one.token, one.folder, one.session, seconds)
            for rank, one in made.prepare(world).items()
        }
        try:
            world.ask(made.ranks, each, timeout_s=seconds + READ_S)
        except KeyboardInterrupt:
            world.link.gather(made.ranks, ProfileStop(made.token), timeout_s=READ_S)
            raise
        return made.collect(world, None)
    finally:
        made.close()


def _write_part(file: IO[bytes], at: int, part: memoryview) -> None:
    file.seek(at)
    file.write(part)


def _why(answer: Event[Any] | None) -> str:
    """Why a rank has no profile; "" if it has one."""
    if answer is None:
        return "it gave no answer"
    if answer.op == "died":
        return f"it has died ({answer.why})"
    return "" if answer.op == "reply" else answer.why.rstrip(".")
