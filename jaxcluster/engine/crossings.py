"""In which order a rank launched the programs of sets of processes that overlap. Pure.

Each set has a count and a hash of its own, which say nothing of other sets' programs in between.
Where two sets share two processes or more, programs of both may meet in one communicator, and
another order on one of these processes mixes them, or ends in a deadlock. So each such pair of sets
has a hash of its own over the launches of both: equal on all processes that are in both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

from jaxcluster import wire


class Crossings:
    """One rank's record. Costs nothing while all programs are of the same set."""

    def __init__(self) -> None:
        # Count and hash: by pair, and for each set of it.
        self._pairs: dict[str, list[int]] = {}
        self._of: dict[str, list[list[int]]] = {}

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def begin(self, processes: str, counts: Mapping[str, Sequence[int]]) -> None:
        """A set has its first launch; ``counts`` are those of the other sets until now."""
        own = set(processes.split(","))
        for other, (count, _) in counts.items():
            if other == processes or len(own.intersection(other.split(","))) < 2:
                continue
            key = wire.crossing(processes, other)
            pair = self._pairs[key] = wire.crossing_began(other, count)
            self._of.setdefault(processes, []).append(pair)
            self._of.setdefault(other, []).append(pair)

    def launched(self, processes: str, fingerprint: int) -> None:
        for pair in self._of.get(processes, ()):
            count, value = pair
            pair[:] = [count + 1, wire.next_hash(value, fingerprint)]

    def told(self) -> dict[str, list[int]]:
        """Pair of sets -> [launches of both since the second began, hash of them]."""
        return {key: list(pair) for key, pair in list(self._pairs.items())}

    def copy(self) -> Crossings:
        return copy.deepcopy(self) if self._pairs else Crossings()

    def clear(self) -> None:
        self._pairs.clear()
        self._of.clear()
