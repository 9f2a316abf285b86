"""How a notebook debugs ranks: by messages of the Debug Adapter Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxcluster.wire.ops import EVENTS, Operation

Message = dict[str, Any]


@dataclass(frozen=True)
class DebugEnded:
    """Why the rank is not debugged any more."""

    why: str


class DebugStart(Operation[DebugEnded], op="debug_start"):
    """Trace from now on. It is answered when that has ended; before, by ``DebugEvent``."""


class DebugStop(Operation[None], op="debug_stop"):
    """All threads go on, and nothing is traced."""


class Debug(Operation[Message], op="debug"):
    """A request of DAP; replies with its response. Never waits."""

    message: Message


@dataclass(frozen=True)
class DebugEvent:
    """An event of DAP; None: the debugger is on."""

    event: Message | None


EVENTS["debug"] = DebugEvent
