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
        # Count, hash and the hash before the last launch: by pair, and for each set of it.
        self._pairs: dict[str, list[int]] = {}
        self._of: dict[str, list[list[int]]] = {}

    def begin(self, processes: str, counts: Mapping[str, Sequence[int]]) -> None:
        """A set has its first launch; ``counts`` are those of the other sets until now."""
        own = set(processes.split(","))
        for other, (count, _) in counts.items():
            if other == processes or len(own.intersection(other.split(","))) < 2:
                continue
            # How far the other set was: another order begins at another place.
            key = wire.crossing(processes, other)
            began = wire.next_hash(count, int.from_bytes(other.encode(), "little"))
            pair = self._pairs[key] = [0, began, began]
            self._of.setdefault(processes, []).append(pair)
            self._of.setdefault(other, []).append(pair)

    def launched(self, processes: str, fingerprint: int) -> None:
        for pair in self._of.get(processes, ()):
            count, value, _ = pair
            pair[:] = [count + 1, wire.next_hash(value, fingerprint), value]

    def take_back(self, processes: str) -> None:
        """The set's last launch was not made, and no other was since."""
        for pair in self._of.get(processes, ()):
            count, _, before = pair
            pair[:] = [count - 1, before, before]

    def told(self) -> dict[str, list[int]]:
        """Pair of sets -> [launches of both since the second began, hash of them]."""
        return {key: [count, value] for key, (count, value, _) in list(self._pairs.items())}

    def clear(self) -> None:
        self._pairs.clear()
        self._of.clear()
