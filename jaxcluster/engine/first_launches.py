"""Programs that would meet others than themselves on CPU are refused before they are launched.

Where collectives of different sizes meet, gloo aborts a process, and mostly not the one whose shape
was wrong. So each rank announces its first launch of a program that has collectives, which JAX
makes in Python anyway, in the coordination service: *this one, at this place of the sequence*. Then
it looks at what the others have announced for that place, and launches if none differs. It waits
for nobody. Of two ranks whose programs differ the one that looks later sees the other's, so never
both launch; the other one waits in its own as for any rank that has skipped it, and is released by
a replay.

Later calls are not announced: they take JAX's fast path. What meets in them is compared when a
process has died of it (``engine/blackbox``). A rank that can't reach the service launches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.counted import Program
from jaxcluster.engine.failures import Divergence
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.private import coordination

KEPT = 64  # announcements of one rank: the others may be that many programs behind it


class FirstLaunches:
    """Announces one rank's first launches.

    Args:
      client: JAX's client of the coordination service.
    """

    def __init__(self, journal: Journal, rank: int, client: Any) -> None:
        self.journal = journal
        self.rank = rank
        self.client = client
        self._own: deque[str] = deque()
        # What was not made after all comes again at the same place, on all ranks alike: set of
        # processes -> its last place, and how often one was announced for that before.
        self._attempts: dict[str, tuple[str, int]] = {}
        self._last: tuple[str, int] = ("", 0)  # the set and the place of the last one

    def before_launch(self, program: Program) -> None:
        """Announce a program as this rank's next, and return if no other rank's differs.

        Half a millisecond each for the two calls; nothing is waited for.

        Raises:
          Divergence: another rank has announced another one, so this one must not be launched.
        """
        if not program.collective or str(self.rank) not in program.processes.split(","):
            return
        seq = self.journal.counts.get(program.processes, [0])[0]
        members = hashlib.blake2b(program.processes.encode(), digest_size=8).hexdigest()
        folder = f"jaxcluster-first/{self.journal.restarts}/{members}/{seq}/"
        place, attempt = self._attempts.get(program.processes, ("", 0))
        attempt = attempt + 1 if place == folder else 0
        self._attempts[program.processes] = folder, attempt
        entry = self.journal.upcoming(program)
        told = tell(entry)
        own = {"attempt": attempt, "fingerprint": program.fingerprint, "what": told}
        try:
            self.client.key_value_set(f"{folder}{self.rank}", json.dumps(own), allow_overwrite=True)
            found = self.client.key_value_dir_get(folder)
        except RuntimeError:  # the service does not answer, and much else will tell that
            return
        said = {int(key.rpartition("/")[2]): json.loads(value) for key, value in found}
        differing = {
            rank: one["what"]
            for rank, one in said.items()
            if one["attempt"] == attempt and one["fingerprint"] != program.fingerprint
        }
        if not differing:
            self._keep(f"{folder}{self.rank}")
            self._last = program.processes, seq
            return
        self._withdraw(f"{folder}{self.rank}")
        self.journal.refused = entry
        raise Divergence(self._message(told, differing), 0)

    def taken_back(self) -> None:
        """The launch that was announced last was not made: another one comes at its place."""
        if self._own:
            self._withdraw(self._own.pop())

    def end_cell(self) -> None:
        """Take back what an interrupt has left announced and not made, before the next cell."""
        processes, seq = self._last
        if processes and self.journal.counts.get(processes, [0])[0] == seq:
            self.taken_back()
        self._last = "", 0

    def _keep(self, key: str) -> None:
        self._own.append(key)
        if len(self._own) > KEPT:
            self._withdraw(self._own.popleft())

    def _withdraw(self, key: str) -> None:
        with contextlib.suppress(RuntimeError):
            self.client.key_value_delete(key)

    def _message(self, own: str, differing: dict[int, str]) -> str:
        return (
            "the ranks were about to launch different programs: "
            f"rank {self.rank}: {own}, which it did not launch; "
            + tell_each({rank: (what,) for rank, what in sorted(differing.items())})
        )


def watch(journal: Journal, rank: int) -> None:
    """Have this rank's first launches announced, where that can be done."""
    with contextlib.suppress(NotImplementedError):
        journal.first = FirstLaunches(journal, rank, coordination.coordination_client())


def tell(entry: wire.Launch) -> str:
    """A launch with its shapes and its place."""
    place = f", cell [{entry.cell}] line {entry.line}" if entry.cell is not None else ""
    place += f", in {entry.within}" if entry.within else ""
    return f"{entry.name}({entry.signature}){place}"


def tell_each(said: Mapping[int, tuple[object, ...]]) -> str:
    """The last thing that is said of each rank; of ranks of which the same is said, once."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for rank, one in said.items():
        groups.setdefault(one, []).append(rank)
    return "; ".join(
        f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {told}"
        for (*_, told), ranks in groups.items()
    )
