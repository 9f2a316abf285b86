"""What is left of a rank's launches when its process has ended, at any moment."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers import python
from journals import launched

from jaxcluster import wire
from jaxcluster.engine import blackbox
from jaxcluster.engine.counted import LATEST, Program
from jaxcluster.engine.journal import Journal


def program(fingerprint: int, processes: str = "0,1") -> Program:
    return Program(f"jit(p{fingerprint})", fingerprint, processes, "float32[8]", None)


def left(path: Path) -> list[wire.Launch]:
    return blackbox.read(str(path)).all()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(blackbox.path_of(str(tmp_path / "rank-1.log")))


@pytest.fixture
def journal(path: Path) -> Journal:
    journal = Journal()
    journal.keep_in(str(path))
    assert journal.box is not None
    return journal


def test_it_has_the_last_launches_as_the_journal_has_them(journal: Journal, path: Path) -> None:
    journal.enter(5)
    for fingerprint in (1, 2, 1, 3):
        launched(journal, program(fingerprint))
    launched(journal, program(9, "0,1,2"))
    assert left(path) == journal.tail(10)
    assert "unit/test_blackbox.py line" in left(path)[0].within


def test_no_launch_is_too_odd_to_be_noted(journal: Journal, path: Path) -> None:
    with journal.unannounced():  # of a replay, or a check
        launched(journal, program(1))
    assert left(path) == journal.tail(1)
    assert left(path)[0].cell_seq == wire.OURS
    assert journal.box is not None
    for _ in range(3):
        journal.box.take_back("0,1")  # more than there were
    launched(journal, program(2))
    assert left(path)[-1].fingerprint == 2


def test_it_is_bounded_and_reaches_back_far_enough(journal: Journal, path: Path) -> None:
    for number in range(5000):
        launched(journal, program(number % 7))
    found = left(path)
    assert found == journal.tail(blackbox.TOLD)
    size = path.stat().st_size
    for number in range(2 * blackbox.NAMES):
        launched(journal, program(number))
    assert path.stat().st_size < size + 200 * blackbox.NAMES
    assert left(path)[-1] == journal.tail(1)[0]


def test_what_was_taken_back_is_replaced_by_what_came(journal: Journal, path: Path) -> None:
    launched(journal, program(1))
    with pytest.raises(ZeroDivisionError):
        journal.launch(program(2), lambda error: True, lambda: 1 // 0)
    launched(journal, program(3))
    assert {e.seq: e.fingerprint for e in left(path)} == {0: 1, 1: 3}


def test_counts_that_have_gone_astray_are_put_right_at_the_next_cell(
    journal: Journal, path: Path
) -> None:
    assert journal.box is not None
    launched(journal, program(1))
    journal.box.note(program(2), (None, 0, None, 0), 0)  # and it was not launched
    journal.enter(6)
    launched(journal, program(3))
    assert left(path)[-1].seq == journal.tail(1)[0].seq == 1


def test_a_launch_that_is_being_made_when_a_cell_begins_counts(
    journal: Journal, path: Path
) -> None:
    """A thread's, which waits for other ranks in it."""
    launched(journal, program(1))
    journal.launch(program(2), lambda error: True, journal.enter, 6)
    launched(journal, program(3))
    assert [(e.seq, e.fingerprint) for e in left(path)] == [(0, 1), (1, 2), (2, 3)]


def test_all_count_from_zero_again(journal: Journal, path: Path) -> None:
    launched(journal, program(1))
    journal.restart()
    assert left(path) == []
    launched(journal, program(2))
    assert [(e.seq, e.fingerprint) for e in left(path)] == [(0, 2)]


