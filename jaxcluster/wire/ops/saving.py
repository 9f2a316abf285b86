"""How ranks save their variables, and have them again."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.wire.ops import Operation


@dataclass(frozen=True)
class SavePlace:
    """A folder that a rank may save to, and how much it may take of it (None: of a disk)."""

    folder: str
    room: int | None = None


@dataclass(frozen=True)
class MeshAxes:
    """A mesh of all devices: its axes and their sizes; ``after``: for other devices."""

    names: list[str]
    sizes: list[int]
    after: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Saved:
    """What a rank has saved in a folder.

    Attributes:
      files: their names there; ``nbytes``: their sizes together.
      kept: the names; ``lost``: the others, and why.
      spanning: names with arrays that span processes.
      unbound: names that were lost earlier, and how.
      left: settings that can't be saved, and why.
      meshes: those of all devices.
    """

    folder: str = ""
    files: list[str] = field(default_factory=list)
    nbytes: int = 0
    kept: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    spanning: list[str] = field(default_factory=list)
    unbound: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    meshes: list[MeshAxes] = field(default_factory=list)


class Save(Operation[Saved], op="save"):
    """Save the variables, to the first of these places that has room. Any thread.

    ``compare``: note of each value by what other ranks know it if they have the same.
    """

    places: list[SavePlace]
    compare: bool = False


class Checkpoint(Operation[Saved], op="checkpoint"):
    """The same at one place among the cells; a file that is there is replaced."""

    turn: CellSpec
    places: list[SavePlace]
    compare: bool = False


@dataclass(frozen=True)
class Loaded:
    """The names that a rank can bind, and others that it can't, and why."""

    names: list[str]
    lost: dict[str, str] = field(default_factory=dict)


class Load(Operation[Loaded], op="load"):
    """Read what was saved, and hold it under the token.

    Attributes:
      files: the folders of what was saved, by the ranks that have saved it.
      own: the rank whose values are read; None: those alone that can't differ between ranks.
      num_processes: how many ranks there were.
      meshes: for another number of ranks: what becomes of those of all devices.
      only: the names that are read, without settings; None: what there is.
    """

    turn: CellSpec
    token: str
    files: dict[int, str]
    own: int | None
    num_processes: int
    meshes: list[MeshAxes] = field(default_factory=list)
    only: list[str] | None = None


@dataclass(frozen=True)
class Bound:
    """The names that are bound, and the settings that are not: why."""

    names: list[str]
    left: dict[str, str] = field(default_factory=dict)


class Bind(Operation[Bound], op="bind"):
    """Bind what was read, but for the names that are lost; "" in place of the token: nothing.

    These names are unbound, and who uses one is told the reason.
    """

    turn: CellSpec
    token: str
    lost: dict[str, str]


class Drop(Operation[None], op="drop"):
    """Give up what was read, or is being read."""

    token: str
