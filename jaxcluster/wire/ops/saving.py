"""How ranks save their variables, and have them again."""

from __future__ import annotations

from dataclasses import field

from jaxcluster.agreement.messages import CellSpec
from jaxcluster.wire.ops import Message, Operation


class SavePlace(Message):
    """A folder that a rank may save to, and how much it may take of it (None: of a disk)."""

    folder: str
    room: int | None = None


class Saved(Message):
    """A rank's report of the variables that it has saved in a file, ``rank-N.state``."""

    path: str = ""
    nbytes: int = 0
    kept: list[str] = field(default_factory=list)  # the names that were saved
    lost: dict[str, str] = field(default_factory=dict)  # the others, and why
    spanning: list[str] = field(default_factory=list)  # names with arrays that span processes
    unbound: dict[str, str] = field(default_factory=dict)  # names that were lost earlier, and how
    left: dict[str, str] = field(default_factory=dict)  # settings that can't be saved, and why


class Save(Operation[Saved], op="save"):
    """Save the variables, to the first of these places that has room. Any thread."""

    places: list[SavePlace]
    compare: bool = False  # note of each value by what other ranks know it if they have the same


class Checkpoint(Operation[Saved], op="checkpoint"):
    """The same at one place among the cells; a file that is there is replaced."""

    turn: CellSpec
    places: list[SavePlace]
    compare: bool = False


class Made(Message):
    """The names that a rank can bind, or has bound; and names or settings that it can't: why."""

    names: list[str]
    lost: dict[str, str] = field(default_factory=dict)


class Load(Operation[Made], op="load"):
    """Read what was saved, and hold it under the token."""

    turn: CellSpec
    token: str
    files: dict[int, str]  # by the ranks that have saved them
    own: int | None  # the rank whose values are read; None: those that can't differ between ranks
    num_processes: int  # how many ranks there were
    only: list[str] | None = None  # the names that are read, without settings; None: all


class Bind(Operation[Made], op="bind"):
    """Bind what was read, but for the names that are lost.

    Unbind these names; code that uses one gets an error with the reason.
    """

    turn: CellSpec
    token: str  # "": nothing was read
    lost: dict[str, str]


class Drop(Operation[None], op="drop"):
    """Give up what was read, or is being read."""

    token: str