KILLED = """
import os, signal, sys
from jaxcluster.engine.counted import LATEST, Program
from jaxcluster.engine.journal import Journal
journal = Journal()
journal.keep_in(sys.argv[1])
for number in range(3):
    journal.launch(Program("jit(f)", number, "0,1", "", None), bool, int)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_there_after_a_kill(path: Path) -> None:
    assert python("-c", KILLED, str(path)).returncode == -signal.SIGKILL
    assert [e.fingerprint for e in left(path)] == [0, 1, 2]


def test_a_file_that_is_not_whole_tells_what_it_has(journal: Journal, path: Path) -> None:
    assert left(path.with_name("none.launches")) == []
    for number in range(3):
        launched(journal, program(number))
    content = path.read_bytes()
    path.write_bytes(content[:-30])  # in the middle of the last program's line
    assert [e.fingerprint for e in left(path)][:2] == [0, 1]
    path.write_bytes(content[:100])
    assert left(path) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # of jax, which other tests import
def test_where_there_is_no_room_nothing_is_kept_and_nothing_breaks(path: Path) -> None:
    """Written into a hole of a full disk, the process would end by SIGBUS."""
    code = (
        "import signal, sys; from jaxcluster.engine.counted import LATEST, Program\n"
        "from jaxcluster.engine.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "journal = Journal(); journal.keep_in(sys.argv[1])\n"
        "journal.launch(Program('jit(f)', 1, '0,1', '', None), bool, int)\n"
        "print(journal.box, journal.counts)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        check=True,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert done.stdout.startswith("None {'0,1': [1, 1]}")


def test_its_file_is_its_users_alone_and_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    link = tmp_path / "rank-0.launches"
    link.symlink_to(target)
    journal = Journal()
    journal.keep_in(str(link))
    assert journal.box is None
    assert target.read_text() == "precious"
    os.unlink(link)
    journal.keep_in(str(link))
    assert link.stat().st_mode & 0o777 == 0o600


ONE = "for _ in range(steps):\n    next(begin)\n    next(confirm)\n"
SOURCES = {
    "one": ONE,
    "two": "\n" + ONE,  # the same code, a line below
    "refused": ONE.replace("next(confirm)", "pass"),
    "library": f"def launch(steps, begin, confirm):\n    {ONE.replace(chr(10), chr(10) + '    ')}",
    "calls": "launch(3, begin, confirm)\nlaunch(2, begin, confirm)\n",
}


def test_launches_of_a_line_in_a_loop_are_noted_as_each_alone_is(
    journal: Journal, path: Path
) -> None:
    """From the second on they are noted in fewer steps, but not what others launch."""
    code = {name: compile(text, name, "exec") for name, text in SOURCES.items()}
    fast_paths: dict[Any, Any] = {}
    library: dict[str, Any] = {}
    exec(code["library"], library)

    def run(name: str, fingerprint: int, processes: str = "0,1", steps: int = 5) -> None:
        step = program(fingerprint, processes)
        iterators = journal.preparations(step, None), journal.confirmations(step)
        begin, confirm = fast_paths.setdefault((fingerprint, processes), iterators)
        exec(code[name], {**library, "steps": steps, "begin": begin, "confirm": confirm})

    def run_in_thread(*step: Any) -> None:
        thread = threading.Thread(target=run, args=step)
        thread.start()
        thread.join()

    journal.cell_numbers |= {"one": 3, "two": 4, "refused": 5, "calls": 6}
    told: list[tuple[int, int, int]] = []

    def expect(cell: int, line: int, seq: int, times: int = 5) -> None:
        told.extend([(cell, line, seq)] * times)
        found = left(path)
        assert found == journal.tail(blackbox.TOLD)
        assert [(entry.cell, entry.line, entry.cell_seq) for entry in found] == told

    for seq, (name, *step) in enumerate(
        [("one", 1), ("one", 2), ("two", 1), ("one", 9, "0,1,2"), ("one", 1)], 1
    ):
        journal.enter(seq)
        run(name, *step)
        expect(*((4, 3) if name == "two" else (3, 2)), seq)
    run_in_thread("one", 1)
    expect(3, 2, 0)
    run("two", 1)
    expect(4, 3, 5)
    run("one", 1)
    expect(3, 2, 5)
    run_in_thread("two", 2)
    expect(4, 3, 0)
    run("two", 2)
    expect(4, 3, 5)
    run("calls", 1)
    told += [(6, 1, 5)] * 3
    expect(6, 2, 5, 2)
    with journal.unannounced():
        run("one", 1)
    expect(3, 2, wire.OURS)
    counts: dict[str, int] = {}
    for entry in left(path):
        assert entry.seq == counts.setdefault(entry.processes, 0)
        counts[entry.processes] += 1
    run("refused", 1)  # each is begun, and none is made
    run("one", 1)
    assert left(path)[-5:] == journal.tail(5)
    journal.restart()  # what was known of the lines is not in the box any more
    run("one", 1)
    told.clear()
    expect(3, 2, 5)
    run("one", 1, "0,1", 1000)
    assert len(journal._made) <= LATEST
