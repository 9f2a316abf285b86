"""How values come to ranks and back: pull, push, and what is done to names."""

from __future__ import annotations

import importlib
import io
import sys
from dataclasses import field
from typing import Any

from jaxcluster.agreement.cellqueue import CellSpec
from jaxcluster.wire.ops import Message, Operation
from jaxcluster.wire.ops.arrays import ArrayInfo

FILE_FROM_NBYTES = 1 << 16  # below this a frame is quicker than a file
Hashes = list[Any]  # (leaf, part, hash) of parts that other processes have too


def refuse_file(file: Any) -> tuple[Any, ...]:
    """Reduce an open file: cloudpickle would send its text, as a ``StringIO``.

    Raises:
      TypeError: it is neither of the streams that each process has.
    """
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    which = getattr(file, "name", file)  # one over a buffer has none
    raise TypeError(f"{which!r} is an open file. Send its path, or what it has: file.read()")


FILES = dict.fromkeys(
    (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO),
    refuse_file,
)


class OfJax:
    """A module, function or class of jax's, in a process that does not import jax.

    Classes of cells mention them, in annotations and in methods, and can be used without them.
    """

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __reduce__(self) -> Any:
        return of_jax, (self._module, self._name)

    def __repr__(self) -> str:
        return ".".join(filter(None, [self._module, self._name]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return OfJax(self._module, f"{self._name}.{name}".lstrip("."))

    def __or__(self, other: Any) -> OfJax:
        return self

    __ror__ = __or__

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What only jax can do.

        Raises:
          ImportError: always.
        """
        raise ImportError(f"{self} is not here: run it on the ranks, in a %%spmd cell")


def of_jax(module: str, name: str) -> Any:
    """A module of jax's, or what has this name there."""
    if "jax" not in sys.modules:
        return OfJax(module, name)
    found = importlib.import_module(module)
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found


def reference_to(cls: type) -> Any:
    """How ``jax.Array`` is pickled, whose own name is another one; None for other classes."""
    _, dot, name = cls.__name__.rpartition(".")
    if dot and getattr(sys.modules.get(cls.__module__), name, None) is cls:
        return of_jax, (cls.__module__, name)
    return None


class Pulled(Message):
    """A value's arrays as a rank has them.

    The reply's buffers are the pickle, if it was asked for, and the bytes of the rank's shards: of
    those of which it has the first copy, in the order of ``arrays``. Or a file has them.
    """

    arrays: list[ArrayInfo]
    buffers: int = 0  # so many of the arrays, the last ones, are the pickle's other buffers
    places: list[list[str]] = field(default_factory=list)  # equal where ranks have the same array
    copies: Hashes = field(default_factory=list)
    total: int = 0  # the bytes of all arrays of which something is given, or would be if it fitted
    nbytes: int = 0  # of the file; 0 if there is none


class Pull(Operation[Pulled], op="pull"):
    """Give what a rank has of a value, in turn."""

    turn: CellSpec
    name: str
    pickle: bool  # with the pickle and its other buffers
    plain: bool = False  # with dicts and lists as containers
    is_all: bool = False  # also arrays of which this rank knows no other part
    path: str = ""  # of a file for the bytes, if they are many; it may not be there yet
    room: int = sys.maxsize  # of more bytes nothing is given


class Assign(Operation[None], op="assign"):
    """Read pushed values, in turn. ``saving.Bind`` binds them, when all ranks have done so.

    The first buffer is the pickle.
    """

    turn: CellSpec
    token: str
    path: str = ""
    buffers: list[list[int]] = field(default_factory=list)  # [start, stop] of each in a file
