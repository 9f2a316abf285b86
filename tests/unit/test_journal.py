"""What a rank's flight recorder keeps of launches, and tells of them."""

from __future__ import annotations

import dataclasses
import dis
import functools
import importlib.util
import os
import random
import sys
import sysconfig
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tornado.ioloop
from journals import launched

from jaxcluster import wire
from jaxcluster.engine.blackbox import CHECK
from jaxcluster.engine.cell_output import CellOutput
from jaxcluster.engine.control import ControlChannel
from jaxcluster.engine.counted import LATEST, NOWHERE, Program
from jaxcluster.engine.crossings import Crossings
from jaxcluster.engine.history import History
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.library_code import is_telling_file

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


def run_cell(journal: Journal, number: int, made: Program) -> None:
    name = f"/cell/{number}.py"
    journal.cell_numbers[name] = number
    exec(compile(SOURCE, name, "exec"), {"hook": lambda _: launched(journal, made)})


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
    launched(journal, program(5))
    (entry,) = journal.tail(10)
    assert (entry.cell, entry.line) == (None, None)
    assert entry.within.endswith(": launched(journal, program(5))")


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
        hook = functools.partial(launched, journal, program(1))
        exec(outer, {"train": inner["train"], "hook": hook})
        entry = journal.tail(1)[0]
        assert (entry.cell, entry.line) == (5, 2)
        assert entry.within.partition(":")[0] == told.strip(), file
        assert (": hook(  # summed" in entry.within) == told.startswith("train.py")


def test_the_loop_that_calls_a_callback_says_nothing_of_where_it_comes_from() -> None:
    assert not is_telling_file(tornado.ioloop.__file__)
    assert is_telling_file(np.__file__)


@pytest.mark.parametrize(
    ("name", "told"),
    [("jit(f)", "jaxcluster's replay"), (f"jit({CHECK})", "jaxcluster's check")],
)
def test_what_jaxcluster_launches_itself_is_told_as_that(name: str, told: str) -> None:
    journal = Journal()
    own = dataclasses.replace(program(7), name=name)
    journal._made.append(((own, NOWHERE, wire.OURS, 0), 0, 0))
    (launch,) = journal.tail(4)
    assert (launch.cell, launch.line, launch.within) == (None, None, told)


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
        hook = {"hook": lambda _: launched(journal, program(5))}
        exec(compile(SOURCE, "/cell/7.py", "exec"), hook)
        assert {entry.cell for entry in journal.tail(3)} == {7 if known else None}


def test_equal_launches_have_equal_hashes_and_another_order_has_another() -> None:
    journals = [Journal() for _ in range(3)]
    for journal, order in zip(journals, ([1, 2, 1], [1, 2, 1], [2, 1, 1]), strict=True):
        for fingerprint in order:
            launched(journal, program(fingerprint))
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
    launched(journal, program(1, executable))
    for _ in range(20):
        launched(journal, program(2))
    assert journal.counts
    journal._programs.clear()  # it keeps the programs launched last, which are bounded too
    del executable
    assert gone() is None
    assert len(journal.tail(100)) == 8
    assert journal.tail(1)[0].seq == 20


def test_a_restart_counts_from_zero() -> None:
    journal = Journal()
    launched(journal, program(1))
    journal.restart()
    assert journal.counts == {}
    assert journal.tail(10) == []


def test_a_restart_that_is_told_twice_counts_from_zero_once() -> None:
    """By a second notebook, where the first may not have reached all ranks."""
    journal = Journal()
    journal.restart(2)
    launched(journal, program(1))
    journal.restart(2)
    assert journal.counts and journal.restarts == 2
    journal.restart(3)
    assert not journal.counts and journal.restarts == 3


def test_what_was_launched_since_a_restart_was_decided_is_counted() -> None:
    """By a thread, before the rank was told: the others may not have launched it yet."""
    journal, other = Journal(), Journal()
    for one in (journal, other):
        launched(one, program(1))
    launched(journal, program(2))
    journal.restart(1, {"0,1": 1})
    other.restart(1, {"0,1": 1})
    launched(other, program(2))
    assert journal.counts == other.counts and journal.counts["0,1"][0] == 1
    assert [(e.seq, e.fingerprint) for e in journal.tail(9)] == [(0, program(2).fingerprint)]
    assert journal.foreign == ["0,1"]


def test_the_line_is_the_one_that_the_frame_was_in() -> None:
    journal = Journal()
    lines = []

    def hook(_: int) -> None:
        lines.append(sys._getframe(1).f_lineno)
        launched(journal, program(1))

    journal.cell_numbers["/cell/1.py"] = 1
    exec(compile(SOURCE, "/cell/1.py", "exec"), {"hook": hook})
    assert [entry.line for entry in journal.tail(3)] == lines


def refuse(*_: Any) -> None:
    raise ValueError("INVALID_ARGUMENT")


