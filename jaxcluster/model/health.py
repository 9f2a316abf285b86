"""When a cell is over, and what is done to the ranks that do not end by themselves.

Pure: ``CellWatch.feed(event, now)`` gives instructions, and the caller carries them out. Times are
seconds on any clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

GRACE_S = 2.0  # that the other ranks get after the first one raised
POLL_S = 1.0  # without any end before the ranks are asked why, and between askings
LOOK_AGAIN_S = 0.25  # after a look that made a hang likely
ANSWER_S = 5.0  # that interrupted ranks get to say so
SAY_S = 0.4  # after an interrupt, before it is said who has not answered
LEAVING_S = 30.0  # that a rank gets to render its error, once the cell's own code is over
HOPELESS_ANSWER_S = 1.0  # the same for ranks that nothing can release: they wait for the dead
DEATH_GRACE_S = 0.3  # that the other ranks get after one died


@dataclass(frozen=True)
class Replied:
    rank: int
    status: str


@dataclass(frozen=True)
class Died:
    rank: int


@dataclass(frozen=True)
class StopPressed:
    """The user interrupted the notebook."""


@dataclass(frozen=True)
class Diagnosed:
    """It is certain that the cell can't end, or that its numbers are wrong.

    ``releasable``: ranks that wait in a collective can be released from it.
    """

    releasable: bool = True


@dataclass(frozen=True)
class Leaving:
    """An interrupted rank says that the cell's own code is over: it renders what it will reply."""

    rank: int


@dataclass(frozen=True)
class Suspected:
    """It may be a hang: a second look tells."""


@dataclass(frozen=True)
class Paused:
    """These ranks are held by a person, in a debugger or by a question; no others are.

    No clock but the poll's runs meanwhile: neither the cell's time nor that of the ranks which are
    to end it after an error. A death still ends the cell.
    """

    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Stalled:
    """All ranks have been in one launch for as long as the cell may be: its time is up."""


@dataclass(frozen=True)
class Tick:
    """Nothing happened but time."""


@dataclass(frozen=True)
class Interrupt:
    """Interrupt these ranks. ``why``: ``stop``, ``timeout``, ``error``, ``death`` or ``hang``."""

    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True)
class Poll:
    """Ask all ranks where they are, and feed ``Diagnosed`` if that is certain to be a hang."""


@dataclass(frozen=True)
class SayUnanswered:
    """Tell the user who has not answered the interrupt so far, and why."""

    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Finish:
    """The cell is over; ``silent`` ranks never answered."""

    silent: tuple[int, ...] = ()


Event = Replied | Died | StopPressed | Diagnosed | Leaving | Suspected | Paused | Stalled | Tick
Instruction = Interrupt | Poll | SayUnanswered | Finish


