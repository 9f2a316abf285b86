"""The cell that a rank's main thread is in, and what belongs to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.control import Request


@dataclass(frozen=True)
class Home:
    """A cell to which comms belong: its notebook, its seq, its number, and whether it is shown."""

    ident: bytes
    seq: int
    number: int
    shown: bool


@dataclass
class Running:
    """The cell that the main thread is in.

    Attributes:
      interrupted: somebody has stopped it.
      interrupts: how often its code was to be told so.
      heard: it was, once, and goes on as it likes.
      unheard: an interrupt came where it could not be raised, and comes again.
      unheard_since: since when that is so; 0: it is not.
      taken: agreed launches of this process before it.
      has_left: its own code is over: IPython renders its error.
      over: it launches nothing any more.
      is_mute: the message of its exception does not end.
      escaped: what a cell that awaits has raised past IPython.
      result: IPython's, once there is one.
      raised: what its code has raised.
      printed: what IPython has printed as a traceback in it, as ``%run`` does.
      is_profiled: JAX's profiler was started for it.
      faults: errors of ours, a line each.
    """

    request: Request[wire.CellRequest]
    cell: wire.CellRequest
    started: float
    shown: bool
    interrupted: bool = False
    interrupts: int = 0
    heard: bool = False
    unheard: bool = False
    unheard_since: float = 0.0
    taken: int = 0
    has_left: bool = False
    left_at: float = 0.0
    over: bool = False
    task: asyncio.Future[Any] | None = None
    is_mute: bool = False
    escaped: BaseException | None = None
    result: Any = None
    raised: BaseException | None = None
    printed: BaseException | None = None
    error: wire.ErrorInfo | None = None
    status: str = ""
    is_profiled: bool = False
    faults: list[str] = field(default_factory=list)
