"""What waiting for a cell raises, by all that is known of its end."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.agreement.cellqueue import Skipped
from jaxcluster.agreement.refusals import Doing, Place, Refusal
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    Divergence,
    JaxClusterError,
    RankDied,
    RankHung,
)
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.verdict import Ending, verdict

SUM = {"name": "jit(sum)", "place": Place(7, 2, "s = x.sum()")}
ENDED = Refusal("ended", (1,), (Doing((0,), "waits", **SUM), Doing((1,), "ended")))
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


def told(error: BaseException | None) -> list[str]:
    assert error is not None
    return str(error).splitlines()


def test_a_cell_that_has_ended_as_it_should_raises_nothing() -> None:
    assert verdict(Ending(record("ok", "ok"))) is None
    # A stop that came when all ranks had ended it.
    assert verdict(Ending(record("ok", "ok"), why="stop")) is None
    # Code that has caught it, and come to its end.
    assert verdict(Ending(record("ok", "ok"), STOPPED, "stop")) is None


def test_a_death_comes_before_all_that_it_has_caused() -> None:
    ending = Ending(
        record(failed(), "refused"),
        Refusal("died", (1,)),
        deaths={1: wire.Death("killed by SIGKILL")},
        recovered="Rank 1 has a new process.",
    )
    error = verdict(ending)
    assert isinstance(error, RankDied)
    assert error.ranks == (1,)
    assert told(error) == [
        "Rank 1 died: killed by SIGKILL.",
        "A common cause of SIGKILL is that the host ran out of memory.",
        "Rank 1 has a new process.",
    ]


def test_a_failure_names_who_stopped_before_the_next_launch() -> None:
    error = verdict(Ending(record("refused", failed(), "interrupted"), Refusal("failed", (1,))))
    assert isinstance(error, CellFailed)
    assert (error.ranks, error.ename) == ((1,), "ValueError")
    assert told(error) == [
        "ValueError on rank 1: bad",
        "Rank 0 stopped before the next launch.",
        "Rank 2 was interrupted 2 s later.",
    ]
    xla = failed("JaxRuntimeError", "INTERNAL")
    error = verdict(Ending(record(xla, "ok"), Refusal("torn", (0,))))
    assert isinstance(error, CellFailed)
    assert told(error)[1] == "XLA launched a program on some ranks, and refused it on others."


def test_a_divergence_says_who_did_what_and_where() -> None:
    source = "if rank != 1:\n    s = x.sum()"
    error = verdict(Ending(record("refused", "refused", source=source), ENDED))
    assert isinstance(error, Divergence)
    assert error.ranks == (1,)
    assert told(error) == [
        "cell [7]: rank 1 ended the cell without the launch that rank 0 waits for.",
        "  rank 0   line 2   s = x.sum()   jit(sum)",
        "  rank 1   ended   line 1 is `if rank != 1:`",
        "Nothing was launched. Fix the cell and run it again.",
    ]


@pytest.mark.parametrize("kind", ["ended", "differs", "circle", "idle", "uneven", "torn"])
def test_what_a_refused_rank_raises_of_its_own_does_not_hide_the_divergence(kind: Any) -> None:
    ending = Ending(record(failed(), "refused"), Refusal(kind, (1,)), why="stop")
    assert isinstance(verdict(ending), Divergence)


def test_ranks_that_did_not_come_back_are_named_with_what_was_done() -> None:
    ending = Ending(record("ok"), stuck=(1,), recovered="The ranks have new processes.")
    error = verdict(ending)
    assert isinstance(error, RankHung)
    assert told(error) == [
        "Cell [7] did not end on rank 1.",
        "Rank 1 did not come back from C code.",
        "The ranks have new processes.",
    ]


def test_a_timeout_says_how_long_it_took() -> None:
    error = verdict(Ending(record("interrupted", "refused"), STOPPED, "timeout", 1.5))
    assert isinstance(error, CellFailed)
    assert error.ename == "TimeoutError"
    assert told(error) == [
        "Cell [7] took more than 1.5 s and was stopped on rank 0.",
        "Give it longer with --timeout, or leave out the limit.",
    ]


def test_a_stopped_cell_is_a_keyboard_interrupt() -> None:
    error = verdict(Ending(record("interrupted", "interrupted"), STOPPED, "stop"))
    assert isinstance(error, CellInterrupted)
    assert not isinstance(error, JaxClusterError)
    assert told(error) == ["cell [7] was stopped on ranks 0, 1."]


def test_a_debugger_that_was_quit_has_stopped_the_cell() -> None:
    ranks = record("ok", "interrupted")
    ranks.add_reply(wire.CellReply(1, 1, "interrupted", 0.1, failed("BdbQuit", "")))
    error = verdict(Ending(ranks, STOPPED))
    assert told(error) == ["The debugger of rank 1 was quit, so cell [7] was stopped on rank 1."]


@pytest.mark.parametrize(
    ("skipped", "why"),
    [
        (Skipped(), "it was stopped before it began."),
        (Skipped(after=4), "cell [6], which was queued before it, failed."),
        (Skipped(after=5), "a cell, which was queued before it, failed."),  # another notebook's
    ],
)
def test_a_cell_that_was_skipped_says_why(skipped: Skipped, why: str) -> None:
    error = verdict(Ending(record(skipped, skipped), numbers={4: 6}))
    assert isinstance(error, CellFailed)
    assert error.ename == "Skipped"
    assert told(error) == [f"Cell [7] was skipped: {why}", "Run it again."]
    died = verdict(Ending(record(Skipped(dead=1), Skipped(dead=1))))
    assert isinstance(died, RankDied) and died.ranks == (1,)
    assert told(died) == ["Cell [7] was skipped: rank 1 died before it began.", "Run it again."]
