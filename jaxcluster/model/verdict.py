"""How a cell has ended, as the exception that says so. Pure.

What is to be recovered is recovered before: the verdict only reads what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.errors import (
    RESTART_HINT,
    CellFailed,
    CellInterrupted,
    Divergence,
    RankDied,
    RankHung,
)
from jaxcluster.model import findings, hints
from jaxcluster.model.outputs import CellRecord, traceback_lines
from jaxcluster.ranks import begin_ranks, name_ranks
from jaxcluster.text import format_seconds

QUIT = "BdbQuit"  # what a rank raises whose debugger was left by ``q``


@dataclass(frozen=True)
class Death:
    """Ranks whose processes ended in the cell: what happened, and what was done about it.

    ``report``: where ranks had launched different programs before, which can end a process.
    """

    message: str
    done: str
    ranks: Sequence[int]
    report: findings.Report | None = None


@dataclass(frozen=True)
class Ending:
    """A cell that is over.

    Attributes:
      record: what came from its ranks.
      why: why ranks were interrupted, as ``health.CellWatch`` has it; "" where none was.
      interrupted: the ranks that were.
      timeout_s: the cell's time limit.
      grace_s: how long ranks may go on after another one failed.
      hosts: of the ranks, where there are several.
      death: where ranks died; all else is of no interest then.
      silent: ranks that did not answer an interrupt.
      unanswered: where these are, a line each.
      report: the certain finding.
      is_diverged: the ranks are not in lockstep now, so no cell may run.
      recovered: what was done about the finding; "" while nothing was.
      undone: what became of what the cell did, where it was taken back.
      left: which names its stop has left without a value, or with others on each rank; "" else.
      places: where the ranks were when their time was up.
      withdrawn: why ranks have not begun it; "" else.
      begun: the ranks that have begun it, where it was withdrawn.
      stalled_s: how long all its ranks were in one launch, where that has ended it.
    """

    record: CellRecord
    why: str = ""
    interrupted: tuple[int, ...] = ()
    timeout_s: float | None = None
    grace_s: float = 0.0
    hosts: Mapping[int, str] = field(default_factory=dict)
    death: Death | None = None
    silent: tuple[int, ...] = ()
    unanswered: Sequence[str] = ()
    report: findings.Report | None = None
    is_diverged: bool = False
    recovered: str = ""
    undone: str = ""
    left: str = ""
    places: Sequence[str] = ()
    withdrawn: str = ""
    begun: Sequence[int] = ()
    stalled_s: float | None = None

    @property
    def name(self) -> str:
        return f"Cell [{self.record.execution_count}]"

    @property
    def is_taken_back(self) -> bool:
        """Whether it is said what became of what the cell did: it is undone, or wrong."""
        return bool(self.undone or self.recovered)

    @property
    def errors(self) -> dict[int, wire.ErrorInfo]:
        """What ranks raised, but for those that were interrupted."""
        replies = self.record.replies
        errors = self.record.errors.items()
        return {rank: error for rank, error in errors if replies[rank].status != "interrupted"}

    @property
    def broken_off(self) -> list[int]:
        """The ranks whose cell an interrupt ended."""
        return [r for r, reply in self.record.replies.items() if reply.status == "interrupted"]


def verdict(ending: Ending) -> Exception | CellInterrupted | None:
    """What waiting for the cell is to raise; None where it has ended as it should."""
    if ending.death is not None:
        death = ending.death
        if death.report is not None:
            return Divergence(f"{death.report}\n{death.message}", death.done, death.report)
        return RankDied(death.message, death.done, death.ranks)
    if ending.withdrawn:
        message = f"{ending.name} was {_how_far(ending)}: {ending.withdrawn}."
        hint = _hints(ending, ["Run it again."], with_report=False)
        return CellFailed(message, hint, ending.record.ranks, "NotRun")
    return (
        _strict_divergence(ending)
        or _failure(ending)
        or _hang(ending)
        or _divergence(ending)
        or _timeout(ending)
        or _stop(ending)
        or _end_out_of_step(ending)
    )


def _how_far(ending: Ending) -> str:
    """How far a cell came that was withdrawn: ranks may have begun it that did not have to wait."""
    if not ending.begun:
        return "not run"
    left = {*ending.record.ranks} - {*ending.begun}
    began, hosts = name_ranks(ending.begun, ending.hosts), ending.hosts
    return f"ended on {began}" + (f", and not run on {name_ranks(left, hosts)}" if left else "")


def _hints(ending: Ending, more: Sequence[str] = (), with_report: bool = True) -> str:
    """What is said below the message: who is silent, why, and what was done about it."""
    hints = list(ending.unanswered)
    if ending.report is not None and with_report:
        hints.append(str(ending.report))
    if ending.recovered:
        hints.append(ending.recovered)
    elif ending.is_diverged:
        hints.append(f"The ranks have diverged. {RESTART_HINT}")
    if ending.undone and not ending.recovered:
        hints.append(ending.undone)
    if ending.left:
        hints.append(ending.left)
    return "\n".join([*hints, *more])


def _strict_divergence(ending: Ending) -> Divergence | None:
    """Launches were refused: JAX's frames say nothing more. In strict mode nothing was launched."""
    heard = {error.heard: error.evalue for error in reversed(ending.errors.values())}
    if not heard or None in heard:
        return None
    if max(n for n in heard if n is not None) == 0 and ending.report is not None:
        return _divergence(ending)
    said = heard[max(n for n in heard if n is not None)]  # who raised last has heard most
    return Divergence(f"{ending.name}: {said}.", _hints(ending))


