"""What waiting for a cell raises, by all that is known of its end."""

from __future__ import annotations

import pytest

from jaxcluster import wire
from jaxcluster.engine import failures
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    Divergence,
    JaxClusterError,
    RankDied,
    RankHung,
)
from jaxcluster.model import findings
from jaxcluster.model.outputs import CellRecord
from jaxcluster.model.verdict import Death, Ending, verdict

FOUND = findings.Report("missing", "0,1", 3, (1,), (0,), ("Rank 1 finished without it.",))


def record(*replies: str | wire.ErrorInfo) -> CellRecord:
    """Of a cell whose ranks have replied so: a status, or an error."""
    made = CellRecord(seq=1, execution_count=7, source="pass", ranks=list(range(len(replies))))
    for rank, reply in enumerate(replies):
        status, error = (reply, None) if isinstance(reply, str) else ("error", reply)
        if status == "interrupted":
            error = wire.ErrorInfo("KeyboardInterrupt", "", [])
        made.add_reply(wire.CellReply(rank, 1, status, 0.1, error))
    return made


def failed(ename: str = "ValueError", evalue: str = "bad", heard: int | None = None):
    return wire.ErrorInfo(ename, evalue, [f"{ename}: {evalue}"], 2, heard)


def told(error: BaseException | None) -> list[str]:
    assert error is not None
    return str(error).splitlines()


def test_a_cell_that_has_ended_as_it_should_raises_nothing() -> None:
    assert verdict(Ending(record("ok", "ok"))) is None


def test_a_death_says_what_was_done_and_nothing_else() -> None:
    ending = Ending(
        record(failed(), "ok"), death=Death("Rank 1 died.", "New processes.", [1]), report=FOUND
    )
    error = verdict(ending)
    assert isinstance(error, RankDied)
    assert error.ranks == (1,)
    assert told(error) == ["Rank 1 died.", "New processes."]


def test_a_failure_comes_before_the_finding_that_it_caused() -> None:
    error = verdict(
        Ending(record("interrupted", failed()), "error", (0,), report=FOUND, recovered="Back.")
    )
    assert isinstance(error, CellFailed)
    assert error.ranks == (1,)
    assert told(error) == ["ValueError on rank 1: bad", *FOUND.lines, "Back."]


def test_ranks_that_were_interrupted_since_another_failed_are_told() -> None:
    error = verdict(Ending(record("interrupted", failed()), "error", (0,), grace_s=2))
    assert told(error)[1] == "Rank 0 had not ended the cell 2 s later and was interrupted."


def test_a_strict_divergence_is_told_by_the_rank_that_has_heard_most() -> None:
    ranks = record(failed("Divergence", "one", 1), failed("Divergence", "both", 2))
    error = verdict(Ending(ranks, undone="This cell is undone."))
    assert isinstance(error, Divergence)
    assert told(error) == ["Cell [7]: both.", "This cell is undone."]


def test_an_error_of_the_users_own_of_that_name_is_not_one_of_strict_mode() -> None:
    error = verdict(Ending(record(failed("Divergence", "of the loss"), "ok")))
    assert isinstance(error, CellFailed)
    assert told(error) == ["Divergence on rank 0: of the loss"]


@pytest.mark.parametrize(("heard", "of_strict_mode"), [(2, True), (None, False)])
def test_strict_mode_marks_its_own_error(heard: int | None, of_strict_mode: bool) -> None:
    class Divergence(RuntimeError):
        pass

    error = failures.Divergence("differ", heard) if heard else Divergence("differ")
    info = failures.error_info(error, [], {})
    assert (info.ename, info.heard is not None) == ("Divergence", of_strict_mode)


def test_other_errors_beside_a_strict_divergence_are_shown_with_it() -> None:
    error = verdict(Ending(record(failed("Divergence", "one", 1), failed())))
    assert isinstance(error, CellFailed)
    assert error.ranks == (0, 1)


