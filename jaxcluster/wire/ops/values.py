"""Messages that bring values to ranks and back: pull, push, and requests about names."""

from __future__ import annotations

import sys
from dataclasses import field
from typing import Any

from jaxcluster.agreement.messages import CellSpec
from jaxcluster.wire.ops import Message, Operation
from jaxcluster.wire.ops.arrays import ArrayInfo

FILE_FROM_NBYTES = 1 << 16  # below this a frame is quicker than memory
Hashes = list[Any]  # (leaf, part, hash) of parts that other processes have too


class Pulled(Message):
    """A value's arrays as a rank has them.

    The reply's buffers are the pickle, if it was asked for, and the bytes of the rank's shards. It
    gives those of which it has the first copy, in the order of ``arrays``. Or they are read where
    they are.
    """

    arrays: list[ArrayInfo]
    buffers: int = 0  # so many of the arrays, the last ones, are the pickle's other buffers
    places: list[list[str]] = field(default_factory=list)  # equal where ranks have the same array
    copies: Hashes = field(default_factory=list)
    total: int = 0  # the bytes of all arrays of which something is given, or would be if it fitted
    spans: list[tuple[int, int]] = field(default_factory=list)  # addresses in its memory, nbytes


class Pull(Operation[Pulled], op="pull"):
    """Give what a rank has of a value, in turn."""

    turn: CellSpec
    name: str
    pickle: bool  # with the pickle and its other buffers
    plain: bool = False  # with dicts and lists as containers
    is_all: bool = False  # also arrays of which this rank knows no other part
    token: str = ""  # under which bytes are held in its memory, if they are many, until ``Drop``
    reader: int = 0  # the process here that reads them, each shard; its agent reads all at once
    room: int = sys.maxsize  # of more bytes nothing is given


class Assign(Operation[None], op="assign"):
    """Read pushed values, in turn. ``saving.Bind`` binds them, when all ranks have done so.

    The first buffer is the pickle.
    """

    turn: CellSpec
    token: str
    path: str = ""
    buffers: list[list[int]] = field(default_factory=list)  # [start, stop] of each in a file
