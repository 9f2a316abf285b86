"""How ranks save their variables, take them back, and undo a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.wire.ops import Operation

Where = str | Mapping[str, str]  # a folder: here, or what is needed to read it from another host


@dataclass(frozen=True)
class SavePlace:
    """A folder that a rank may save to, and how much it may take of it (None: of a disk)."""

    folder: str
    room: int | None = None


@dataclass(frozen=True)
class NewDevices:
    """What the ranks are to be resized to: so many devices, and meshes with these axes."""

    devices: int
    mesh: dict[str, int]


@dataclass(frozen=True)
class SavedNames:
    """What is saved of a rank's names as they were at one moment.

    Attributes:
      kept: the names; ``lost``: the others, and why.
      spanning: names with arrays that span processes.
      common: names whose values say nothing of the rank that holds them.
      digests: equal on ranks where a name has equal values (of an array that spans processes only
        its metadata counts).
      texts: what the values are, as in a ``NameChanges``.
    """

    kept: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    spanning: list[str] = field(default_factory=list)
    common: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def names(self) -> set[str]:
        """All of them."""
        return {*self.kept, *self.lost}


@dataclass(frozen=True)
class SavedBefore(SavedNames):
    """The names that a cell has bound, as they were before it; ``absent``: those that were not
    there. Without ``known``, the rank does not know.
    """

    absent: list[str] = field(default_factory=list)
    known: bool = True


@dataclass(frozen=True)
class SaveReport(SavedNames):
    """What a rank has saved to a file of ``file_nbytes`` in this ``folder``.

    Attributes:
      nbytes: of the values.
      unbound: names that were lost earlier, and how.
      left: settings that can't be saved, and why; ``random`` and ``set_to`` tell the others apart,
        as ``engine.state.saved`` has them.
      unclear: for a resize: why it is not clear what becomes of the meshes, and what to type.
      sources: of the last cells that were sent to the rank, by seq: of one that a dead rank was in,
        another notebook's, say what that may have bound.
    """

    before: SavedBefore = field(default_factory=SavedBefore)
    nbytes: int = 0
    unbound: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    random: dict[str, Any] = field(default_factory=dict)
    set_to: dict[str, str] = field(default_factory=dict)
    folder: str = ""
    file_nbytes: int = 0
    seconds: float = 0.0
    unclear: list[str] = field(default_factory=list)
    sources: dict[int, str] = field(default_factory=dict)


class Snapshot(Operation[SaveReport], op="snapshot"):
    """Save the variables, to the first of these places that has room. Any thread.

    With ``digests`` of the values; and what they were before the ``cell`` of this seq. ``resize``:
    whether it is clear what becomes of the meshes is looked at too.
    """

    places: list[SavePlace]
    digests: bool = False
    cell: int | None = None
    resize: NewDevices | None = None


class HoldReplies(Operation[None], op="hold_replies"):
    """Hold the replies to other notebooks' cells back from now on, or send them."""

    is_on: bool


@dataclass(frozen=True)
class Take:
    """What a rank takes from what was saved in a folder.

    Attributes:
      names: only these.
      before: those that are taken as they were before the cell.
      from_rank: whose state is taken; None: the rank's own.
      texts: what Python writes for the values of more names.
      skip: settings that are not set.
    """

    path: Where
    names: list[str] | None = None
    before: list[str] = field(default_factory=list)
    from_rank: int | None = None
    texts: dict[str, str] = field(default_factory=dict)
    skip: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Chosen:
    """What is known of what was saved besides the files that there are.

    Attributes:
      older: names that are taken from before the cell, as it is undone or has lost them.
      absent: names that were not there before it, and are not to be there now.
      doubtful: names of which a rank that has no file may have had a value of its own.
      told: what ranks without a file, which have died, have told of their values: texts by name.
    """

    older: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    told: dict[int, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RestoreLooked:
    """The names that would be ``restored``; why others are ``lost``, or could not be saved.

    Of another number of ranks, which were so many ``before``: names that this rank, as a new one,
    has no value of (``own``), those of which gone ranks had their own (``gone``), those that may be
    each rank's own and that it has from the one rank that there was (``only``), those with arrays
    whose copies are not equal on all ranks (``unequal``), and with arrays that wait to be placed
    (``unplaced``).
    """

    restored: list[str]
    lost: dict[str, str]
    unsaved: dict[str, str]
    before: int = 0
    own: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)
    unplaced: list[str] = field(default_factory=list)


class RestoreLook(Operation[RestoreLooked], op="restore_look"):
    """Read what was saved, and hold it under the token. On the main thread.

    It may be of another number of ranks; ``mesh`` are the axes' sizes then, where they must be
    named. In place of the ``path`` there are ``folders``, where the file of each rank is that has
    saved, or what this rank is to ``take``.
    """

    token: str
    path: str = ""
    take: Take | None = None
    mesh: dict[str, int] = field(default_factory=dict)
    folders: dict[int, Where] = field(default_factory=dict)
    chosen: Chosen = field(default_factory=Chosen)


@dataclass(frozen=True)
class RestoreBound:
    """The settings that are ``left`` (why), and the names that are ``restored``.

    ``values`` as in a ``NameChanges``.
    """

    left: dict[str, str]
    restored: list[str]
    values: dict[str, str] = field(default_factory=dict)


class RestoreBind(Operation[RestoreBound], op="restore_bind"):
    """Bind what was read, but for the names that any rank has lost: these are unbound."""

    token: str
    unbind: list[str]
    lost: dict[str, str]


ALREADY_UNDONE = "it is already undone"  # why a rank refuses to undo a cell


class RestoreDrop(Operation[None], op="restore_drop"):
    """Give up what was read, or is being read."""

    token: str


@dataclass(frozen=True)
class UndoLooked:
    """What taking back a cell would come to.

    Attributes:
      back: names that will be what they were; ``made``: names that will be unbound.
      in_place: names whose values were changed in place and will be what they were.
      donated: names whose values from before the cell are deleted.
      failed: names with values that can't be put back.
      opaque: (name: what it is) and ``too_large``: names of which nothing is known.
    """

    back: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    in_place: list[str] = field(default_factory=list)
    donated: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)
    too_large: list[str] = field(default_factory=list)


class UndoLook(Operation[UndoLooked], op="undo_look"):
    """What taking back this cell would come to. Changes nothing.

    It stays possible for ``hold_s``, or until ``UndoDrop``: a client's code (``%%px``) waits.
    """

    seq: int
    hold_s: float


class UndoDrop(Operation[None], op="undo_drop"):
    """The cell that was looked at is taken back, or will not be: what waits for that may begin."""


class Undo(Operation[list[str]], op="undo"):
    """Take a cell back, but ``leave`` these names; replies the names that it ``failed`` for."""

    seq: int
    leave: list[str]
    lost: dict[str, str]


class UndoLimit(Operation[int], op="undo_limit"):
    """Hold so many bytes on a device for undo at most; replies how many.

    0 switches it off, None is the default.
    """

    nbytes: int | None
