"""A launch that was made counts, and one that was not does not, wherever something raises.

Here XLA is a list that a call of C appends to. ``tests/ranks/test_launches.py`` has the real one.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from jaxcluster.engine import counted, crossings, journal
from jaxcluster.engine.counted import Program
from jaxcluster.engine.journal import Journal

PATHS = ["fast", "python"]
LOOKED_AT = 16  # launches
STRIDE = 7  # instructions


class Stop(BaseException):
    """What a signal's handler raises, a trace function, a profiler, or another thread."""


def program(name: str, **more: Any) -> Program:
    return Program(name, sum(name.encode()), "0,1", "f32[4]", object(), **more)


class Rank:
    """A journal, and what XLA has really executed."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.executed: list[str] = []
        self.confirmations: dict[str, Iterator[None]] = {}

    def launch(self, one: Program, path: str = "fast", *meanwhile: Callable[[], Any]) -> None:
        """As JAX does it; ``meanwhile`` is called in the middle, between two steps of C."""
        execute = map(self.executed.append, (one.name,))
        between = map(operator.call, meanwhile)
        if path == "python":
            steps = itertools.chain(execute, between)
            self.journal.launch(one, lambda error: False, list, steps)
            return
        confirmations = self.confirmations.setdefault(one.name, self.journal.confirmations(one))
        prepare = itertools.islice(self.journal.preparations(one, None), 1)
        confirm = itertools.islice(confirmations, 1)
        list(itertools.chain(prepare, execute, between, confirm))

    def counted(self) -> list[str]:
        return [entry.name for entry in self.journal.tail(LOOKED_AT)]

    def is_told_right(self) -> bool:
        counts = self.journal.launches().get("0,1", [0, 0])
        return self.counted() == self.executed[-LOOKED_AT:] and counts[0] == len(self.executed)


def raised_at(position: int, call: Callable[[], Any]) -> bool:
    """Whether ``call`` has that many instructions of the journal's; at that one ``Stop`` comes."""
    instructions = itertools.count()

    def on_instruction() -> None:
        if next(instructions) == position:
            raise Stop

    try:
        with traced(on_instruction):
            call()
    except Stop:
        return True
    return False


@contextlib.contextmanager
def traced(on_instruction: Callable[[], None]) -> Iterator[None]:
    """Inside it that is called before each instruction of the journal's."""
    if sys.version_info >= (3, 12):
        events, tool = sys.monitoring, sys.monitoring.PROFILER_ID
        events.use_tool_id(tool, __name__)
        events.register_callback(tool, events.events.INSTRUCTION, lambda *_: on_instruction())
        for code in OURS:
            events.set_local_events(tool, code, events.events.INSTRUCTION)
        try:
            yield
        finally:
            for code in OURS:
                events.set_local_events(tool, code, 0)
            events.free_tool_id(tool)
        return

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code not in OURS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            on_instruction()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


OURS = {
    code
    for holder in (journal, Journal, counted, counted.CountedLaunches, crossings.Crossings)
    for function in vars(holder).values()
    if inspect.isfunction(function)
    for code in codes(function.__code__)
}