def _failure(ending: Ending) -> CellFailed | None:
    failed, hosts = ending.errors, ending.hosts
    if not failed:
        return None
    more: list[str] = []
    if ending.broken_off and ending.report is None:
        were = "was" if len(ending.broken_off) == 1 else "were"
        more.append(
            f"{begin_ranks(ending.broken_off, hosts)} had not ended the cell "
            f"{ending.grace_s:g} s later and {were} interrupted."
        )
    first = failed[min(failed)]
    said = {error.hint for error in failed.values()}
    # What all ranks know for certain, else what is mostly meant by such a message.
    more += (
        filter(None, said) if len(said) == 1 and said != {""} else hints.kind_hints(first.evalue)
    )
    return CellFailed(
        f"{first.ename} on {name_ranks(failed, hosts)}: {first.evalue}",
        _hints(ending, more),
        sorted(failed),
        first.ename,
        traceback_lines(ending.record, hosts),
    )


def _hang(ending: Ending) -> RankHung | None:
    if not ending.silent:
        return None
    message = f"{ending.name} did not end on {name_ranks(ending.silent, ending.hosts)}."
    if ending.stalled_s is not None:
        message = f"{_out_of_time(ending)}\n{message}"
    if not ending.is_taken_back:
        message += "\nDon't trust what it has assigned."
    return RankHung(message, _hints(ending), ending.silent)


def _divergence(ending: Ending) -> Divergence | None:
    if ending.report is None:
        return None
    return Divergence(str(ending.report), _hints(ending, with_report=False), ending.report)


def _out_of_time(ending: Ending) -> str:
    where = name_ranks(ending.interrupted, ending.hosts)
    if ending.stalled_s is None:
        return (
            f"{ending.name} took more than {ending.timeout_s:g} s and was interrupted on {where}."
        )
    lasted = format_seconds(ending.stalled_s)
    return (
        f"{ending.name} was interrupted on {where}, which had been in the same launch for {lasted}."
    )


def _timeout(ending: Ending) -> CellFailed | None:
    if ending.why != "timeout":
        return None
    option = "--timeout" if ending.stalled_s is None else "--stall"
    more = [f"Give it longer with {option}, or leave out the limit."]
    if ending.record.ok and not ending.is_taken_back:  # the interrupt came late, or was caught
        more.insert(0, "It came to its end all the same, so what it did is kept.")
    return CellFailed(
        "\n".join([_out_of_time(ending), *ending.places]),
        _hints(ending, more),
        ending.interrupted,
        "TimeoutError",
    )


def _stop(ending: Ending) -> CellInterrupted | None:
    was_late = ending.record.ok and not ending.is_taken_back
    if not (ending.broken_off or (ending.why == "stop" and not was_late)):
        return None
    stopped = ending.broken_off or ending.interrupted
    where = name_ranks(stopped, ending.hosts)
    message = f"cell [{ending.record.execution_count}] was stopped on {where}."
    if quit := [r for r, error in ending.record.errors.items() if error.ename == QUIT]:
        message = f"The debugger of {name_ranks(quit, ending.hosts)} was quit, so {message}"
    ended = [r for r, reply in ending.record.replies.items() if reply.status == "ok"]
    if ended and not ending.is_taken_back:
        had = f"{begin_ranks(ended, ending.hosts)} had come to its end"
        message += f"\n{had}, so what it changed may differ between the ranks."
    hints = _hints(ending)
    return CellInterrupted(f"{message}\n{hints}" if hints else message, stopped)


def _end_out_of_step(ending: Ending) -> Divergence | None:
    """What a cell did is taken back though all its ranks have ended it, and nothing is found."""
    if not ending.is_taken_back:
        return None
    message = f"{ending.name} came to its end, but the ranks were not in lockstep then."
    return Divergence(message, _hints(ending))
