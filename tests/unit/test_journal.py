"""What a rank's flight recorder keeps of launches, and tells of them."""

from __future__ import annotations

import dis
import functools
import importlib.util
import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.engine.cell_output import CellOutput
from jaxcluster.engine.control import ControlChannel
from jaxcluster.engine.journal import LATEST, Journal, Program
from jaxcluster.engine.recent import Recent

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


def jax_folder() -> str:
    spec = importlib.util.find_spec("jax")
    assert spec is not None and spec.origin is not None
    return os.path.dirname(spec.origin)


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
    assert entry.within.endswith(": journal.launched(program(5))")


def test_a_launch_of_a_script_or_a_library_is_told_with_its_line_too(tmp_path: Path) -> None:
    """The innermost line that is not JAX's, up to the cell: of a class of files, not of a list."""
    journal = Journal()
    places = sysconfig.get_paths()
    files = {
        "train.py line 3": tmp_path / "train.py",  # found through sys.path or by its own name
        "netket/_src/log.py line 3": Path(places["purelib"]) / "netket/_src/log.py",
        "": Path(places["stdlib"]) / "functools.py",
        " ": Path(jax_folder()) / "_src/numpy/reductions.py",
        "  ": Path("<string>"),
    }
    (tmp_path / "train.py").write_text("\n\n    hook(  # summed\n")
    cell = "/cell/5.py"
    journal.cell_numbers[cell] = 5
    for told, file in files.items():
        source = SOURCE.replace("hook(0)\ntrain(hook)", "")
        inner: dict[str, Any] = {}
        exec(compile(source, str(file), "exec"), inner)
        outer = compile("\ntrain(hook)", cell, "exec")
        hook = functools.partial(journal.launched, program(1))
        exec(outer, {"train": inner["train"], "hook": hook})
        entry = journal.tail(1)[0]
        assert (entry.cell, entry.line) == (5, 2)
        assert entry.within.partition(":")[0] == told.strip(), file
        assert (": hook(  # summed" in entry.within) == told.startswith("train.py")


def test_the_same_statement_in_two_cells_is_in_each_of_them() -> None:
    """Code that was compiled from the same text is equal, whatever file it is of."""
    journal = Journal()
    for number in (1, 2):
        run_cell(journal, number, program(5))
    assert [entry.cell for entry in journal.tail(6)] == [1, 1, 1, 2, 2, 2]


def test_a_cells_file_that_was_met_before_it_was_known_is_known_afterwards() -> None:
    journal = Journal()
    for known in (False, True):
        if known:
            journal.cell_numbers["/cell/7.py"] = 7
        hook = {"hook": lambda _: journal.launched(program(5))}
        exec(compile(SOURCE, "/cell/7.py", "exec"), hook)
        assert {entry.cell for entry in journal.tail(3)} == {7 if known else None}


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


def test_a_launch_that_was_refused_is_not_counted() -> None:
    refusing, plain = Journal(), Journal()
    for journal in (refusing, plain):
        journal.launched(program(1))
    count, value = refusing.counts["0,1"]
    refusing.launched(program(2))
    refusing.take_back(program(2), count, value)
    assert refusing.launches() == plain.launches()
    assert [entry.fingerprint for entry in refusing.tail(10)] == [1]
    assert refusing.refused == 1
    refusing.enter(2, 2)
    assert refusing.refused == 0


def test_a_refused_launch_that_another_has_overtaken_leaves_no_rank_in_agreement() -> None:
    journals = [Journal(), Journal()]
    for journal in journals:
        refused = program(2)
        journal.launched(refused)
        journal.launched(program(3))
        journal.take_back(refused, 0, 0)
    one, other = (journal.launches()["0,1"] for journal in journals)
    assert one[0] == other[0] == 2
    assert one[1] != other[1]


def test_programs_that_broke_off_alike_agree_and_with_collectives_never() -> None:
    journals = [Journal() for _ in range(4)]
    for journal in journals:
        journal.launched(program(1))
        journal.launched(program(2))
    for journal in journals[1:3]:
        journal.broke_off(program(1), "by ValueError", for_good=False)
    whole, one, other, last = (journal.launches()["0,1"] for journal in journals)
    assert whole == last != one == other
    journals[3].broke_off(program(1), "by ValueError", for_good=True)
    journals[0].broke_off(program(1), "by ValueError", for_good=True)
    assert journals[0].launches() != journals[3].launches()
    journals[0].restart()
    journals[0].launched(program(1))
    assert journals[0].broken == {}


def test_the_launch_that_broke_off_is_told_as_another_program() -> None:
    journal = Journal()
    broken = program(1)
    journal.launched(broken)
    journal.launched(program(2))
    journal.broke_off(broken, "by ValueError", for_good=False, seq=0)
    journal.broke_off(broken, "by XlaError", for_good=True, seq=0)  # the same, heard of once more
    first, second = journal.tail(10)
    assert first.name == "jit(p1), broken off by ValueError"
    assert first.fingerprint != 1
    assert (second.name, second.fingerprint) == ("jit(p2)", 2)
    assert len(journal.broken["0,1"]) == 1


