"""XLA's rule, and so which numbers are wrong: what no rank and no notebook is told.

Of a set of processes the k-th launch of each member meets the k-th of the others. It ends when all
have made it, and all that these launched before has ended. Its value is wrong ("tainted") where
they did not mean the same launch, ran other programs or zeros, or gave it inputs that differ or are
wrong.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.model import lockstep

ZEROS = "zeros"


@dataclass(eq=False)
class Value:
    """What a launch gives: ``tainted`` is None until it has ended.

    ``failed``: a process of it is dead, so that whoever reads it gets an error, as from gloo.
    """

    made: Made
    tainted: bool | None = None
    failed: bool = False

    @property
    def is_ready(self) -> bool:
        return self.tainted is not None

    def is_deleted(self) -> bool:
        return False

    @property
    def meaning(self) -> Any:
        return self.made.meant


@dataclass(eq=False)
class Made:
    """One rank's part of a launch."""

    rank: int
    where: str
    k: int
    program: int
    meant: Any
    inputs: tuple[Value | None, ...]
    met: Sequence[Made] = ()
    value: Value = field(init=False)

    def __post_init__(self) -> None:
        self.value = Value(self)


def pushed(rank: int, number: int) -> Value:
    """A value that comes from the notebook, and is the same on all ranks."""
    value = Made(rank, "", 0, 0, (number, "pushed"), ()).value
    value.tainted = False
    return value


class Devices:
    """All ranks' devices, and what they were given to run.

    Args:
      stirred: where ranks are put one of whose values is there, or lost.
    """

    def __init__(self, num_ranks: int, stirred: set[int]) -> None:
        self.num_ranks, self.stirred = num_ranks, stirred
        self.queues: list[deque[Made]] = [deque() for _ in range(num_ranks)]
        self.numbers: list[defaultdict[str, int]] = []
        self.numbers = [defaultdict(int) for _ in range(num_ranks)]
        self.dead: set[int] = set()
        self.made: list[Made] = []

    def launch(
        self, rank: int, where: str, program: int, meant: Any, inputs: tuple[Value | None, ...]
    ) -> Value:
        made = Made(rank, where, self.numbers[rank][where], program, meant, inputs)
        self.made.append(made)
        self.numbers[rank][where] += 1
        self.queues[rank].append(made)
        self._complete()
        return made.value

    def restart_counts(self) -> None:
        """The ranks' processes are new ones."""
        self.queues = [deque() for _ in range(self.num_ranks)]
        self.numbers = [defaultdict(int) for _ in range(self.num_ranks)]
        self.dead.clear()

    def _complete(self) -> None:
        went_on = True
        while went_on:
            went_on = False
            for queue in self.queues:
                if queue and self._is_cut(queue[0]):
                    made = queue.popleft()
                    made.value.tainted, made.value.failed, went_on = False, True, True
                    self.stirred.add(made.rank)
                elif queue and (met := self._met(queue[0])) is not None:
                    self._end(met)
                    went_on = True

    def die(self, rank: int) -> None:
        self.dead.add(rank)
        self._complete()

    def _is_cut(self, made: Made) -> bool:
        given = any(value is not None and value.failed for value in made.inputs)
        return given or not self.dead.isdisjoint(lockstep.members(made.where))

    def _met(self, made: Made) -> list[Made] | None:
        """All parts of this launch, if each is the first that its rank's device has to run."""
        heads = []
        for rank in lockstep.members(made.where):
            queue = self.queues[rank]
            if not queue or queue[0].where != made.where or queue[0].k != made.k:
                return None
            heads.append(queue[0])
        return heads

    def _end(self, met: list[Made]) -> None:
        wrong = len({made.meant for made in met}) > 1 or len({made.program for made in met}) > 1
        wrong = wrong or any(made.meant == ZEROS for made in met)
        for at in range(len(met[0].inputs)):
            values = [made.inputs[at] if at < len(made.inputs) else None for made in met]
            wrong = wrong or any(v is not None and v.tainted for v in values)
            wrong = wrong or len({v.meaning if v is not None else None for v in values}) > 1
        for made in met:
            made.value.tainted, made.met = wrong, met
            self.queues[made.rank].popleft()
            self.stirred.add(made.rank)
