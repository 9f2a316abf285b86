"""How the ranks of a cell agree, without a launch: through the coordination service's store.

Whoever is asked answers on a thread of its own, whatever its main thread does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from jaxcluster.engine.private.coordination import Store

POLL_S = (0.002, 0.05)  # between looks at what others have written: at first, and at last
HEAR_S = 1.0  # for one wait for a text


class Agreement:
    """One rank's part in what the ranks of a cell agree on. Any thread.

    Args:
      store: where they do; None where the rank is alone.
      rank: this one.
      ranks: all that take part; the first one leads.
      topic: what nothing else in the store begins with.
    """

    def __init__(self, store: Store | None, rank: int, ranks: Sequence[int], topic: str) -> None:
        self.rank, self.ranks, self.topic = rank, tuple(ranks), topic
        self._store = store
        self._alone: dict[str, str] = {}

    @property
    def leader(self) -> int:
        return self.ranks[0]

    @property
    def leads(self) -> bool:
        return self.rank == self.leader

    def tell(self, subject: str, text: str) -> None:
        """Have all others read this."""
        if self._store is None:
            self._alone[subject] = text
        else:
            self._store.write(f"{self.topic}/{subject}/{self.rank}", text)

    def heard(self, subject: str) -> dict[int, str]:
        """What ranks have said of it by now."""
        if self._store is None:
            return {self.rank: self._alone[subject]} if subject in self._alone else {}
        return {int(r): t for r, t in self._store.read(f"{self.topic}/{subject}").items()}

    def forget(self, subject: str) -> None:
        """Nobody comes to it any more: take away what was said here."""
        self._alone.pop(subject, None)
        if self._store is not None:
            self._store.delete(f"{self.topic}/{subject}/{self.rank}")

    def hear_leader(self, subject: str) -> str | None:
        """What the first rank, another one, says of it; None: nothing within ``HEAR_S``."""
        assert self._store is not None
        return self._store.wait(f"{self.topic}/{subject}/{self.leader}", HEAR_S)

    def ask_all(self, subject: str, text: str) -> dict[int, str]:
        """Say this, and hear what all ranks say of it. Waits for them as long as it takes."""
        self.tell(subject, text)
        heard = self.hear_all(subject, lambda: True)
        assert heard is not None
        return heard

    def hear_all(self, subject: str, go_on: Callable[[], bool]) -> dict[int, str] | None:
        """What all ranks have said of it, once they have; None where it is not to go on."""
        pause_s = POLL_S[0]
        while len(heard := self.heard(subject)) < len(self.ranks):
            if not go_on():
                return None
            time.sleep(pause_s)
            pause_s = min(POLL_S[1], pause_s * 1.2)
        return heard
