"""The exception that waiting for a cell raises, if it did not end well. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxcluster import wire
from jaxcluster.agreement.messages import Refusal
from jaxcluster.errors import (
    XLA_ERRORS,
    CellFailed,
    CellInterrupted,
    Divergence,
    RankDied,
    RankHung,
)
from jaxcluster.model import hints, notices, rewrite
from jaxcluster.model.outputs import CellRecord, traceback_lines
from jaxcluster.model.words import explain
from jaxcluster.ranks import begin_ranks, name_ranks
from jaxcluster.wire.forks import STOPPED

QUIT = "BdbQuit"  # what a rank raises whose debugger was left by ``q``
DIVERGED = ("ended", "differs", "circle", "idle", "uneven", "unequal", "torn")  # kinds of refusals


@dataclass(eq=False, repr=False)
class Ending:
    """A cell with all that decides how it ended.

    Attributes:
      record: what came from its ranks.
      refusal: why the referee has closed the cell; None while it is open.
      why: "stop" or "timeout" once this notebook has stopped it.
      timeout_s: the cell's time limit.
      hosts: of the ranks, where there are several.
      deaths: of its ranks whose processes ended in it, and how.
      dead: of all ranks that are dead by now.
      stuck: its ranks that did not return from C code.
      recovered: what was done about ranks that are lost or stuck; "" while nothing was.
      numbers: of this notebook's cells, by their seqs.
    """

    record: CellRecord
    refusal: Refusal | None = None
    why: str = ""
    timeout_s: float | None = None
    hosts: Mapping[int, str] = field(default_factory=dict)
    deaths: dict[int, wire.Death] = field(default_factory=dict)
    dead: Mapping[int, wire.Death] = field(default_factory=dict)
    stuck: tuple[int, ...] = ()
    recovered: str = ""
    numbers: Mapping[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"Cell [{self.record.execution_count}]"

    def ranks_with(self, *statuses: str) -> list[int]:
        """The ranks on which it has ended so."""
        return [r for r, reply in self.record.replies.items() if reply.status in statuses]


def verdict(ending: Ending) -> Exception | CellInterrupted | None:
    """The exception that waiting for the cell raises; None if it ended as it should."""
    return (
        _skipped(ending)
        or _died(ending)
        or _stopped(ending)
        or _failed(ending)
        or _diverged(ending)
        or _stuck(ending)
    )


def _skipped(ending: Ending) -> CellFailed | RankDied | CellInterrupted | None:
    replies = ending.record.replies.values()
    why = next((reply.skipped for reply in replies if reply.skipped is not None), None)
    if why is None:
        return None
    if ending.why == "stop" and why.dead is None and not why.after:
        message = f"cell [{ending.record.execution_count}] was stopped before it began."
        return CellInterrupted(message, ending.record.ranks)
    hint = _hint(ending, "Run it again.")
    if why.dead is not None:
        death = ending.dead.get(why.dead)
        cause = f": {death.why}" if death is not None else ""
        message = f"{ending.name} was skipped: rank {why.dead} died before it began{cause}."
        return RankDied(message, hint, [why.dead])
    told = "it was stopped before it began"
    if why.after:
        number = ending.numbers.get(why.after)
        told = f"cell [{number}]" if number is not None else "a cell"
        told = f"{told}, which was queued before it, failed"
    message = f"{ending.name} was skipped: {told}."
    return CellFailed(message, hint, ending.record.ranks, "Skipped")


def _died(ending: Ending) -> RankDied | None:
    if not ending.deaths:
        return None
    whys = {rank: death.why for rank, death in sorted(ending.deaths.items())}
    lines = notices.tell_deaths(whys, ending.hosts)
    if any(why.startswith("killed by SIGKILL") and "memory" not in why for why in whys.values()):
        lines.append("A common cause of SIGKILL is that the host ran out of memory.")
    lines += [ending.deaths[rank].log for rank in whys if ending.deaths[rank].log][:1]
    hint = _hint(ending)
    if STOPPED in whys.values():
        hint = hint or "%jaxcluster start starts another."
    return RankDied("\n".join(lines), hint, sorted(ending.deaths))


def _stopped(ending: Ending) -> Exception | CellInterrupted | None:
    refusal, record = ending.refusal, ending.record
    was_stopped = ending.ranks_with("interrupted") or (refusal and refusal.kind == "stopped")
    if not was_stopped or (refusal is not None and refusal.kind in DIVERGED):
        return None
    if failed := ending.ranks_with("error"):  # before the stop reached it
        if refusal is not None and refusal.kind == "failed":
            return None
        if len(failed) == len(record.replies) and ending.why != "stop":
            return None
    if record.ok and ending.why != "timeout":
        return None  # its code has caught the interrupt, and ended
    where = name_ranks(ending.ranks_with("interrupted") or record.ranks, ending.hosts)
    if ending.why == "timeout":
        message = f"{ending.name} took more than {ending.timeout_s:g} s and was stopped on {where}."
        more = ["Give it longer with --timeout, or leave out the limit."]
        if len(places := {error.lineno for error in record.errors.values()}) == 1:
            more[:0] = [f"It was at line {line}." for line in places if line]
        return CellFailed(message, _hint(ending, *more), record.ranks, "TimeoutError")
    message = f"cell [{record.execution_count}] was stopped on {where}."
    if quit := [rank for rank, error in record.errors.items() if error.ename == QUIT]:
        message = f"The debugger of {name_ranks(quit, ending.hosts)} was quit, so {message}"
    hint = _hint(ending)
    return CellInterrupted(f"{message}\n{hint}" if hint else message, record.ranks)


def _failed(ending: Ending) -> CellFailed | None:
    errors = {r: e for r, e in ending.record.errors.items() if r in ending.ranks_with("error")}
    kind = ending.refusal.kind if ending.refusal is not None else ""
    of_xla = kind == "torn" and errors and errors[min(errors)].ename in XLA_ERRORS
    if not errors or (kind in DIVERGED and not of_xla):
        return None
    hosts, more = ending.hosts, list[str]()
    if of_xla:
        more.append("XLA launched a program on some ranks, and refused it on others.")
    if stopped := ending.ranks_with("refused"):
        more.append(f"{begin_ranks(stopped, hosts)} stopped before the next launch.")
    if interrupted := ending.ranks_with("interrupted"):
        were = "was" if len(interrupted) == 1 else "were"
        more.append(f"{begin_ranks(interrupted, hosts)} {were} interrupted 2 s later.")
    first = errors[min(errors)]
    more += [hint for mark, hint in hints.KIND_HINTS if mark in first.evalue]
    return CellFailed(
        f"{first.ename} on {name_ranks(errors, hosts)}: {first.evalue}",
        _hint(ending, *more),
        sorted(errors),
        first.ename,
        traceback_lines(ending.record, hosts),
    )


def _diverged(ending: Ending) -> Divergence | None:
    refusal, record = ending.refusal, ending.record
    if refusal is None or refusal.kind == "stopped":
        return None
    source = rewrite.without_magics(record.source)
    message = explain(refusal, {record.execution_count: source}, ending.hosts)
    if not message.startswith("XLA"):
        message = message[0].lower() + message[1:]
    message = f"cell [{record.execution_count}]: {message}"
    is_usable = refusal.mixed is None and refusal.kind not in ("uneven", "unequal")
    names = () if is_usable else rewrite.assigned_names(record.source)
    more = f"It has assigned: {', '.join(names)}." if names else ""
    return Divergence(message, _hint(ending, more), refusal.causes)


def _stuck(ending: Ending) -> RankHung | None:
    if not ending.stuck:
        return None
    message = f"{ending.name} did not end on {name_ranks(ending.stuck, ending.hosts)}."
    return RankHung(message, _hint(ending), ending.stuck)


def _hint(ending: Ending, *more: str) -> str:
    """The hint: what was done about the failure, and what to do."""
    stuck = ""
    if ending.stuck and not ending.deaths:  # which end the others' cell as well
        stuck = f"{begin_ranks(ending.stuck, ending.hosts)} did not come back from C code."
    return "\n".join(filter(None, [stuck, ending.recovered, *more]))