def test_a_launch_that_was_refused_is_not_counted() -> None:
    refusing, plain = Journal(), Journal()
    for journal in (refusing, plain):
        launched(journal, program(1))
    with pytest.raises(ValueError, match="INVALID"):
        refusing.launch(program(2), lambda error: True, refuse)
    assert refusing.launches() == plain.launches()
    assert [entry.fingerprint for entry in refusing.tail(10)] == [1]


def test_a_launch_that_ended_in_an_unknown_error_counts_as_broken_off() -> None:
    journal, plain = Journal(), Journal()
    launched(plain, program(2))
    with pytest.raises(ValueError, match="INVALID"):
        journal.launch(program(2), lambda error: False, refuse)
    (entry,) = journal.tail(10)
    assert entry.name == "jit(p2), aborted by ValueError"
    assert journal.launches()["0,1"][0] == 1
    assert journal.launches() != plain.launches()


def test_a_launch_that_waits_counts_and_is_told_while_it_does() -> None:
    """Of another thread, which a poll's looks at."""
    journal, told = Journal(), []
    inside, go_on = threading.Event(), threading.Event()

    def wait() -> str:
        inside.set()
        go_on.wait()
        return "result"

    one = program(1)
    launching = threading.Thread(
        target=lambda: told.append(journal.launch(one, lambda error: True, wait))
    )
    launched(journal, program(2))
    launching.start()
    inside.wait()
    assert journal.program(1) is one
    assert [(entry.seq, entry.fingerprint) for entry in journal.tail(10)] == [(0, 2), (1, 1)]
    waiting = journal.launches()
    go_on.set()
    launching.join()
    assert told == ["result"]
    assert journal.launches() == waiting
    assert [(entry.seq, entry.fingerprint) for entry in journal.tail(10)] == [(0, 2), (1, 1)]


def test_a_launch_that_breaks_off_while_it_waits_is_told_so_once() -> None:
    """Its callback raises, and XLA with it."""
    journal, calling = Journal(), program(1)

    def call() -> None:
        journal.broke_off(calling, "by ValueError in a function", for_good=False)
        raise RuntimeError("INTERNAL: a callback has failed")

    with pytest.raises(RuntimeError):
        journal.launch(calling, lambda error: False, call)
    launched(journal, calling)
    assert [entry.name for entry in journal.tail(10)] == [
        "jit(p1), aborted by ValueError in a function",
        "jit(p1)",
    ]
    assert len(journal.broken["0,1"]) == 1


def test_programs_that_broke_off_alike_agree_and_are_to_be_checked() -> None:
    journals = [Journal() for _ in range(5)]
    for journal in journals:
        launched(journal, program(1))
        launched(journal, program(2))
    for journal in journals[1:3]:
        journal.broke_off(program(1), "by ValueError", for_good=False)
    journals[4].broke_off(program(1), "by TypeError", for_good=False)
    whole, one, other, last, unlike = (journal.launches()["0,1"] for journal in journals)
    assert whole == last != one == other
    assert unlike not in (one, whole)
    assert [journal.unchecked for journal in journals] == [False, True, True, False, True]
    journals[3].broke_off(program(1), "by ValueError", for_good=True)
    journals[0].broke_off(program(1), "by ValueError", for_good=True)
    assert journals[0].launches() != journals[3].launches()
    journals[0].restart()
    launched(journals[0], program(1))
    assert not any(journals[0].broken.values())
    assert not journals[0].unchecked
    alone = Program("jit(p)", 3, "0,1", "", None, collective=False)
    launched(journals[0], alone)
    journals[0].broke_off(alone, "by ValueError", for_good=False)
    assert not journals[0].unchecked


def test_the_launch_that_broke_off_is_told_as_another_program() -> None:
    journal = Journal()
    broken = program(1)
    launched(journal, broken)
    launched(journal, program(2))
    journal.broke_off(broken, "by ValueError", for_good=False)
    first, second = journal.tail(10)
    assert first.name == "jit(p1), aborted by ValueError"
    assert first.fingerprint != 1
    assert (second.name, second.fingerprint) == ("jit(p2)", 2)
    assert len(journal.broken["0,1"]) == 1


def test_launches_of_several_threads_are_all_counted() -> None:
    journal = Journal()
    one = program(1)

    def launch_many() -> None:
        for _ in range(2000):
            launched(journal, one)

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
        launched(alone, one)
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
            launched(journal, program(fingerprint % 5))
        assert other.counts["0,1"][0] == fingerprint + 1
        assert len(one._made) <= LATEST
    assert one.launches() == other.launches()
    assert one.tail(5000) == other.tail(5000)
    assert all(one.program(fingerprint) for fingerprint in range(5))


