"""A rank's side: what is launched was agreed on, and what a signal's handler raises is raised."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from helpers import until
from refereepeers import Peer, RankPeer, serving

from jaxcluster.agreement import client
from jaxcluster.agreement.client import FOLDS, Agreement, Divergence, Stopped
from jaxcluster.agreement.messages import BUFFER, CellSpec, End, Place, Program
from jaxcluster.agreement.server import Server
from jaxcluster.model.words import explain
from jaxcluster.rank.stacks import frames_of

SUM = Program((0, 1), 7, "jit(sum)", "float32[8]")
FOLDED = Program((0, 1), 9, "jit(add)", collective=False)


class Rank:
    """Rank 0, which is this process, beside a rank that is played."""

    def __init__(self, path: Path) -> None:
        self.server = Server(2, str(path))
        self.given = 0
        place = Place(4, 3, "s = jnp.sum(x)")
        self.agreement = Agreement(0, lambda frame: place, lambda processes: self.given, explain)
        self.other = RankPeer(path, 1)

    def connect(self, path: Path) -> None:
        self.base = self.agreement.connect(str(path))
        self.base.settimeout(20)

    def begin(self, seq: int = 5) -> None:
        self.agreement.tell("arrive", CellSpec(seq, (0, 1), is_skippable=False))
        self.other.begin(seq, 0, 1)
        self.other.base.is_told()
        self.base.recv(BUFFER)
        self.agreement.begin(seq)

    def later(self, do: Callable[[], object]) -> None:
        """On another thread, once the main thread waits in a launch."""

        def run() -> None:
            until(lambda: self.is_waiting, "it waits")
            do()

        threading.Thread(target=run, daemon=True).start()

    @property
    def is_waiting(self) -> bool:
        return any(wait.rank == 0 for wait in self.server.referee.look(0.0).waits)

    def launch(self, program: Program = SUM, call: Callable[[], Any] = lambda: "made") -> Any:
        return self.agreement.launch(program, call)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)  # what is changed here
    made = Rank(tmp_path / "referee.sock")
    with ExitStack() as stack:
        stack.enter_context(serving(made.server))
        made.connect(tmp_path / "referee.sock")
        made.begin()
        yield made
        made.other.close()
        made.base.close()
        assert made.agreement._main is not None
        made.agreement._main.socket.close()


def test_a_launch_is_made_once_the_others_have_announced_it(rank: Rank) -> None:
    made: list[str] = []
    rank.later(lambda: (made.append("other"), rank.other.main.launch(0, 1)))
    assert rank.launch(call=lambda: made.append("launched") or "result") == "result"
    assert made == ["other", "launched"]
    assert rank.agreement.taken() == 1
    ((program, place, *_),) = rank.agreement.made
    assert (program, place.line) == (SUM, 3)


def test_where_jax_asks_for_a_layout_the_answer_is_waited_for(rank: Rank) -> None:
    layouts, confirmed = rank.agreement.preparations(SUM, "layout"), rank.agreement.confirmations()
    for count in (1, 2):
        rank.other.main.launch(0, 1)
        assert next(layouts) == "layout"
        assert threading.get_ident() in rank.agreement.begun
        next(confirmed)
        assert rank.agreement.begun == {}
        assert rank.agreement.taken() == count


def test_what_is_refused_is_not_launched_and_says_why(rank: Rank) -> None:
    rank.other.main.tell("end", End("ok"))
    with pytest.raises(Divergence, match="Rank 1 ended the cell without") as c:
        rank.launch(call=lambda: pytest.fail("it was launched"))
    assert c.value.refusal is not None and c.value.refusal.causes == (1,)
    assert (rank.agreement.begun, rank.agreement.taken()) == ({}, 0)
    with pytest.raises(Divergence):  # nothing more is launched in this cell
        rank.launch()


def test_a_stop_is_raised_before_the_launch(rank: Rank) -> None:
    rank.later(lambda: rank.agreement.stop(None))
    with pytest.raises(Stopped):
        rank.launch()
    assert issubclass(Stopped, KeyboardInterrupt)


def test_where_the_referee_is_gone_nothing_is_launched(rank: Rank) -> None:
    main = [peer for peer, _ in rank.server._ready.values()][-1]
    rank.later(lambda: main.shutdown(2))
    with pytest.raises(ConnectionError, match="referee process has ended"):
        rank.launch()


# --------------------------------------------------------------------------- without collectives


def test_launches_without_collectives_wait_for_nobody_but_each_so_many(rank: Rank) -> None:
    for _ in range(FOLDS - 1):
        assert rank.launch(FOLDED) == "made"
    assert rank.agreement.taken() == 0  # they were not agreed on
    rank.later(lambda: rank.agreement.stop(None))
    with pytest.raises(Stopped):
        rank.launch(FOLDED)


def test_a_rendezvous_does_not_tell_what_they_were_given(rank: Rank) -> None:
    """Others may come to it from a thread, and a thread tells no values."""
    rank.launch(FOLDED)
    rank.given = 7
    rank.other.main.launch(0, 1, fingerprint=8, meets_all=True)
    assert rank.launch(Program((0, 1), 8, "wait_at_barrier", meets_all=True)) == "made"


def test_their_hash_is_told_at_the_cells_end(rank: Rank) -> None:
    rank.launch(FOLDED)
    rank.agreement.end("ok")
    rank.other.main.tell("end", End("ok", "", {(0, 1): 1}))
    word, seq, refusal, _ = rank.other.base.is_told()
    assert (word, seq, refusal.kind) == ("over", 5, "uneven")
    rank.begin(6)
    rank.launch(FOLDED)
    rank.given = 7  # to the launch, by the host
    rank.agreement.end("ok")
    rank.other.main.tell("end", End("ok", "", {(0, 1): FOLDED.fingerprint + 1}))
    assert rank.other.base.is_told()[2].kind == "unequal"
    rank.given = 0
    rank.begin(7)
    rank.agreement.end("ok")  # none of the cell before
    rank.other.main.tell("end", End("ok"))
    assert rank.other.base.is_told()[2] is None


# --------------------------------------------------------------------------- failed launches


def test_what_xla_refuses_on_one_rank_alone_is_told(rank: Rank) -> None:
    rank.other.main.launch(0, 1)
    with pytest.raises(ZeroDivisionError):
        rank.launch(call=lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert rank.agreement.taken() == 0
    rank.agreement.end("error")
    assert rank.agreement.taken() == 1  # it has its place among the agreed ones
    rank.other.base.is_told()  # closed, since it failed
    rank.other.main.tell("end", End("error"))
    assert rank.other.base.is_told()[2].kind == "torn"


def test_an_error_while_a_launch_is_announced_shifts_no_later_one(rank: Rank) -> None:
    """A trace function may raise at any instruction before the message is sent."""
    other = Program((0, 1), 8, "jit(max)", "float32[8]")
    raises = [True]

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not Agreement._prepare.__code__:
            return None
        if event == "return" and raises:
            raise ValueError(raises.pop())
        return trace

    rank.other.main.launch(0, 1)
    assert rank.launch() == "made"
    rank.other.main.hears()
    old = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(ValueError, match="True"):
            rank.launch(other)
    finally:
        sys.settrace(old)
    rank.other.main.launch(0, 1)
    assert rank.launch() == "made"
    for _ in range(2):
        rank.other.main.launch(0, 1, fingerprint=8)
        assert rank.launch(other) == "made"
    assert rank.agreement.taken() == 4


def test_a_signal_whose_handler_is_gone_does_not_come_again(rank: Rank) -> None:
    """It would end the process."""
    old = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        assert rank.agreement._main is not None
        client._signal_again(signal.SIGUSR2, rank.agreement._main, None)
    finally:
        signal.signal(signal.SIGUSR2, old)


def test_a_launch_inside_of_a_launch_is_an_error(rank: Rank) -> None:
    rank.other.main.launch(0, 1)
    with pytest.raises(RuntimeError, match="can't be launched while jit"):
        rank.launch(call=lambda: rank.launch(FOLDED))


# --------------------------------------------------------------------------- signals


class Late(Exception):
    pass


def raise_late(number: int, frame: FrameType | None) -> None:
    raise Late


@pytest.fixture
def guarded(rank: Rank) -> Iterator[Rank]:
    before = signal.signal(signal.SIGUSR1, rank.agreement.guarded(raise_late))
    yield rank
    signal.signal(signal.SIGUSR1, before)


def send_signal() -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_what_a_handler_raises_in_a_wait_leaves_it(guarded: Rank) -> None:
    guarded.later(send_signal)
    with pytest.raises(Late):
        guarded.launch(call=lambda: pytest.fail("it was launched"))
    guarded.other.main.launch(0, 1)
    assert guarded.other.main.is_refused().kind == "left"
    assert not guarded.is_waiting


def test_an_interrupt_right_after_a_stop_is_part_of_it(guarded: Rank) -> None:
    """However late the referee reads what both have made the rank say."""
    lane, referee = guarded.agreement._main, guarded.server.referee
    launch = referee.launch

    def is_handled() -> bool:
        send_signal()  # again where it came between a send and its receive
        return lane is not None and lane.deferred is not None

    def hear_launch(*told: Any) -> None:
        launch(*told)  # it has not looked again for what comes after
        guarded.agreement.stop(5)
        until(is_handled, "the signal is handled")
        time.sleep(0.05)  # for what its handler says

    referee.launch = hear_launch  # type: ignore[method-assign]
    with pytest.raises(Late):
        guarded.launch()
    assert guarded.other.base.is_told()[2].kind == "stopped"


def test_in_a_launch_nothing_is_raised_but_after_it(guarded: Rank) -> None:
    made: list[str] = []

    def call() -> None:
        send_signal()
        time.sleep(0.05)
        made.append("whole")

    guarded.other.main.launch(0, 1)
    with pytest.raises(Late):
        guarded.launch(call=call)
        made.append("returned")
        time.sleep(20)
    assert made == ["whole", "returned"]
    assert guarded.agreement.taken() == 1


def test_elsewhere_a_handler_raises_where_it_is(guarded: Rank) -> None:
    with pytest.raises(Late):
        send_signal()
        time.sleep(20)


def test_a_handler_that_raises_nothing_ends_no_wait(rank: Rank) -> None:
    called: list[int] = []
    handler = rank.agreement.guarded(lambda number, frame: called.append(number))
    before = signal.signal(signal.SIGUSR1, handler)
    try:

        def do() -> None:
            send_signal()
            until(lambda: called, "it is called")
            rank.other.main.launch(0, 1)

        rank.later(do)
        assert rank.launch() == "made"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_launch_may_be_limited_in_time(rank: Rank) -> None:
    late = TimeoutError("DEADLINE_EXCEEDED")
    with pytest.raises(TimeoutError) as caught, rank.agreement.limited(0.05, late):
        rank.launch()
    assert caught.value is late
    assert rank.agreement._main is not None and rank.agreement._main.deferred is None


def test_another_thread_can_tell_what_the_main_thread_launches(rank: Rank) -> None:
    told: list[Any] = []
    main = threading.get_ident()

    def look() -> None:
        told.append(rank.agreement.launching(frames_of(main)))
        rank.other.main.launch(0, 1)

    rank.later(look)
    rank.launch()
    assert told[0][0] == "jit(sum)" and told[0][1] > 0
    assert rank.agreement.launching(frames_of(main)) is None


def test_what_xla_has_refused_is_no_launch_that_goes_on(rank: Rank) -> None:
    rank.other.main.launch(0, 1)
    with pytest.raises(ZeroDivisionError):
        rank.launch(call=lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert rank.agreement.begun
    assert rank.agreement.launching(frames_of(threading.get_ident())) is None
    assert not rank.agreement.is_launching(sys._getframe())


# --------------------------------------------------------------------------- threads


def test_threads_are_known_by_what_they_are_for(rank: Rank) -> None:
    rank.agreement.watch_threads()
    threads = [threading.Thread(target=time.sleep, args=(0,), name=f"loader-{n}") for n in (3, 4)]
    inner: list[threading.Thread] = []

    def start_another() -> None:
        inner.append(threading.Thread(target=send_signal, name="saver"))
        inner[0].run = lambda: None  # type: ignore[method-assign]
        inner[0].start()

    threads.append(threading.Thread(target=start_another, name="starter"))
    for thread in threads:
        thread.start()
    for thread in (*threads, *inner):
        thread.join(20)
    tasks = [thread.jaxcluster_task for thread in threads]  # type: ignore[attr-defined]
    assert tasks[0] == ("loader- sleep 1", 5)
    assert tasks[1] == ("loader- sleep 2", 5)
    assert inner[0].jaxcluster_task == ("saver send_signal 1", 5)  # type: ignore[attr-defined]
    rank.agreement.begin(6)
    again = threading.Thread(target=time.sleep, args=(0,), name="loader-9")
    again.start()
    again.join(20)
    assert again.jaxcluster_task == ("loader- sleep 1", 6)  # type: ignore[attr-defined]


def test_two_threads_launch_in_the_referees_order(rank: Rank, tmp_path: Path) -> None:
    """Whichever of the two hears of its "go" first."""
    rank.agreement.watch_threads()
    order: list[str] = []
    other = Program((0, 1), 8, "jit(load)")

    def load() -> None:
        rank.launch(other, lambda: order.append("loader"))

    thread = threading.Thread(target=load, name="loader")
    thread.start()
    until(lambda: rank.is_waiting, "the thread waits")
    (wait,) = rank.server.referee.look(0.0).waits
    name, seq = wait.lane, wait.seq
    assert name.startswith("loader test_") and name.endswith("load 1") and seq == 5
    lane = Peer(tmp_path / "referee.sock", 1, name, seq)
    until(lambda: rank.server.referee._others[1], "the thread is known")
    rank.later(lambda: (lane.launch(0, 1, fingerprint=8), rank.other.main.launch(0, 1)))
    rank.launch(call=lambda: order.append("main"))
    thread.join(20)
    agreed = {"loader": lane.hears(), "main": rank.other.main.hears()}
    lane.close()
    assert order == sorted(agreed, key=lambda name: int(agreed[name][1:]))
    assert rank.agreement.taken() == 2


def test_a_thread_whose_launch_failed_keeps_no_other_waiting(rank: Rank, tmp_path: Path) -> None:
    """It has ended, so it can't say that its launch has had its turn."""
    waits = Program((0, 1), 8, "wait_at_barrier", meets_all=True)

    def meet() -> None:
        with pytest.raises(ZeroDivisionError):
            rank.launch(waits, lambda: 1 // 0)  # type: ignore[arg-type, return-value]

    rank.other.main.launch(0, 1, fingerprint=8, meets_all=True)
    thread = threading.Thread(target=meet, name="saver")
    thread.start()
    thread.join(20)
    lane = Peer(tmp_path / "referee.sock", 0, "another", 5)
    until(lambda: rank.server.referee._others[0], "the thread is known")
    rank.other.main.launch(0, 1)
    assert rank.launch() == "made"
    assert rank.agreement.taken() == 2
    lane.close()


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_child_says_nothing_of_launches_of_its_parents_threads(
    rank: Rank, tmp_path: Path
) -> None:
    """Its copy of another thread's connection ends with the fork."""
    made: list[int] = []
    load = Program((0, 1), 8, "jit(load)")
    rank.agreement.watch_threads()

    def run() -> None:
        for _ in range(2):
            rank.launch(load, lambda: made.append(len(made)))

    thread = threading.Thread(target=run, name="loader")
    thread.start()
    until(lambda: rank.is_waiting, "the thread waits")
    (wait,) = rank.server.referee.look(0.0).waits
    other = Peer(tmp_path / "referee.sock", 1, wait.lane, wait.seq)
    other.launch(0, 1, fingerprint=8)
    until(lambda: made == [0] and rank.is_waiting, "it waits again")
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)
    other.launch(0, 1, fingerprint=8)
    thread.join(20)
    assert made == [0, 1]
    other.close()


def test_a_process_that_was_forked_launches_nothing(rank: Rank) -> None:
    rank.agreement._is_child = True
    with pytest.raises(RuntimeError, match="forked from rank 0, so it can't launch jit"):
        rank.launch()
