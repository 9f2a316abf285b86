"""Makes a namespace's values again from the files of one or more ranks.

What can't be made is a ``Gap``. Names that reach one are lost, and all others are whole.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.engine.private.pytrees import register
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import ArraysToLoad
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickling import Fitted, TolerantUnpickler, Unpickler
from jaxcluster.rank.state.saving import REGISTERED, SETTINGS, Pickled
from jaxcluster.rank.state.settings import OUT, apply, changes, now, show_sources


class GivenUp(Exception):
    """Nobody waits for it any more."""


@dataclass
class Values:
    """What was read.

    Attributes:
      names: their values; ``lost``: those that could not be made, and why.
      results: what cells have ended in.
      settings: those that were saved; ``left``: those that could not be set, and why.
      before: the settings before.
    """

    names: dict[str, Any] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=now)

    def take(self, name: str, value: Any, only: set[str] | None, *, is_part: bool) -> None:
        """Take what a file has under a name."""
        if name == SETTINGS and not is_part:
            self.settings, self.left = value, apply(value)
            show_sources(value)
        elif name == REGISTERED:
            for cls, how in value:
                with contextlib.suppress(Exception):  # JAX refuses it
                    register(cls, how)
        elif name != SETTINGS and (only is None or name in only):
            (self.results if name.startswith(OUT) else self.names)[name] = value

    def undo(self) -> None:
        """Set the settings that there were before."""
        apply(changes(now(), self.before))


def known(files: Mapping[int, StateFile], base: int, num_processes: int) -> set[str]:
    """The names in a rank's file that a new rank may have.

    They can't differ between ranks, or all ranks that there were had equal values.
    """
    import jax

    about = [file.about for file in files.values()]
    found = {*files[base].about["common"]}
    if num_processes != jax.process_count() and len(files) == num_processes:
        digests = files[base].about["digests"].items()
        found |= {n for n, own in digests if own and all(a["digests"].get(n) == own for a in about)}
    return found


def load(
    files: Mapping[int, StateFile],
    base: int,
    namespace: dict[str, Any],
    check: Callable[[], None],
    fitted: Fitted,
    only: set[str] | None = None,
    *,
    is_part: bool = False,
) -> Values:
    """Make the values that a rank's file has, and set its settings; nothing is bound.

    Args:
      base: the rank whose file it is. The others' have shards that it lacks.
      check: raises GivenUp where it is to end.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
      only: the names that are wanted, where it is another rank's file.
      is_part: no settings are wanted, and the classes of cells that are there stay.

    Raises:
      BadFile: a file was changed.
    """
    classes.kept.set(set() if is_part else None)
    about, arrays, found = files[base].about, ArraysToLoad(files, base), Values()
    section = functools.cache(files[base].copy)

    def read(kind: type[Any]) -> Any:
        stream = io.BytesIO(section(about["pickle"]).data)
        buffers = (section(number).data for number in about["buffers"])
        unpickler = kind(stream, namespace, arrays.array, fitted, buffers)
        for name in about["names"]:
            check()
            value = unpickler.load()
            if name not in (SETTINGS, REGISTERED) or not unpickler.broken:
                found.take(name, value, only, is_part=is_part)
        return unpickler

    try:
        try:
            read(Unpickler)
        except (BadFile, GivenUp):
            raise
        except Exception:  # once more, to know which names it costs
            _take_out(found, namespace, read(TolerantUnpickler).broken)
    except BaseException:
        found.undo()
        raise
    if only is not None:
        found.settings.pop("random", None)
    return found


def _take_out(found: Values, namespace: dict[str, Any], broken: Mapping[int, str]) -> None:
    """Take the names out that reach what is broken."""
    lost = Pickled(found.names | found.results, namespace, broken).lost
    for names in (found.names, found.results):
        for name in [name for name in names if name in lost]:
            del names[name]
            found.lost[name] = lost[name]