def test_silent_ranks_are_named_with_where_they_are() -> None:
    ending = Ending(
        record("ok"), "stop", (0, 1), silent=(1,), unanswered=["Rank 1 is in C code."], report=FOUND
    )
    error = verdict(ending)
    assert isinstance(error, RankHung)
    assert told(error) == [
        "Cell [7] did not end on rank 1.",
        "Don't trust what it has assigned.",
        "Rank 1 is in C code.",
        *FOUND.lines,
    ]


def test_a_finding_is_told_once() -> None:
    error = verdict(Ending(record("ok", "ok"), report=FOUND, is_diverged=True))
    assert isinstance(error, Divergence)
    assert error.report is FOUND
    assert told(error) == [
        *FOUND.lines,
        "The ranks have diverged. %jaxcluster restart gives the ranks new processes and keeps "
        "their variables.",
    ]


def test_a_timeout_says_where_the_ranks_were() -> None:
    error = verdict(
        Ending(
            record("interrupted", "interrupted"), "timeout", (0, 1), 1.5, places=["Both at line 2."]
        )
    )
    assert isinstance(error, CellFailed)
    assert error.ename == "TimeoutError"
    assert told(error)[:2] == [
        "Cell [7] took more than 1.5 s and was interrupted on ranks 0, 1.",
        "Both at line 2.",
    ]


def test_of_a_cell_that_came_to_its_end_beyond_its_time_it_is_said_that_it_is_kept() -> None:
    """Nothing is undone then: the interrupt came too late, or its code has caught it."""
    for replies, kept in ((("ok", "ok"), True), (("ok", "interrupted"), False)):
        lines = told(verdict(Ending(record(*replies), "timeout", (0, 1), 1.5)))
        assert ("It came to its end all the same, so what it did is kept." in lines) is kept


def test_a_cell_that_was_stopped_on_some_ranks_alone_says_that_they_may_differ() -> None:
    """As one of many events of a widget, which takes milliseconds."""
    lines = told(verdict(Ending(record("ok", "interrupted"), "stop", (1,))))
    assert lines == [
        "cell [7] was stopped on rank 1.",
        "Rank 0 had come to its end, so what it changed may differ between the ranks.",
    ]


@pytest.mark.parametrize("why", ["", "stop", "timeout"])
@pytest.mark.parametrize("said", ["undone", "recovered"])
def test_no_cell_that_is_taken_back_ends_without_a_word(why: str, said: str) -> None:
    """As where a rank dies after the cell, or a stop comes when all ranks have ended it."""
    error = verdict(Ending(record("ok", "ok"), why, (1,), 1.5, **{said: "It is undone."}))
    assert {"": Divergence, "stop": CellInterrupted, "timeout": CellFailed}[why] is type(error)
    assert "It is undone." in told(error)
    assert "what it did is kept" not in str(error)


def test_a_stopped_cell_is_a_keyboard_interrupt() -> None:
    error = verdict(Ending(record("interrupted", "ok"), "stop", (0, 1), undone="It is undone."))
    assert isinstance(error, CellInterrupted)
    assert not isinstance(error, JaxClusterError)
    assert told(error) == ["cell [7] was stopped on rank 0.", "It is undone."]


def test_what_a_stop_has_left_of_names_is_told_by_its_error() -> None:
    error = verdict(Ending(record("interrupted", "interrupted"), "stop", (0, 1), left="Lost: x."))
    assert isinstance(error, CellInterrupted) and told(error)[-1] == "Lost: x."


@pytest.mark.parametrize("said", ["", "undone", "recovered"])
def test_what_is_not_to_be_trusted_of_a_cell_that_hangs_is_said_once(said: str) -> None:
    more: dict[str, str] = {said: "It is undone."} if said else {}
    error = verdict(Ending(record("ok"), "stop", (0, 1), silent=(1,), **more))
    assert isinstance(error, RankHung)
    assert ("Don't trust what it has assigned" in str(error)) is (not said)
