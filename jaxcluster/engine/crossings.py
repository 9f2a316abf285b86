"""In which order a rank launched the programs of sets of processes that overlap. Pure.

Each set has a count and a hash of its own, which say nothing of other sets' programs in between.
Where two sets share two processes or more, programs of both may meet in one communicator, and
another order on one of these processes mixes them, or ends in a deadlock. So each such pair of sets
has a hash of its own over the launches of both: equal on all processes that are in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxcluster import wire


class Crossings:
    """One rank's record. Costs nothing while all programs are of the same set."""

    def __init__(self) -> None:
        self._pairs: dict[str, tuple[int, int]] = {}  # count and hash
        self._of: dict[str, tuple[str, ...]] = {}  # the pairs that a set is one of

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def begin(self, processes: str, counts: Mapping[str, Sequence[int]]) -> None:
        """A set has its first launch; ``counts`` are those of the other sets until now."""
        own = set(processes.split(","))
        for other, (count, _) in counts.items():
            if other == processes or len(own.intersection(other.split(","))) < 2:
                continue
            key = wire.crossing(processes, other)
            began, value = wire.crossing_began(other, count)
            self._pairs[key] = began, value
            for each in (processes, other):
                self._of[each] = (*self._of.get(each, ()), key)

    def launched(self, processes: str, fingerprint: int) -> None:
        for key in self._of.get(processes, ()):
            count, value = self._pairs[key]
            self._pairs[key] = count + 1, wire.next_hash(value, fingerprint)

    def told(self) -> dict[str, list[int]]:
        """Pair of sets -> [launches of both since the second began, hash of them]."""
        return {key: list(pair) for key, pair in list(self._pairs.items())}

    def copy(self) -> Crossings:
        same = Crossings()
        same._pairs, same._of = self._pairs.copy(), self._of.copy()
        return same
