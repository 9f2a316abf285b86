"""What a rank writes down of its own copy, for who comes when the rank is dead.

A mark is one write of some bytes, into one of two places in turn. The process may be killed in the
middle of it: the last whole one counts.

The mark beside a mirror, in another host's memory, names only what is whole there. It arrives late:
it is an earlier mark of the rank's, and what has happened since is told by others.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

_NUMBERS = struct.Struct("<9Q")
_SUM = struct.Struct("<I")
NBYTES = _NUMBERS.size + _SUM.size


@dataclass(frozen=True)
class Mark:
    """Which versions of its copy a rank has.

    Attributes:
      number: counts the marks.
      begun, ended: the seqs of the last cell that has begun on it, and of the last that has ended.
      before: the version of what the variables were before the last cell that has begun; 0: none.
      after: the version of what they are, between cells; 0: none.
      coming: another version is pinned, and being written.
      outside: how often something else than a cell has changed them, ever.
      entered: how often that was a client's own code.
      lately: how many of these since the cell before the last one has begun.
    """

    number: int = 0
    begun: int = 0
    ended: int = 0
    before: int = 0
    after: int = 0
    coming: int = 0
    outside: int = 0
    entered: int = 0
    lately: int = 0

    def pack(self) -> tuple[bytes, int]:
        """The bytes, and where in the file they go."""
        numbers = _NUMBERS.pack(*vars(self).values())
        return numbers + _SUM.pack(crc32(numbers)), self.number % 2 * NBYTES

    @staticmethod
    def unpack(data: bytes) -> Mark:
        """The last mark in a file; all 0 where there is none."""
        found = [Mark()]
        for at in (0, NBYTES):
            numbers, checksum = data[at:][: _NUMBERS.size], data[at + _NUMBERS.size :][:4]
            if len(checksum) == 4 and crc32(numbers) == _SUM.unpack(checksum)[0]:
                found.append(Mark(*_NUMBERS.unpack(numbers)))
        return max(found, key=lambda mark: mark.number)

    def version_for(self, undone: int, last: int, first: int) -> int:
        """The version that has what is to come back; 0: none has.

        Args:
          undone: the cell that is taken back, of those that this rank was sent; 0: none is.
          last: the last cell that it was sent; ``first``: the last one of its predecessor.
        """
        if undone and self.begun == undone:
            return self.before
        is_between = self.begun == self.ended
        is_last = self.begun == last or (not self.begun and last <= first)
        if is_between and (self.begun < undone if undone else is_last):
            return self.after
        return 0

    def mirror_for(self, undone: int, after: int, first: int, since: Since) -> int:
        """The version of a mirror that has what is to come back; 0: none, or it may be older.

        Args:
          undone: as in ``version_for``.
          after: the last cell that the rank was sent, but for that one; -1: not known.
          first: as in ``version_for``.
        """
        if undone and self.begun == undone:
            return self.before  # nothing can have changed that since
        is_last = self.begun == after or (not self.begun and 0 <= after <= first)
        is_between = self.begun == self.ended
        return self.after if is_between and is_last and not since.has_changed(self) else 0


@dataclass(frozen=True)
class Since:
    """What is known of a lost rank but by its mirror.

    Attributes:
      outside: what it told last of this (see ``Mark``).
      living: the marks of ranks whose hosts are not lost: what a client's code has run on one of
        them, it may have run on this one.
    """

    outside: int = 0
    living: tuple[Mark, ...] = ()

    def has_changed(self, mark: Mark) -> bool:
        """Whether the variables may have changed since a mark of the rank's, in no cell."""
        has_client = any(one.lately and one.entered > mark.entered for one in self.living)
        return has_client or self.outside > mark.outside
