"""Makes a namespace's values again from the files of one or more ranks."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxcluster.engine.private.pytrees import register
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import ArraysToLoad
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickling import Fitted, TolerantUnpickler, maker
from jaxcluster.rank.state.saving import Pickled
from jaxcluster.rank.state.settings import OUT, REGISTERED, SETTINGS, apply, changes, now


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
    fitted: Fitted,
    only: set[str] | None = None,
    *,
    is_part: bool = False,
) -> Values:
    """Make the values that a rank's file has, and set its settings; nothing is bound.

    Names that reach what can't be made are lost, and all others are whole.

    Args:
      base: the rank whose file it is. The others' have shards that it lacks.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
      only: the names that are wanted, where it is another rank's file.
      is_part: no settings are wanted, and the classes of cells that are there stay.

    Raises:
      BadFile: a file was changed.
    """
    classes.kept.set(set() if is_part else None)
    about, arrays, found = files[base].about, ArraysToLoad(files, base), Values()
    section = functools.cache(files[base].copy)

    def read(kind: type[Any]) -> Mapping[int, str]:
        stream = io.BytesIO(section(about["pickle"]).data)
        buffers = (section(number).data for number in about["buffers"])
        unpickler = kind(stream, buffers=buffers)
        unpickler.persistent_load = maker(namespace, arrays.array, fitted)
        broken: Mapping[int, str] = getattr(unpickler, "broken", {})
        for name in about["names"]:
            value = unpickler.load()
            if name in (SETTINGS, REGISTERED) and (broken or is_part):
                continue
            if name == SETTINGS:
                found.settings, found.left = value, apply(value)
            elif name == REGISTERED:
                for cls, how in value:
                    with contextlib.suppress(Exception):  # JAX refuses it
                        register(cls, how)
            elif only is None or name in only:
                (found.results if name.startswith(OUT) else found.names)[name] = value
        return broken

    try:
        try:
            read(pickle.Unpickler)
        except BadFile:
            raise
        except Exception:  # once more, to know which names it costs
            broken = read(TolerantUnpickler)
            found.lost = Pickled(found.names | found.results, namespace, broken).lost
    except BaseException:
        found.undo()
        raise
    for names in (found.names, found.results):
        for name in names.keys() & found.lost.keys():
            del names[name]
    if only is not None:
        found.settings.pop("random", None)
    return found
