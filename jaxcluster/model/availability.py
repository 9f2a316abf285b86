"""What can be done about a cluster whose ranks are lost, and what is to be typed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxcluster.model import deaths
from jaxcluster.ranks import name_ranks
from jaxcluster.wire import Death
from jaxcluster.wire.forks import STOPPED

RecoveryMode = Literal["auto", "never"]
"""Whether lost ranks are replaced at once, when the user says so, or never."""


@dataclass(frozen=True)
class ClusterCondition:
    """What has become of a cluster, as far as this process knows.

    Attributes:
      down, down_hint: why it has no processes, and what is still there; "" while it has some.
      is_stopped: by whoever.
      unreachable: hosts that can't be reached, and may live; and why.
      dead: ranks whose processes have ended, and what is known of it.
      coordinator_died: how JAX's coordination service has ended.
      is_ours: this process has started it; ``has_owner``: another one has, which it ends with. That
        is asked of the system, which takes long beside a cell: only where it matters.
    """

    name: str
    down: str = ""
    down_hint: str = ""
    is_stopped: bool = False
    unreachable: Mapping[str, str] = field(default_factory=dict)
    dead: Mapping[int, Death] = field(default_factory=dict)
    coordinator_died: str = ""
    is_ours: bool = True
    has_owner: Callable[[], bool] = lambda: False
    recovery: RecoveryMode = "auto"

    @property
    def again(self) -> str:
        """What to type where hosts that may live can't be reached."""
        return (
            "The cluster may still be running; nothing was removed. When they can be reached: "
            f"{self.how_to_attach}"
        )

    @property
    def how_to_attach(self) -> str:
        return f"%jaxcluster attach {self.name}"

    @property
    def ended_by_others(self) -> str:
        """Why its ranks have ended, where another process has ended them; "" else."""
        return deaths.meant(death.why for death in self.dead.values())

    @property
    def without_dead(self) -> str:
        """Who has died."""
        if why := self.ended_by_others:
            return f"{why.capitalize()}."
        why = "; ".join(sorted({death.why for death in self.dead.values()}))
        if self.unreachable:  # they may live
            return f"{name_ranks(self.dead).capitalize()} can't be reached ({why})."
        return f"{name_ranks(self.dead).capitalize()} died ({why})."

    @property
    def without_coordinator(self) -> str:
        """What the death of JAX's coordinator means."""
        return (
            f"JAX's coordinator died ({self.coordinator_died}), and every rank needs it. "
            "%jaxcluster restart gives the ranks new processes."
        )


@dataclass(frozen=True)
class Refusal:
    """Why no cell can run. What is to be done about it is the hint; "": it is ``availability``'s.

    ``ranks`` are those that died, and ``when`` is what new processes say of lost names.
    """

    message: str
    hint: str = ""
    ranks: tuple[int, ...] = ()
    when: str = ""


def refusal(now: ClusterCondition) -> Refusal | None:
    """Why no cell can run; None: one can."""
    if now.down:
        return Refusal(now.down, now.down_hint)
    if now.is_stopped:
        return Refusal(f"Cluster {now.name!r} is stopped.", "%jaxcluster start -n 4")
    if now.unreachable:
        why = "; ".join(f"{host}: {why}" for host, why in now.unreachable.items())
        message = f"Hosts can't be reached from here, so the cell was not run ({why})."
        return Refusal(message, now.again)
    if now.dead:
        dead = tuple(sorted(now.dead))
        who, why = name_ranks(dead), now.dead[dead[0]].why
        message = f"{who.capitalize()} died ({why}), so the cell was not run."
        if ended := now.ended_by_others:
            message = f"{ended.capitalize()}, so the cell was not run."
        return Refusal(message, "", dead, f"when {who} died")
    if now.coordinator_died:  # this jax's ranks outlive it
        message = f"JAX's coordinator died ({now.coordinator_died}), so the cell was not run."
        return Refusal(message, "", (), "when JAX's coordinator died")
    return None


def advice(now: ClusterCondition) -> str | None:
    """What to type about ranks that are lost; None: they are to be given new processes."""
    if now.down:
        return f"{now.down}\n{now.down_hint}"
    if now.is_stopped or now.ended_by_others == STOPPED:  # by another, under the cell
        return "%jaxcluster start starts another."
    if now.unreachable:
        return now.again
    if now.ended_by_others:
        return f"{now.how_to_attach} connects to its new processes."
    if not now.is_ours and now.has_owner():
        attach = f"{now.how_to_attach} connects to its new processes then."
        return f"The notebook that started it can restart it; {attach}"
    if not now.is_ours:
        return "%jaxcluster stop ends it; %jaxcluster start starts another."
    if now.recovery != "auto":
        restart = "%jaxcluster restart gives it new processes"
        return f"{restart} and keeps the variables of the living ranks."
    return None
