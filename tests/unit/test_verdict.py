"""What waiting for a cell raises, by all that is known of its end."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.agreement.messages import Refusal, Skipped
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    Divergence,
    RankDied,
    RankHung,
)
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.verdict import Ending, verdict

STOPPED = Refusal("stopped")


def record(*replies: str | wire.ErrorInfo | Skipped, source: str = "pass") -> CellRecord:
    """Of a cell whose ranks have replied so: a status, an error, or why it was skipped."""
    made = CellRecord(seq=1, execution_count=7, source=source, ranks=list(range(len(replies))))
    for rank, reply in enumerate(replies):
        status, more = "error", dict[str, Any]()
        match reply:
            case str():
                status = reply
            case wire.ErrorInfo():
                more = {"error": reply}
            case _:
                status, more = "skipped", {"skipped": reply}
        if status == "interrupted":
            more = {"error": wire.ErrorInfo("KeyboardInterrupt", "", [])}
        made.add_reply(wire.CellReply(rank, 1, status, 0.1, **more))
    return made


def failed(ename: str = "ValueError", evalue: str = "bad", **more: Any) -> wire.ErrorInfo:
    return wire.ErrorInfo(ename, evalue, [f"{ename}: {evalue}"], 2, **more)


def test_a_cell_that_has_ended_as_it_should_raises_nothing() -> None:
    assert verdict(Ending(record("ok", "ok"))) is None
    # A stop that came when all ranks had ended it.
    assert verdict(Ending(record("ok", "ok"), why="stop")) is None
    # Code that has caught it, and come to its end.
    assert verdict(Ending(record("ok", "ok"), STOPPED, "stop")) is None


QUIT = record("ok", "interrupted")
QUIT.add_reply(wire.CellReply(1, 1, "interrupted", 0.1, failed("BdbQuit", "")))
SKIPPED = "Cell [7] was skipped: "
ENDINGS: dict[str, tuple[Ending, type[BaseException], str]] = {
    "a death comes before all that it has caused": (
        Ending(
            record(failed(), "refused"),
            Refusal("died", (1,)),
            deaths={1: wire.Death("killed by SIGKILL")},
            recovered="Rank 1 has a new process.",
        ),
        RankDied,
        "Rank 1 died: killed by SIGKILL.\n"
        "A common cause of SIGKILL is that the host ran out of memory.\n"
        "Rank 1 has a new process.",
    ),
    "ranks that have died alike share a line": (
        Ending(record(), deaths=dict.fromkeys((0, 1), wire.Death("exit code 1"))),
        RankDied,
        "Ranks 0, 1 died: exit code 1.",
    ),
    "a failure names who stopped before the next launch": (
        Ending(record("refused", failed(), "interrupted"), Refusal("failed", (1,))),
        CellFailed,
        "ValueError on rank 1: bad\n"
        "Rank 0 stopped before the next launch.\n"
        "Rank 2 was interrupted 2 s later.",
    ),
    "XLA's refusal on one rank is its error": (
        Ending(record(failed("JaxRuntimeError", "INTERNAL"), "ok"), Refusal("torn", (0,))),
        CellFailed,
        "JaxRuntimeError on rank 0: INTERNAL\n"
        "XLA launched a program on some ranks, and refused it on others.",
    ),
    "ranks that did not come back are named with what was done": (
        Ending(record("ok"), stuck=(1,), recovered="The ranks have new processes."),
        RankHung,
        "Cell [7] did not end on rank 1.\n"
        "Rank 1 did not come back from C code.\n"
        "The ranks have new processes.",
    ),
    "a timeout says how long it took": (
        Ending(record("interrupted", "refused"), STOPPED, "timeout", 1.5),
        CellFailed,
        "Cell [7] took more than 1.5 s and was stopped on rank 0.\n"
        "Give it longer with --timeout, or leave out the limit.",
    ),
    "a stopped cell says so": (
        Ending(record("interrupted", "interrupted"), STOPPED, "stop"),
        CellInterrupted,
        "cell [7] was stopped on ranks 0, 1.",
    ),
    "a debugger that was quit has stopped the cell": (
        Ending(QUIT, STOPPED),
        CellInterrupted,
        "The debugger of rank 1 was quit, so cell [7] was stopped on rank 1.",
    ),
    "a skipped cell was stopped": (
        Ending(record(Skipped(), Skipped())),
        CellFailed,
        f"{SKIPPED}it was stopped before it began.\nRun it again.",
    ),
    "a skipped cell names the one that failed": (
        Ending(record(Skipped(after=4), Skipped(after=4)), numbers={4: 6}),
        CellFailed,
        f"{SKIPPED}cell [6], which was queued before it, failed.\nRun it again.",
    ),
    "a skipped cell tells of another notebook's": (
        Ending(record(Skipped(after=5), Skipped(after=5)), numbers={4: 6}),
        CellFailed,
        f"{SKIPPED}a cell, which was queued before it, failed.\nRun it again.",
    ),
    "a skipped cell names the rank that died": (
        Ending(record(Skipped(dead=1), Skipped(dead=1))),
        RankDied,
        f"{SKIPPED}rank 1 died before it began.\nRun it again.",
    ),
}


@pytest.mark.parametrize(("ending", "kind", "told"), ENDINGS.values(), ids=ENDINGS)
def test_what_waiting_for_a_cell_raises(
    ending: Ending, kind: type[BaseException], told: str
) -> None:
    error = verdict(ending)
    assert (type(error), str(error)) == (kind, told)


@pytest.mark.parametrize(
    "kind", ["ended", "differs", "circle", "idle", "uneven", "unequal", "torn"]
)
def test_what_a_refused_rank_raises_of_its_own_does_not_hide_the_divergence(kind: Any) -> None:
    ending = Ending(record(failed(), "refused"), Refusal(kind, (1,)), why="stop")
    error = verdict(ending)
    assert isinstance(error, Divergence) and error.ranks == (1,)
