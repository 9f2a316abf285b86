"""What a rank's flight recorder keeps of launches, and tells of them."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from jaxcluster.engine.journal import Journal, Program

SOURCE = """\
def train(hook):
    for _ in range(2):
        hook(
            1)

hook(0)
train(hook)
"""


def program(fingerprint: int, executable: Any = None, processes: str = "0,1") -> Program:
    return Program(f"jit(p{fingerprint})", fingerprint, processes, "f32[4]", executable)


def run_cell(journal: Journal, number: int, launched: Program) -> None:
    name = f"/cell/{number}.py"
    journal.cell_numbers[name] = number
    exec(compile(SOURCE, name, "exec"), {"hook": lambda _: journal.launched(launched)})


def test_a_launch_is_told_with_its_program_cell_and_line() -> None:
    journal = Journal()
    run_cell(journal, 7, program(5))
    told = journal.tail(10)
    assert [(e.seq, e.name, e.fingerprint, e.processes) for e in told] == [
        (seq, "jit(p5)", 5, "0,1") for seq in range(3)
    ]
    assert [(e.cell, e.line, e.signature) for e in told] == [
        (7, 6, "f32[4]"),
        (7, 3, "f32[4]"),
        (7, 3, "f32[4]"),
    ]
    assert [e.seq for e in journal.tail(2)] == [1, 2]


def test_a_launch_outside_of_any_cell_has_no_place() -> None:
    journal = Journal()
    journal.launched(program(5))
    (entry,) = journal.tail(10)
    assert (entry.cell, entry.line) == (None, None)


def test_equal_launches_have_equal_hashes_and_another_order_has_another() -> None:
    journals = [Journal() for _ in range(3)]
    for journal, order in zip(journals, ([1, 2, 1], [1, 2, 1], [2, 1, 1]), strict=True):
        for fingerprint in order:
            journal.launched(program(fingerprint))
    counts = [journal.counts["0,1"] for journal in journals]
    assert counts[0] == counts[1]
    assert counts[0][0] == counts[2][0]
    assert counts[0][1] != counts[2][1]


def test_the_ring_is_bounded_and_keeps_no_executable_alive() -> None:
    class Executable:
        pass

    journal = Journal(size=8)
    executable = Executable()
    gone = weakref.ref(executable)
    journal.launched(program(1, executable))
    for _ in range(20):
        journal.launched(program(2))
    journal.programs.clear()  # it keeps the programs launched last, which are bounded too
    del executable
    assert gone() is None
    assert len(journal.tail(100)) == 8
    assert journal.tail(1)[0].seq == 20


def test_a_restart_counts_from_zero() -> None:
    journal = Journal()
    journal.launched(program(1))
    journal.restart()
    assert journal.counts == {}
    assert journal.tail(10) == []


def test_the_line_is_the_one_that_the_frame_was_in() -> None:
    journal = Journal()
    lines = []

    def hook(_: int) -> None:
        lines.append(sys._getframe(1).f_lineno)
        journal.launched(program(1))

    journal.cell_numbers["/cell/1.py"] = 1
    exec(compile(SOURCE, "/cell/1.py", "exec"), {"hook": hook})
    assert [entry.line for entry in journal.tail(3)] == lines