def test_launches_of_several_threads_are_all_counted() -> None:
    journal = Journal()
    launched = program(1)

    def launch_many() -> None:
        for _ in range(2000):
            journal.launched(launched)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=launch_many) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert journal.counts["0,1"][0] == 8000
    alone = Journal()
    for _ in range(8000):
        alone.launched(launched)
    assert journal.launches() == alone.launches()


def test_an_interrupt_that_waits_is_raised_on_the_main_thread_alone() -> None:
    journal = Journal()
    journal.interrupted = True
    thread = threading.Thread(target=journal.raise_if_interrupted)
    thread.start()
    thread.join()
    assert journal.interrupted
    with pytest.raises(KeyboardInterrupt):
        journal.raise_if_interrupted()
    assert not journal.interrupted


class TestUnannounced:
    def test_a_replays_launches_are_announced_to_nobody_and_later_ones_are(self) -> None:
        journal, announced = Journal(), []
        journal.before_launch = announced.append
        with pytest.raises(KeyboardInterrupt), journal.unannounced():
            journal.before_launch("replayed")
            raise KeyboardInterrupt
        journal.before_launch("later")
        assert announced == ["later"]

    def test_another_thread_stays_strict_meanwhile(self) -> None:
        journal, announced = Journal(), []
        journal.before_launch = announced.append
        with journal.unannounced():
            other = threading.Thread(target=journal.before_launch, args=["another's"])
            other.start()
            other.join()
        assert announced == ["another's"]

    def test_without_strict_mode_nothing_is_announced(self) -> None:
        journal = Journal()
        with journal.unannounced():
            assert journal.before_launch is None
        assert journal.before_launch is None


def test_launches_are_counted_however_many_come_before_somebody_asks() -> None:
    one, other = Journal(), Journal()
    for fingerprint in range(3 * LATEST + 7):
        for journal in (one, other):
            journal.launched(program(fingerprint % 5))
        assert other.counts["0,1"][0] == fingerprint + 1
        assert len(one._latest) < LATEST
    assert one.launches() == other.launches()
    assert one.tail(5000) == other.tail(5000)
    assert set(one.programs) == set(range(5))


def test_an_interrupt_during_a_launch_is_raised_after_the_count() -> None:
    journal = Journal()
    journal.interrupted = True
    journal.launched(program(1))  # before a launch it is left alone
    with pytest.raises(KeyboardInterrupt):
        journal.launched(program(2), ())
    assert journal.counts["0,1"][0] == 2


@pytest.mark.parametrize(
    "holds_lock",
    [
        Journal._enter_latest,
        ControlChannel.post,
        ControlChannel._stream_text,
        ControlChannel._send_new,
        CellOutput.show_rest,
        Recent.text,
        Recent.add,
    ],
)
def test_no_loop_stands_where_a_lock_is_held(holds_lock: Callable[..., Any]) -> None:
    """A signal's handler may raise at its jump, which ``with`` and ``try`` do not cover.

    So it is since Python 3.12: a lock would be held for ever. Loops are in functions of their own.
    """
    names = [step.opname for step in dis.get_instructions(holds_lock)]
    assert not [n for n in names if "BACKWARD" in n and "NO_INTERRUPT" not in n]


def test_a_finalizer_that_launches_while_launches_are_entered_comes_after_them() -> None:
    journal = Journal()

    class Interrupting:
        """A program that launches another when the journal looks at it."""

        def __getattr__(self, name: str) -> Any:
            if journal.counts["0,1"][0] == 1 and not journal._latest:
                journal.launched(program(9))
            return getattr(program(2), name)

    journal.launched(program(1))
    assert journal.counts["0,1"][0] == 1
    journal.launched(Interrupting())  # type: ignore[arg-type]
    assert [entry.fingerprint for entry in journal.tail(10)] == [1, 2, 9]
    assert journal.counts["0,1"][0] == 3


def test_a_training_loops_launches_are_told_in_a_few_words() -> None:
    """Whoever waits for a long cell is told 256 of them each second, by every rank."""
    journal = Journal()
    steps = [program(1), program(2)]
    for k in range(300):
        journal.launched(steps[k % 10 == 0])
    kinds, made = journal.packed_tail(256)
    assert len(kinds) == 2
    assert len(made) == 256
    told = wire.encode("reply", "1", {"kinds": kinds, "made": made})
    assert len(told) < 256 * 16 + 2 * 500
    assert wire.unpacked(kinds, made) == journal.tail(256)
    assert [(e.seq, e.fingerprint) for e in journal.tail(256)] == [
        (k, 2 if k % 10 == 0 else 1) for k in range(44, 300)
    ]
