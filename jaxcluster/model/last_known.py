"""What a rank has told of its names and values, so that it is known after the rank has died."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from jaxcluster import wire


@dataclass
class LastKnown:
    """One rank's.

    Attributes:
      names: those that it has.
      seq: the last cell whose end it has told.
      values: what they are (``wire.NameChanges.values``), and the cell that made them so.
      is_spoiled: something else than a cell of this notebook has changed some since, or may have.
    """

    names: set[str] = field(default_factory=set)
    seq: int = 0
    values: dict[str, tuple[str, int]] = field(default_factory=dict)
    is_spoiled: bool = False
    _before: dict[str, tuple[str, int] | None] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _made: set[str] = field(default_factory=set)
    _at: dict[str, int] = field(default_factory=dict)  # the cell that has changed a name last

    def hear(self, seq: int, changes: wire.NameChanges) -> None:
        """A cell has ended. What is heard of queued ones may come in any order."""
        if seq < self.seq:
            self._hear_late(seq, changes)
            return
        earlier: dict[str, tuple[str, int]] = {}
        if changes.is_first:  # all is told again, also what is as it was
            earlier = self.values
            self.names, self.values, self.is_spoiled = set(), {}, False
        self.seq = seq
        self._gone = self.names.intersection(changes.gone)
        # What was there before a first cell is not known: none of it is taken for the cell's.
        self._made = set() if changes.is_first else set(changes.bound) - self.names
        self._before = {name: self.values.pop(name, None) for name in changes.gone}
        self.names.difference_update(changes.gone)
        self.names.update(changes.bound)
        for name, text in changes.values.items():
            self._before[name] = self.values.get(name) or earlier.get(name)
            known = earlier.get(name, ("", 0))
            self.values[name] = known if known[0] == text else (text, seq)
        self._at |= dict.fromkeys([*changes.bound, *changes.gone, *changes.values], seq)

    def _hear_late(self, seq: int, changes: wire.NameChanges) -> None:
        """A cell has ended before the last one that was heard of: that one's changes stay."""
        for name in {*changes.bound, *changes.values}:
            text = changes.values.get(name)
            if (at := self._at.get(name, 0)) < seq:
                self._at[name] = seq
                self.names.add(name)
                if text is not None:
                    self.values[name] = text, seq
            elif at == self.seq:
                self._made.discard(name)
                self._before[name] = None if text is None else (text, seq)
        for name in changes.gone:
            if self._at.get(name, 0) < seq:
                self._at[name] = seq
                self.names.discard(name)
                self.values.pop(name, None)

    def hear_bound(self, values: Mapping[str, str]) -> None:
        """Something else than a cell has bound these. It is not undone with the cell before it."""
        self.names |= set(values)
        for name, text in values.items():
            self.values[name] = text, self.seq
            self._before.pop(name, None)
        self._made.difference_update(values)

    def hear_unbound(self, names: Iterable[str]) -> None:
        """Something else than a cell has unbound these."""
        for name in names:
            self.names.discard(name)
            self._gone.discard(name)
            self.values.pop(name, None)
            self._before.pop(name, None)

    def undo(self, seq: int, in_doubt: Iterable[str]) -> None:
        """A cell was taken back; of the values of names that are ``in_doubt`` nothing is known."""
        if self.seq == seq:
            self.names = (self.names - self._made) | self._gone
            for name, value in self._before.items():
                if value is None:
                    self.values.pop(name, None)
                else:
                    self.values[name] = value
            self._before, self._made, self._gone = {}, set(), set()
        for name in in_doubt:
            self.values.pop(name, None)

    def spoil(self) -> None:
        """Something that this notebook has not done changes variables there: any of them."""
        self.values, self._before = {}, {}
        self.is_spoiled = True

    def known(self, until: int | None = None) -> dict[str, str]:
        """What its values are, as far as it is known, and has been so since cell ``until``."""
        return {
            name: text
            for name, (text, seq) in [*self.values.items()]  # heard of on another thread
            if text and (until is None or seq <= until)
        }
