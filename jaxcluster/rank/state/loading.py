"""Makes a namespace's values again from the files of one or more ranks."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jaxcluster.engine.private.pytrees import register
from jaxcluster.rank.state import classes
from jaxcluster.rank.state.arrays import ArraysToLoad, Fitted, Gap, device_at, mesh_at, why
from jaxcluster.rank.state.file import BadFile, StateFile
from jaxcluster.rank.state.pickling import Pickled, own_objects
from jaxcluster.rank.state.settings import OUT, REGISTERED, SETTINGS, apply, changes, now

# What a function of that name has changed is its first argument; what it returns is dropped.
SETTER = "_setstate"
# Steps that make something, by how much they take from the stack, and steps that change the top.
MAKES = {pickle.REDUCE: 2, pickle.NEWOBJ: 2, pickle.NEWOBJ_EX: 3, pickle.STACK_GLOBAL: 2}
MAKES |= {pickle.BINPERSID: 1, pickle.FROZENSET: 0}
CHANGES = [pickle.BUILD, pickle.SETITEM, pickle.SETITEMS]
CHANGES += [pickle.APPEND, pickle.APPENDS, pickle.ADDITEMS]
_Python: Any = pickle._Unpickler


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
            if name == SETTINGS and not broken and not is_part:
                found.settings, found.left = value, apply(value)
            elif name == REGISTERED and not is_part:
                for cls, how in value:
                    with contextlib.suppress(Exception):  # JAX refuses it
                        register(cls, how)
            elif name not in (SETTINGS, REGISTERED) and (only is None or name in only):
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


def maker(
    namespace: dict[str, Any], array: Callable[[Any, Any], Any], fitted: Fitted
) -> Callable[[Any], Any]:
    """What makes a value of a namespace by what stands for it in a pickle.

    Args:
      array: makes an array by what stands for it and its sharding.
      fitted: for meshes of all devices, by their axes and sizes, the sizes that they have now.
    """
    makers: dict[str, Callable[..., Any]] = {
        "array": array,
        "device": device_at,
        "mesh": functools.partial(mesh_at, fitted),
        "globals": lambda name: vars(importlib.import_module(name)),
        "own": own_objects(namespace).__getitem__,
    }
    return lambda known: makers[known[0]](*known[1:])


def _guarded(op: bytes, taken: int = 0, *, is_made: bool = False) -> Callable[[Any], None]:
    """A step after which an error leaves a gap, or an object that is broken."""

    def guarded(self: Any) -> None:
        depth = len(self.stack) - taken
        given = self.stack[depth:]
        try:
            _Python.dispatch[op[0]](self)
        except BadFile:
            raise
        except Exception as error:
            parts = [part for one in given if type(one) is tuple for part in one]
            told = next((one.why for one in (*given, *parts) if type(one) is Gap), why(error))
            if is_made:
                del self.stack[depth if taken else len(self.stack) :]
                self.stack.append(Gap(told))
            self.note(self.stack[-1], told)
            if taken and getattr(given[0], "__name__", "").endswith(SETTER) and parts:
                self.note(parts[0], told)

    return guarded


class TolerantUnpickler(_Python):
    """The one in Python, which goes on after an error.

    Attributes:
      broken: by their ids the objects that could not be made, or not to the end, and why.
    """

    dispatch: ClassVar[Any] = (
        _Python.dispatch
        | {op[0]: _guarded(op, taken, is_made=True) for op, taken in MAKES.items()}
        | {op[0]: _guarded(op) for op in CHANGES}
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.broken, self._kept = dict[int, str](), list[Any]()

    def note(self, broken: Any, told: str) -> None:
        """An object is broken, whose id stays its own."""
        self._kept.append(broken)
        self.broken.setdefault(id(broken), told)
