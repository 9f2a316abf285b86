"""The cell that a rank's main thread is in, and what belongs to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.control import Request
from jaxcluster.engine.undo import Course


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
      is_profiled: JAX's profiler was started for it.
      has_left: its own code is over: IPython renders its error, or we tidy up.
      is_mute: the message of its exception does not end.
      escaped: what a cell that awaits has raised past IPython.
      unheard: an interrupt came where it could not be raised, and is to come again.
      stop_waits_since: since when an interrupt waits to be raised; 0: none waits.
      result: IPython's, once there is one.
      faults: errors of ours, a line each.
      between: what handlers of signals have raised before it, since the last cell.
      course: what it has done to the names, when it has ended; None where that is not known.
      stopped_at: where an interrupt was raised, once; "" where that does not tell what has names.
      raised_at: where the error was raised that has ended it.
    """

    request: Request[wire.CellRequest]
    cell: wire.CellRequest
    started: float
    shown: bool
    interrupted: bool = False
    unheard: bool = False
    unheard_since: float = 0.0
    stop_waits_since: float = 0.0
    is_profiled: bool = False
    has_left: bool = False
    left_at: float = 0.0
    over: bool = False
    task: asyncio.Future[Any] | None = None
    is_mute: bool = False
    escaped: BaseException | None = None
    result: Any = None
    error: wire.ErrorInfo | None = None
    status: str = ""
    faults: list[str] = field(default_factory=list)
    between: str = ""
    course: Course | None = None
    stopped_at: str | None = None
    raised_at: str = ""

    @property
    def is_stopped(self) -> bool:
        """Whether it was interrupted, also where its code has caught that, or raised it itself."""
        by_itself = self.error is not None and self.error.ename == "KeyboardInterrupt"
        return self.interrupted or self.status == "interrupted" or by_itself
