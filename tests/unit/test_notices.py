"""What is said under a cell while it runs."""

from __future__ import annotations

from jaxcluster import wire
from jaxcluster.model import notices
from jaxcluster.model.outputs import CellRecord


def record(**errors: wire.ErrorInfo) -> CellRecord:
    """A cell of 4 ranks; ``r1`` is what rank 1 raised."""
    made = CellRecord(seq=1, execution_count=7, source="pass", ranks=[0, 1, 2, 3])
    for rank, error in errors.items():
        made.add_reply(wire.CellReply(int(rank[1:]), 1, "error", 0.1, error))
    return made


def test_the_first_error_is_told_with_its_place_and_the_time_that_is_left() -> None:
    failed = record(r1=wire.ErrorInfo("ValueError", "bad\nbatch", [], 3))
    assert notices.first_error(failed, [0, 2, 3], 2.0, {}) == (
        "Rank 1 raised ValueError: bad batch (cell [7], line 3). "
        "Ranks 0, 2, 3 have 2 s to end the cell.\n"
    )


def test_a_long_error_takes_one_line() -> None:
    failed = record(r0=wire.ErrorInfo("ValueError", "x" * 10_000, []))
    told = notices.first_error(failed, [1], 2.0, {0: "h1", 1: "h2"})
    assert len(told) == notices.MOST_CHARS
    assert told.startswith("Rank 0 (h1) raised ValueError: xxx")
    assert told.endswith("…" + " (cell [7]). Rank 1 (h2) has 2 s to end the cell.\n")


def test_a_strict_divergence_is_told_without_its_parts() -> None:
    failed = record(r0=wire.ErrorInfo("Divergence", "half of it", [], 2, heard=1))
    assert notices.first_error(failed, [1, 2, 3], 2.0, {}) == (
        "Rank 0 diverged in strict mode: the programs that differ were not launched. "
        "Ranks 1-3 have 2 s to end the cell.\n"
    )


def test_a_death_is_told_early_without_its_cause_which_the_end_tells() -> None:
    assert notices.deaths({2: "killed by SIGKILL"}, [0, 1, 3], {}) == (
        "Rank 2 died. Ranks 0, 1, 3 have been interrupted, but have not left the cell yet.\n"
    )


def test_equal_faults_of_ours_are_told_once() -> None:
    made = CellRecord(seq=1, execution_count=7, source="pass", ranks=[0, 1, 2])
    for rank, fault in enumerate(["KeyError: 1", "", "KeyError: 1"]):
        made.add_reply(wire.CellReply(rank, 1, "ok", 0.1, fault=fault))
    (told,) = notices.faults(made)
    assert told.startswith("jaxcluster itself failed on ranks 0, 2 after the cell's own code")
    assert "KeyError: 1. %jaxcluster logs 0 has" in told


def test_of_ranks_that_are_not_shown_it_is_told_what_their_threads_have_failed_with() -> None:
    failed = wire.ThreadError("loader", "ValueError", "bad file", "data.py line 4")
    for shown, ranks in ((), "ranks 1, 2"), ((1,), "ranks 0, 2"):
        made = CellRecord(seq=1, execution_count=7, source="pass", ranks=[0, 1, 2], shown=shown)
        for rank in range(3):
            made.add_reply(wire.CellReply(rank, 1, "ok", 0.1, thread_error=failed))
        assert notices.faults(made) == [
            f"Thread 'loader' of {ranks} ended with ValueError at data.py line 4: bad file\n"
        ]


def test_while_a_person_holds_a_rank_nobody_has_only_so_long() -> None:
    failed = record(r2=wire.ErrorInfo("ValueError", "why", [], 2))
    assert notices.first_error(failed, [0, 1], 2.0, {}, [1]) == (
        "Rank 2 raised ValueError: why (cell [7], line 2). "
        "The cell goes on while rank 1 waits for you.\n"
    )


def test_hosts_that_are_lost_are_told_with_their_ranks() -> None:
    why = "host h2 is lost: it has not been reached for 15 s"
    told = notices.lost_hosts({2: why, 1: "host h1 is lost: gone", 3: why})
    assert told == f"Rank 1: host h1 is lost: gone.\nRanks 2, 3: {why}.\n"
    assert isinstance(told, notices.Alarm)
