"""Says what ranks and the referee tell each other, as data and as frames. Pure.

A message is a word with its arguments, and a frame is one message. A rank says:

    hello     its rank, the name of the thread, the cell that has started it
    site      the next number, program and place
    arrive, end, withdraw, unmade, stop, look: see ``Referee``

A launch is a frame of ``LAUNCH``: b"L", its site, given, folded. The referee says to a thread:

    go        launch: its number among the rank's agreed launches. If only one thread of the rank
              launches, they come in order anyway: then 0. Its frame is b"g" and this number
    refuse    don't launch, and a ``Refusal``

and to a rank's control thread, first of all the cell's ``seq``:

    run       begin it
    skip      don't, and why: a ``Skipped``
    closed    nothing more is launched in it: a ``Refusal``, and whether to tell the notebook
    over      it has ended on all of its ranks; the same, but None if it is ok on all
    looked    what was asked for by this number: a ``Looked``
"""

from __future__ import annotations

import io
import pickle
import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import socket

KEY = "JAXCLUSTER_REFEREE_KEY"  # in the environment: the secret that relays of other hosts have
BUFFER = 120_000  # bytes of a frame, at most; for 128 KiB malloc would ask the kernel each time
LONG = 1 << 14  # bytes; longer frames are compressed: hundreds of ranks do much the same
LAUNCH = struct.Struct("<cIQQ")
MAIN = ""  # the name of a rank's main thread,
BASE = "base"  # ... of its control thread; other threads are named by their purpose
# How a cell may end on a rank, beside "ok", "error" and an error's text.
FAILED_IN_XLA, DIED = "failed in XLA", "died"
# XLA's state at a cell's end: it is at work, or is so still a while after an interrupt.
AT_WORK, STUCK = "at work", "stuck"

Hashes = dict[tuple[int, ...], int]  # of launches in a cell, by the processes of their programs
# See ``words.WORDS`` for what each says.
Kind = (
    Literal["ended", "differs", "circle", "idle", "died", "failed", "left", "stopped"]
    | Literal["torn", "uneven", "unequal"]
)
Does = Literal["waits", "works", "ended", "failed", "left", "died", "idle"]


# --------------------------------------------------------------------------- launches and cells


@dataclass(frozen=True)
class Place:
    """A rank's place at a launch: a line of a cell, and within it a line of another file.

    ``cell`` and ``line`` are 0 if no cell is on the stack, and ``text`` is that line. ``within`` is
    such as ``train.py line 3: x.sum()``, or empty.
    """

    cell: int = 0
    line: int = 0
    text: str = ""
    within: str = ""


NOWHERE = Place()


@dataclass(frozen=True, eq=False)
class Program:
    """A compiled program: its processes in order, and what tells it apart from others.

    Equal only if identical: there is one for each set and fingerprint. Without
    ``collective`` it waits for nobody. ``meets_all``: a rendezvous that main threads and others of
    any name may meet in, such as a barrier.
    """

    processes: tuple[int, ...]
    fingerprint: int
    name: str = ""
    signature: str = ""
    collective: bool = True
    meets_all: bool = False


@dataclass(frozen=True)
class CellSpec:
    """A cell as its notebook has sent it.

    Args:
      seq: its number among the cells of all notebooks; later cells of a notebook have larger ones.
      ranks: which run it, in order.
      owner: the notebook.
      seen: the last cell whose end the notebook knew of when it sent this one. If a cell between
        the two failed, this one is skipped, as Jupyter skips cells queued after an error.
      is_foreground: the notebook waits for it, so it sends no other cell meanwhile.
      is_skippable: see ``seen``; a widget's event and a transfer of values are not.
    """

    seq: int
    ranks: tuple[int, ...]
    owner: str = ""
    seen: int = 0
    is_foreground: bool = False
    is_skippable: bool = True


@dataclass(frozen=True)
class Skipped:
    """Why a cell is not run: cell ``after`` failed, rank ``dead`` died, or it was cancelled."""

    after: int = 0
    dead: int | None = None


@dataclass(frozen=True)
class End:
    """How a cell has ended on a rank.

    Args:
      outcome: "ok", "error", FAILED_IN_XLA, DIED, or the error's text.
      at_work: AT_WORK or STUCK if XLA still computes; else "".
      folded: hashes the launches without collectives.
      unmade: hashes the agreed launches that XLA has refused.
      given: hashes what the host gave to launches without collectives that no later launch told.
    """

    outcome: str
    at_work: str = ""
    folded: Hashes = field(default_factory=dict)
    unmade: Hashes = field(default_factory=dict)
    given: Hashes = field(default_factory=dict)


# --------------------------------------------------------------------------- refusals


@dataclass(frozen=True)
class Doing:
    """The ranks that did the same when a cell was closed, and what they did.

    If they were in a launch (``waits``), the program and its place are here. ``given`` hashes what
    the host gave to it, or is 0 for nothing. ``name`` is the error's text if they ``failed``.
    """

    ranks: tuple[int, ...]
    does: Does
    name: str = ""
    signature: str = ""
    place: Place = NOWHERE
    fingerprint: int = 0
    given: int = 0


@dataclass(frozen=True)
class Refusal:
    """Why a cell was closed: nothing more is launched in it.

    ``causes`` are the ranks that made it so, as far as that is certain. ``doing`` has all ranks of
    the cell and of the launches that wait. ``mixed`` says that turns of a loop may have met other
    turns: the place of the earliest launch of that kind, and how many such launches were made.
    """

    kind: Kind
    causes: tuple[int, ...] = ()
    doing: tuple[Doing, ...] = ()
    mixed: Place | None = None
    mixed_launches: int = 0


# --------------------------------------------------------------------------- a look at the referee


@dataclass(frozen=True)
class Waiting:
    """A thread that waits for other ranks to announce the same launch.

    ``lane`` is the thread's name, and ``seq`` its cell's or 0. ``since`` is the referee's time. The
    thread waits for the ranks ``missing``.
    """

    rank: int
    lane: str
    seq: int
    name: str
    place: Place
    since: float
    missing: list[int]


@dataclass(frozen=True)
class AgreedLaunch:
    """A launch that was agreed: rank ``last`` came last, ``late_s`` after the others."""

    number: int
    seq: int
    name: str
    place: Place
    at: float
    last: int
    late_s: float


@dataclass(frozen=True)
class Looked:
    """The referee's time in seconds, who waits, the last agreed launches, and whom it hears."""

    now: float
    waits: list[Waiting] = field(default_factory=list)
    agreed: list[AgreedLaunch] = field(default_factory=list)
    connected: list[int] = field(default_factory=list)


# --------------------------------------------------------------------------- frames


def pack(word: str, *arguments: Any) -> bytes:
    """A frame of a message."""
    frame = pickle.dumps((word, *arguments))
    return frame if len(frame) < LONG else b"z" + zlib.compress(frame, 1)


def unpack(frame: bytes) -> Any:
    """The arguments of ``pack``."""
    return _Records(io.BytesIO(zlib.decompress(frame[1:]) if frame[:1] == b"z" else frame)).load()


def receive(peer: socket.socket) -> bytes:
    """A frame; b"" once the peer is gone."""
    try:
        return peer.recv(BUFFER)
    except OSError:
        return b""


class _Records(pickle.Unpickler):
    """Makes the records of messages and nothing else: a frame can't have code run."""

    def find_class(self, module: str, name: str) -> Any:
        return _RECORDS[name]


_SENT = Place, Program, CellSpec, Skipped, End, Doing, Refusal, Waiting, AgreedLaunch, Looked
_RECORDS = {one.__name__: one for one in _SENT}
