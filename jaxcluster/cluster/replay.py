"""Brings ranks that have diverged back into lockstep, with their variables.

``lockstep.replaying`` says how; what those programs computed that a rank ran with zeros is garbage,
so the aborted cell is taken back after it (``undoing``); everything older is as it was.

Whichever way was taken, the ranks are in lockstep only when a sum over all devices has come out
right on all of them (``selfcheck``). Meanwhile no notebook hands out a cell.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxcluster import lockstep, wire
from jaxcluster.allocation.turns import Turns
from jaxcluster.cluster import selfcheck
from jaxcluster.errors import NoCluster
from jaxcluster.lockstep import replaying
from jaxcluster.lockstep.actions import REPORT_S, Ask, CountAnew, LookAround
from jaxcluster.lockstep.events import Looked
from jaxcluster.lockstep.facts import Facts
from jaxcluster.wire.link import Link, Sink, replies
from jaxcluster.wire.ops import lockstep as requests
from jaxcluster.wire.ops.lockstep import Courses, Export, Poll, Resume

JOURNAL_DEPTH = 4096
FREE_S = 0.1  # that others get to take the turn
COURSES_S = 5.0  # to read the texts of some programs
EXPORT_S = 5.0


def ask_reports(
    link: Link,
    names: Iterable[str] = (),
    launches: int = JOURNAL_DEPTH,
    timeout_s: float = REPORT_S,
) -> dict[int, wire.RankReport]:
    """What the control channels say of all ranks; those that are dead or silent are missing."""
    answers = link.gather(link.ranks, Poll(sorted(names), launches), timeout_s=timeout_s)
    return wire.reports_of(replies(answers))


class Replay:
    """Carries a replay out.

    Args:
      seq: the cell that it follows, if it follows one.

    Attributes:
      core: what is decided about it, and has come of it.
    """

    def __init__(self, link: Link, seq: int | None = None) -> None:
        self.core = replaying.Replaying(seq)
        self._link, self._sink = link, Sink()

    def step(self, answer_s: float = REPORT_S, handed_out: Mapping[int, int] | None = None) -> bool:
        """See ``Replaying.step``."""
        return lockstep.carry(self.core.step(answer_s, handed_out), self._do)

    def bring_back(self, turns: Turns) -> str:
        """See ``Replaying.bring_back``. The turn is free now and then, for who is waited for."""
        while True:
            with contextlib.ExitStack() as stack:
                handed_out: dict[int, int] = {}
                with contextlib.suppress(NoCluster):  # nobody can hand out a cell any more
                    handed_out = stack.enter_context(turns.quiet())
                how = lockstep.carry(self.core.bring_back(handed_out), self._do)
            if how or not self.core.waits_for_others:
                return how
            time.sleep(FREE_S)

    def _do(self, action: replaying.Action) -> Any:
        link = self._link
        match action:
            case LookAround():
                return self._facts()
            case Ask(timeout_s=timeout_s):
                reports = ask_reports(link, timeout_s=timeout_s)
                facts = self._facts()
                return Looked(facts.now, action, reports, facts)
            case replaying.RunSkipped(rank, prints, counts, shipped):
                request = requests.Replay(
                    list(prints), list(shipped), {key: list(one) for key, one in counts.items()}
                )
                link.request(rank, request, buffers=list(shipped.values()), sink=self._sink)
            case replaying.Collect():
                return self._collect()
            case replaying.Export(fingerprint):
                return self._export(fingerprint)
            case replaying.Pause(seconds):
                time.sleep(seconds)
            case replaying.Verify():
                verdict = selfcheck.verify(link)
                return replaying.Verified(verdict.why, verdict.counts)
            case replaying.AskCourses(wanted):
                return self._courses(wanted)
            case CountAnew():
                return count_anew(link, action)
        return None

    def _facts(self) -> Facts:
        return Facts(time.monotonic(), tuple(self._link.ranks), self._link.dead)

    def _collect(self) -> list[replaying.Ran | replaying.Refused]:
        found: list[replaying.Ran | replaying.Refused] = []
        while not self._sink.empty():
            event = self._sink.get()
            if event.op == "reply":
                found.append(replaying.Ran(event.rank, event.body.ran))
            else:
                found.append(replaying.Refused(event.rank, event.ename, event.why))
        return found

    def _export(self, fingerprint: int) -> bytes | str:
        answers = self._link.gather(self._link.ranks, Export(fingerprint), timeout_s=EXPORT_S)
        for event in answers.values():
            if event.op == "reply" and event.buffers:
                return bytes(event.buffers[0])
        return next((e.why for e in answers.values() if e.ename == "CannotReplay"), "")

    def _courses(self, wanted: Mapping[int, Sequence[int]]) -> dict[int, dict[int, str]] | None:
        link = self._link
        each = {rank: Courses(list(prints)) for rank, prints in wanted.items()}
        heard = replies(link.gather(link.ranks, each, timeout_s=COURSES_S))
        if any(r not in heard for r in link.ranks):
            return None
        return {r: dict(zip(wanted[r], heard[r], strict=True)) for r in link.ranks}


def count_anew(link: Link, asked: CountAnew) -> bool:
    """Have all ranks count launches from zero; whether all do."""
    since = None if asked.since is None else dict(asked.since)
    answers = link.gather(link.ranks, Resume(asked.number, since), timeout_s=REPORT_S)
    return all(r in answers and answers[r].op == "reply" for r in link.ranks)