def enter_at_once(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (counted, journal):
        monkeypatch.setattr(module, "LATEST", number)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("full", [False, True], ids=["none to be entered", "many to be entered"])
def test_whatever_raises_at_any_instruction_of_ours_parts_no_launch_from_its_count(
    path: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter_at_once(3, monkeypatch)
    rank = Rank()
    f, g = program("f"), program("g")
    rank.launch(f, path)
    for position in itertools.count():
        for _ in range(3 - len(rank.journal._made) if full else 0):
            rank.launch(g)
        raised = raised_at(position, lambda: rank.launch(f, path))
        assert rank.is_told_right(), f"at instruction {position}"
        if not raised:
            break
    assert position > 40


def test_whatever_raises_while_the_launches_are_asked_for_loses_none() -> None:
    rank = Rank()
    f, g = program("f"), program("g")
    for position in itertools.count():
        rank.launch(f)
        rank.launch(g)
        if not raised_at(position, rank.journal.launches):
            break
        assert rank.is_told_right(), f"at instruction {position}"
    assert position > 100


@pytest.mark.parametrize("path", PATHS)
def test_a_recursion_error_comes_before_the_launch_or_after_its_count(path: str) -> None:
    rank = Rank()
    f = program("f")
    rank.launch(f, path)

    def dive(levels: int) -> None:
        if levels:
            dive(levels - 1)
        else:
            rank.launch(f, path)

    outcomes = set()
    for levels in range(sys.getrecursionlimit() - 120, sys.getrecursionlimit()):
        try:
            dive(levels)
        except RecursionError:
            outcomes.add("raised")
        else:
            outcomes.add("launched")
        assert rank.is_told_right(), f"at {levels} levels"
    assert outcomes == {"raised", "launched"}


def test_what_a_finalizer_launches_in_the_middle_is_counted_and_its_order_not_believed() -> None:
    """Before Python 3.12 the collector runs in any allocation, also between launch and count."""
    rank, other = Rank(), Rank()
    f, g = program("f"), program("g")
    for each in (rank, other):
        each.launch(f, "fast", functools.partial(each.launch, g))
    assert rank.executed == ["f", "g"]
    told = rank.counted()
    assert told[0] == "g"
    assert told[1].startswith("f, aborted or launched after")
    assert rank.journal.launches()["0,1"][0] == 2
    assert rank.journal.launches() != other.journal.launches()
    rank.launch(f)
    assert rank.counted()[2] == "f"


def test_what_launches_before_the_launch_itself_has_a_known_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A finalizer, or a signal's handler, in the lines of ours that come before it."""
    rank = Rank()
    f, g = program("f"), program("g")
    place_of = rank.journal._place_of

    def meanwhile(frame: FrameType) -> Any:
        monkeypatch.undo()
        rank.launch(g)
        return place_of(frame)

    monkeypatch.setattr(rank.journal, "_place_of", meanwhile)
    rank.journal.cell_numbers[__file__] = 5
    rank.journal.enter(11)
    rank.launch(f)
    assert rank.is_told_right()
    assert rank.executed == ["g", "f"]
    assert [entry.cell_seq for entry in rank.journal.tail(2)] == [11, 11]
    assert {entry.cell for entry in rank.journal.tail(2)} == {5}


def test_what_a_programs_own_python_function_launches_comes_after_it_and_is_believed() -> None:
    rank = Rank()
    f, g = program("f", calls_python=True), program("g")
    rank.launch(f, "python", functools.partial(rank.launch, g))
    assert rank.counted() == ["g", "f"]
    assert rank.journal.broken == {}


def test_what_jax_has_prepared_and_not_launched_is_not_counted() -> None:
    """It has raised, or tries again by its Python path."""
    rank = Rank()
    f, g = program("f"), program("g")

    def cache_miss() -> None:
        rank.launch(f, "python")

    def fast_path_gives_up() -> None:
        next(rank.journal.preparations(f, None))
        cache_miss()

    for _ in range(3):
        next(rank.journal.preparations(g, None))
    assert rank.is_told_right()
    fast_path_gives_up()
    rank.launch(g)
    assert rank.is_told_right()
    assert rank.executed == ["f", "g"]


HEARING = {
    "the next launch": lambda rank: rank.launch(program("g")),
    "a poll": lambda rank: rank.journal.tail(1),
    "the cell's end": lambda rank: rank.journal.own(1),
    "what comes next": lambda rank: rank.journal.counts,
}


def failing() -> None:
    raise ValueError("UNKNOWN: Connection closed by peer")


@pytest.mark.parametrize("hear", HEARING.values(), ids=HEARING)
def test_what_breaks_off_on_jaxs_fast_path_is_counted_once_as_broken_off(
    hear: Callable[[Rank], Any],
) -> None:
    """Where the thread that launches runs the program; the error is in the user's code alone."""
    ranks = Rank(), Rank()
    f, h = program("f", inline=True), program("h")
    for rank in ranks:
        rank.launch(f)
        with pytest.raises(ValueError, match="peer"):
            rank.launch(f, "fast", failing)
        hear(rank)
        assert rank.journal.unchecked
        for _ in range(2):
            rank.launch(h)
            hear(rank)
        told = [name for name in rank.counted() if name != "g"]
        assert told == ["f", "f, aborted by an error", "h", "h"]
    assert ranks[0].journal.launches() == ranks[1].journal.launches()


def test_what_breaks_off_on_jaxs_fast_path_in_a_thread_that_ends_is_heard_of() -> None:
    rank = Rank()

    def fail() -> None:
        with contextlib.suppress(ValueError):
            rank.launch(program("f", inline=True), "fast", failing)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    assert rank.counted() == ["f, aborted by an error"]
    assert rank.journal.launches() == rank.journal.launches()
    assert rank.journal.launches()["0,1"][0] == 1


def test_a_launch_that_still_waits_for_others_has_not_broken_off() -> None:
    rank = Rank()
    begun, end = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        end.wait(60)

    thread = threading.Thread(target=rank.launch, args=(program("f", inline=True), "fast", wait))
    thread.start()
    try:
        assert begun.wait(60)
        assert rank.counted() == ["f"]
        assert rank.journal.broken == {}
    finally:
        end.set()
        thread.join()
    assert rank.is_told_right()


@pytest.mark.parametrize(
    "one", [program("f"), program("f", inline=True, collective=False)], ids=["async", "alone"]
)
def test_what_xla_refuses_on_jaxs_fast_path_is_not_counted(one: Program) -> None:
    rank = Rank()
    with pytest.raises(ValueError, match="peer"):
        rank.launch(one, "fast", failing)
    assert rank.counted() == []
    rank.launch(program("g"))
    assert rank.counted() == ["g"]


def test_what_a_thread_guard_refuses_is_not_counted() -> None:
    rank = Rank()
    f = program("f", inline=True)

    def refused() -> None:
        with contextlib.suppress(ValueError):
            rank.launch(f, "fast", failing)

    rank.journal.set_guard(True)
    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()
    rank.journal.set_guard(False)
    assert rank.counted() == []
    refused()
    assert rank.counted() == ["f, aborted by an error"]


def test_an_error_on_top_of_the_launchs_leaves_it_broken_off() -> None:
    """A handler raises where the journal has begun to look at what XLA has raised."""
    rank = Rank()
    f, g = program("f"), program("g")

    def interrupted(error: BaseException) -> bool:
        raise Stop

    def fail() -> None:
        raise RuntimeError("INTERNAL")

    with pytest.raises(Stop):
        rank.journal.launch(f, interrupted, fail)
    rank.launch(g)
    assert rank.counted() == ["f, aborted by an error", "g"]


LOOKS: dict[str, Callable[[Rank], Any]] = {
    "counts": lambda rank: rank.journal.launches(),
    "last launches": lambda rank: [
        (launch.seq, launch.name, launch.cell_seq) for launch in rank.journal.tail(LOOKED_AT)
    ],
    "own launches": lambda rank: rank.journal.own(1),
}
INLINE, PLAIN = program("f", inline=True), program("g")


def ends(rank: Rank, path: str, wait: Callable[[], None]) -> None:
    rank.launch(INLINE, path, wait)
    rank.launch(INLINE, path)


def ends_in_an_error(rank: Rank, path: str, wait: Callable[[], None]) -> None:
    with contextlib.suppress(ValueError):
        rank.launch(INLINE, path, wait, failing)


def ends_and_so_does_its_cell(rank: Rank, path: str, wait: Callable[[], None]) -> None:
    rank.launch(INLINE, path, wait)
    rank.journal.leave()
    rank.journal.enter(2)
    rank.launch(PLAIN, path)


def counts_from_zero(rank: Rank, path: str, wait: Callable[[], None]) -> None:
    wait()
    rank.journal.restart(1)


def breaks_off_and_is_followed(rank: Rank, path: str, wait: Callable[[], None]) -> None:
    ends_in_an_error(rank, path, wait)
    rank.launch(PLAIN, path)


def waits_and_launches_much(rank: Rank, path: str, wait: Callable[[], None]) -> None:
    wait()
    for _ in range(4):
        rank.launch(PLAIN, path)


def all_told(rank: Rank) -> dict[str, Any]:
    return {name: look(rank) for name, look in LOOKS.items()}


def act_at_an_instruction(
    position: float, look: Callable[[Rank], Any], act: Callable[..., None], path: str
) -> tuple[Any, dict[str, Any], bool]:
    """The main thread does the rest of ``act`` at that instruction of a look by another thread.

    What was seen, all that is told later, and whether there is that instruction.
    """
    rank, begun, end, looker = Rank(), threading.Event(), threading.Event(), threading.get_ident()

    def wait() -> None:
        begun.set()
        end.wait(60)

    def launch() -> None:
        rank.journal._main_thread = threading.get_ident()
        rank.journal.enter(1)
        rank.launch(INLINE)
        act(rank, path, wait)

    instructions, ended = itertools.count(), []
    thread = threading.Thread(target=launch)

    def on_instruction() -> None:
        if threading.get_ident() == looker and not ended and next(instructions) == position:
            ended.append(True)
            end.set()
            thread.join()

    thread.start()
    try:
        assert begun.wait(60)
        with traced(on_instruction):
            told = look(rank)
    finally:
        end.set()
        thread.join()
    return told, all_told(rank), bool(ended)


def look_at_an_instruction(
    position: float, look: Callable[[Rank], Any], act: Callable[..., None], path: str
) -> tuple[dict[str, Any], bool]:
    """The same the other way round: another thread looks at an instruction of ``act``."""
    rank, looked, main_thread = Rank(), [], threading.get_ident()
    rank.journal.enter(1)
    rank.launch(INLINE)
    instructions = itertools.count()

    def on_instruction() -> None:
        is_main = threading.get_ident() == main_thread
        if is_main and not looked and next(instructions) == position:
            looked.append(True)
            thread = threading.Thread(target=look, args=(rank,))
            thread.start()
            thread.join()

    with traced(on_instruction):
        act(rank, path, lambda: None)
    return all_told(rank), bool(looked)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize(
    "act", [ends, ends_in_an_error, ends_and_so_does_its_cell, counts_from_zero]
)
def test_what_the_main_thread_does_at_any_instruction_of_a_look_is_told_once_and_right(
    act: Callable[..., None], look: Callable[[Rank], Any], path: str
) -> None:
    """The control channel looks while the main thread launches."""
    before, after, _ = act_at_an_instruction(-1, look, act, path)
    name = next(name for name, each in LOOKS.items() if each is look)
    for position in itertools.count(0, STRIDE):
        told, later, there_is = act_at_an_instruction(position, look, act, path)
        assert later == after, position
        is_between = name == "last launches" and told == after[name][: len(told)]
        assert is_between or told in (before, after[name]), position
        if not there_is:
            break
    assert position > 20


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "act",
    [ends, ends_and_so_does_its_cell, breaks_off_and_is_followed, waits_and_launches_much],
)
def test_whenever_counts_begin_from_zero_the_same_launches_are_counted_again(
    act: Callable[..., None], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the one that all ranks had made when that was decided, also if it is under way."""
    enter_at_once(3, monkeypatch)

    def resume(rank: Rank, made: int = 1) -> None:
        rank.journal.restart(1, {"0,1": made})

    restarts = [resume]
    if act in (ends, ends_and_so_does_its_cell):  # all ranks had made what is under way, too
        restarts.append(functools.partial(resume, made=2))
    for restart in restarts:
        told, there_is = [], True
        while there_is:
            position = STRIDE * len(told)
            _, later, there_is = act_at_an_instruction(position, restart, act, path)
            told.append((later["counts"], later["last launches"]))
        assert told.count(told[0]) == len(told) > 20
    told, there_is = [], True
    while there_is:
        later, there_is = look_at_an_instruction(STRIDE * len(told), resume, act, path)
        told.append((later["counts"], later["last launches"]))
    told.pop()  # it did not count from zero
    assert told.count(told[0]) == len(told) > 20