@pytest.mark.parametrize(
    "holds_lock",
    [
        ControlChannel.post,
        ControlChannel._stream_text,
        ControlChannel._send_new,
        CellOutput.show_rest,
        History.begin,
        History.text,
        History.add,
        History.end,
        History._write_texts,
    ],
)
def test_no_loop_stands_where_a_lock_is_held(holds_lock: Callable[..., Any]) -> None:
    """A signal's handler may raise at its jump, which ``with`` and ``try`` do not cover.

    So it is since Python 3.12: a lock would be held for ever. Loops are in functions of their own.
    """
    names = [step.opname for step in dis.get_instructions(holds_lock)]
    assert not [n for n in names if "BACKWARD" in n and "NO_INTERRUPT" not in n]


def test_a_finalizer_that_launches_while_launches_are_entered_comes_after_them() -> None:
    journal, launches = Journal(), []

    class Finalizing:
        """A program that launches another when the journal looks at it."""

        def __getattr__(self, name: str) -> Any:
            if name == "told" and not launches:
                launches.append(1)
                launched(journal, program(9))
            return getattr(program(2), name)

    launched(journal, program(1))
    launched(journal, Finalizing())  # type: ignore[arg-type]
    assert [entry.fingerprint for entry in journal.tail(10)] == [1, 2, 9]
    assert journal.counts["0,1"][0] == 3


def test_a_training_loops_launches_are_told_in_a_few_words() -> None:
    """Whoever waits for a long cell is told 256 of them each second, by every rank."""
    journal = Journal()
    steps = [program(1), program(2)]
    for k in range(300):
        launched(journal, steps[k % 10 == 0])
    kinds, made = journal.packed_tail(256)
    assert len(kinds) == 2
    assert len(made) == 256
    told = wire.encode("reply", "1", {"kinds": kinds, "made": made})
    assert len(told) < 256 * 16 + 2 * 500
    assert wire.unpacked(kinds, made) == journal.tail(256)
    assert [(e.seq, e.fingerprint) for e in journal.tail(256)] == [
        (k, 2 if k % 10 == 0 else 1) for k in range(44, 300)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_launches_are_entered_alike_in_rows_and_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    sets = chance.choice([["0,1"], ["0,1", "2,3"], ["0,1", "0,1,2"], ["0,1", "2,3", "1,2,3"]])
    programs = [program(n, processes=chance.choice(sets)) for n in range(5)]
    cells = [chance.choice([1, 2, 0, wire.OURS]) for _ in range(4)]
    story = [
        (chance.choice(programs), chance.choice(cells))
        for _ in range(50)
        for _ in range(chance.choice([1, 1, 7]))
    ]

    def told(journal: Journal) -> tuple[Any, ...]:
        for made, cell in story:
            journal._made.append(((made, (None, 0, None, 0), cell, 0), 0, 0))
            if len(journal._made) > 20:
                journal._enter_latest()
        own = [journal.own(cell) for cell in (1, 2)]
        return journal.launches(), own, journal.foreign, journal.tail(4096)

    in_rows = told(Journal())
    monkeypatch.setattr(Journal, "_enter_rows", lambda *_: None)
    assert in_rows == told(Journal())


def test_launches_that_another_thread_enters_meanwhile_are_entered_once() -> None:
    journal = Journal()

    class Made(list[Any]):
        has_been_read = False

        def __getitem__(self, part: Any) -> Any:
            found = super().__getitem__(part)
            if not self.has_been_read:
                self.has_been_read = True
                journal._enter_latest()  # as another thread may, right after this one has read it
            return found

    journal._made = Made()
    for _ in range(3):
        launched(journal, program(1))
    assert journal.counts["0,1"][0] == 3
    assert len(journal.tail(10)) == 3


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, cls: type, name: str, act: Callable[[], Any]
) -> None:
    """Another thread does something right before a method is called for the first time."""
    method = getattr(cls, name)

    def late(self: Any) -> Any:
        monkeypatch.undo()
        other = threading.Thread(target=act)
        other.start()
        other.join()
        return method(self)

    monkeypatch.setattr(cls, name, late)


class Counts(dict[str, list[int]]):
    def copy(self) -> Any:
        return super().copy()


@pytest.mark.parametrize("part", [Counts, Crossings])
@pytest.mark.parametrize("ends", [False, True])
def test_counts_of_sets_and_of_pairs_are_of_one_moment(
    monkeypatch: pytest.MonkeyPatch, part: type, ends: bool
) -> None:
    """Another thread's launch is made, or one that waited ends, before one of them is read."""
    journal, one = Journal(), program(2)
    journal._counts = Counts()
    launched(journal, program(1, processes="0,1,2"))
    launched(journal, one)
    assert len(journal.launches()) == 3
    inside, go_on = threading.Event(), threading.Event()
    if ends:
        waiting = threading.Thread(
            target=journal.launch,
            args=(one, lambda error: True, lambda: (inside.set(), go_on.wait())),
        )
        waiting.start()
        inside.wait()

    def act() -> None:
        if ends:
            go_on.set()
            waiting.join()
        else:
            launched(journal, one)
        journal.launches()

    meanwhile(monkeypatch, part, "copy", act)
    told = journal.launches()
    assert go_on.is_set() == ends
    assert told == journal.launches()
    assert told["0,1"][0] == 2
