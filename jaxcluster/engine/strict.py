"""Strict mode: no program is issued before all its processes have announced the same one.

Each rank writes what it is about to launch into the coordination service's key-value store and
waits until every process of the program has done so. Announcements that differ raise on every rank,
at the line, with nothing issued, so the ranks stay in lockstep. The wait is a loop in Python: the
stop button ends it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.failures import Divergence
from jaxcluster.engine.journal import Journal, Program
from jaxcluster.engine.private import coordination, launches

POLL_S = 0.0005
SLOW_POLL_S = 0.02  # once a rank is so late that it hardly matters
SLOW_AFTER_S = 0.1
REST_S = 0.1  # that the other ranks get to announce theirs once two differ, to be told as well


class Strict:
    """Announces one rank's launches.

    Args:
      client: JAX's client of the coordination service.
      epoch: a name that no earlier announcements in the store begin with.
    """

    def __init__(self, journal: Journal, rank: int, client: Any, epoch: str) -> None:
        self.journal = journal
        self.rank = rank
        self.client = client
        self.epoch = epoch
        self._own: list[str] = []
        self._divergences = 0

    def before_launch(self, program: Program) -> None:
        """Return once all have announced this program as their next.

        Raises:
          Divergence: one of them has announced another.
        """
        if str(self.rank) not in program.processes.split(","):
            return  # a stage of a pipeline that others compute: none of it runs here
        seq = self.journal.counts.get(program.processes, [0])[0]
        cell, line = self.journal.place()
        # After a divergence, or a launch that XLA refused, the same seq comes again, and must not
        # meet what was said before.
        era = f"{self.journal.cell_seq}.{self._divergences}.{self.journal.refused}"
        folder = f"jaxcluster-strict/{self.epoch}/{era}/{program.processes}/{seq}/"
        within = self.journal.within()
        place = f"cell [{cell}] line {line}" if cell is not None else "?"
        place += f", in {within}" if within else ""
        own = f"{program.fingerprint}|{program.name}, {place}"
        processes, name, fingerprint, signature, collective = program.told
        self.journal.announced = wire.Launch(
            seq,
            processes,
            name,
            fingerprint,
            cell,
            line,
            signature,
            self.journal.cell_seq,
            collective,
            within,
        )
        try:
            self.client.key_value_set(f"{folder}{self.rank}", own, allow_overwrite=True)
            self._own.append(f"{folder}{self.rank}")
            self._wait(folder, program)
            if len(self._own) > 2:  # nobody waits for that one any more
                self.client.key_value_delete(self._own.pop(0))
        finally:
            self.journal.announced = None

    def _wait(self, folder: str, program: Program) -> None:
        expected = [int(rank) for rank in program.processes.split(",")]
        started = time.monotonic()
        differing_since = 0.0
        while True:
            said = {
                int(key.rpartition("/")[2]): value
                for key, value in self.client.key_value_dir_get(folder)
            }
            complete = len(said) == len(expected)
            now = time.monotonic()
            if len({value.partition("|")[0] for value in said.values()}) > 1:
                differing_since = differing_since or now
                if complete or now - differing_since > REST_S:
                    self._divergences += 1
                    raise Divergence(self._tell(said, expected), len(said))
            elif complete:
                return
            late = now - started > SLOW_AFTER_S
            time.sleep(SLOW_POLL_S if late else POLL_S)

    @staticmethod
    def _tell(said: dict[int, str], expected: Sequence[int]) -> str:
        groups: dict[str, list[int]] = {}
        for rank in expected:
            what = said[rank].partition("|")[2] if rank in said else "nothing yet"
            groups.setdefault(what, []).append(rank)
        told = "; ".join(
            f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {what}"
            for what, ranks in groups.items()
        )
        return f"the ranks were about to launch different programs, and launched none: {told}"


def switch(journal: Journal, rank: int, epoch: str | None) -> None:
    """Turn strict mode on (with an epoch) or off (None) on this rank.

    Programs that were called before have C++ fast paths that ask nobody, and those called in strict
    mode have none: both are forgotten.
    """
    if epoch is None:
        journal.before_launch = None
    else:
        client = coordination.coordination_client()
        journal.before_launch = Strict(journal, rank, client, epoch).before_launch
    launches.forget_fast_paths()