@dataclass
class CellWatch:
    """One cell's course.

    Args:
      ranks: those that run it.
      started: now, when it was sent.
      timeout_s: how long it may take; None for ever.
      grace_s: how long the others may go on after a rank failed.
      answer_s: how long interrupted ranks are waited for.
    """

    ranks: Sequence[int]
    started: float
    timeout_s: float | None = None
    grace_s: float = GRACE_S
    answer_s: float = ANSWER_S
    status: dict[int, str] = field(default_factory=dict)
    why: str = ""
    interrupted: tuple[int, ...] = ()
    finished: bool = False
    paused: frozenset[int] = frozenset()
    _paused_at: float = 0.0
    _held_s: float = 0.0
    _failed_at: float | None = None
    _failed_by: str = ""
    _interrupted_at: float | None = None
    _poll_at: float = 0.0
    _leaving: set[int] = field(default_factory=set)
    _is_to_say: bool = False

    def __post_init__(self) -> None:
        self._poll_at = self.started + POLL_S

    @property
    def open_ranks(self) -> tuple[int, ...]:
        return tuple(r for r in self.ranks if r not in self.status)

    def deadline(self) -> float | None:
        """When ``Tick`` must come at the latest."""
        times = []
        if self._interrupted_at is not None:
            times.append(self._given_up_at(self._interrupted_at))
            if self._is_to_say:
                times.append(self._interrupted_at + SAY_S)
        else:
            times.append(self._poll_at)
            if (failed_until := self._failed_until()) is not None:
                times.append(failed_until)
            if (ends_at := self._ends_at()) is not None:
                times.append(ends_at)
        return min(times, default=None)

    def feed(self, event: Event, now: float) -> list[Instruction]:
        """What is to be done after ``event``, in order."""
        if self.finished:
            return []
        pressed = False
        match event:
            case Replied(rank, status):
                self.status[rank] = status
                if status not in ("ok", "interrupted") and self._failed_at is None:
                    self._failed_at, self._failed_by = now, "error"
            case Died(rank):
                self.status[rank] = "died"
                self.grace_s = min(self.grace_s, DEATH_GRACE_S)
                self.answer_s = min(self.answer_s, HOPELESS_ANSWER_S)
                if self._failed_at is None or self.paused:
                    self._failed_at, self._failed_by = now, "death"
            case StopPressed():
                pressed = True
            case Leaving(rank):
                self._leaving.add(rank)
            case Suspected():
                self._poll_at = min(self._poll_at, now + LOOK_AGAIN_S)
            case Paused(ranks):
                self._hold(ranks, now)
        if self.paused:
            self._hold(self.paused, now)  # but for those that have ended the cell now
        if len(self.status) >= len(self.ranks) and not self.open_ranks:
            return self._finish()
        if self._interrupted_at is not None:
            # Stop, pressed again while the ranks are given time to answer: leave at once.
            if pressed or now >= self._given_up_at(self._interrupted_at):
                return self._finish()
            if self._is_to_say and now >= self._interrupted_at + SAY_S:
                self._is_to_say = False
                return [SayUnanswered(self.open_ranks)]
            return []
        if pressed:
            return self._interrupt("stop", now)
        if isinstance(event, Stalled):
            return self._interrupt("timeout", now)
        if isinstance(event, Diagnosed):
            if not event.releasable:
                self.answer_s = min(self.answer_s, HOPELESS_ANSWER_S)
            return self._interrupt("hang", now)
        if (ends_at := self._ends_at()) is not None and now >= ends_at:
            return self._interrupt("timeout", now)
        if (failed_until := self._failed_until()) is not None and now >= failed_until:
            return self._interrupt(self._failed_by, now)
        if now >= self._poll_at:
            self._poll_at = now + POLL_S
            return [Poll()]
        return []

    def polled(self, now: float) -> None:
        """The poll has ended. It took as long as there are silent ranks."""
        self._poll_at = max(self._poll_at, now + LOOK_AGAIN_S)

    def _ends_at(self) -> float | None:
        """When its time is up; None: never, or not before the ranks go on."""
        if self.timeout_s is None or self.paused:
            return None
        return self.started + self.timeout_s + self._held_s

    def _failed_until(self) -> float | None:
        """Until when the others may go on after a rank has failed; None while nothing ends it."""
        if self._failed_at is None or (self.paused and self._failed_by != "death"):
            return None
        return self._failed_at + self.grace_s

    def _hold(self, ranks: frozenset[int], now: float) -> None:
        was, self.paused = self.paused, ranks.intersection(self.open_ranks)
        if self.paused and not was:
            self._paused_at = now
        elif was and not self.paused:
            self._held_s += now - self._paused_at
            if self._failed_at is not None and self._failed_by != "death":
                self._failed_at += now - max(self._paused_at, self._failed_at)

    def _given_up_at(self, interrupted_at: float) -> float:
        """Whoever renders an error counts as done: it is waited for, and not interrupted."""
        leaves = any(rank in self._leaving for rank in self.open_ranks)
        return interrupted_at + (LEAVING_S if leaves else self.answer_s)

    def _interrupt(self, why: str, now: float) -> list[Instruction]:
        self.why = why
        self.interrupted = self.open_ranks
        self._interrupted_at = now
        self._is_to_say = why in ("stop", "timeout")
        return [Interrupt(self.open_ranks, why)]

    def _finish(self) -> list[Instruction]:
        self.finished = True
        return [Finish(self.open_ranks)]
