"""Turns of cells: on one machine by a lock, on several hosts by the first one's agent."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.agent.turns import Asked, Granted, Turns
from jaxcluster.allocation import turns
from jaxcluster.allocation.turns import LocalTurns
from jaxcluster.errors import NoCluster
from jaxcluster.records import registry, runtimefolder

A, B, C = b"a-------", b"b-------", b"c-------"
W = "jaxcluster-main-1"
Turn = list[tuple[Asked, Granted]]


@pytest.fixture(autouse=True)
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runtimefolder, "MAX_SOCKET_PATH", 1000)  # pytest's folders have long names
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(folder))
    return folder


# --------------------------------------------------------------------------- by a lock


def test_a_cell_of_a_cluster_whose_folder_is_gone_says_so() -> None:
    gone = pytest.raises(NoCluster, match="folder of cluster 'main' is gone")
    with gone as caught, LocalTurns("main").take():
        pass
    assert "%jaxcluster restart" in caught.value.hint


def test_cells_are_numbered_in_the_order_of_their_turns() -> None:
    registry.folder("main").mkdir()
    seen = []
    for _ in range(3):
        with LocalTurns("main").take() as seq:
            seen.append(seq)
    assert seen == [1, 2, 3]


def test_who_waits_long_for_a_turn_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.folder("main").mkdir()
    monkeypatch.setattr(turns, "SAY_S", 0.05)
    said: list[str] = []
    with LocalTurns("main").take():
        waits = threading.Thread(target=_take, args=(said,))
        waits.start()
        waits.join(0.3)
        assert len(said) == 1
        assert "another notebook is sending a cell" in said[0]
    waits.join()
    with LocalTurns("main").take(say=said.append) as seq:
        assert (seq, len(said)) == (3, 1)


def _take(said: list[str]) -> None:
    with LocalTurns("main").take(say=said.append):
        pass


def test_cells_of_new_processes_are_numbered_on() -> None:
    registry.folder("main").mkdir()
    turns = LocalTurns("main", 6)
    assert turns.last_cells() == {}
    with turns.take([0, 1]) as seq:
        assert (seq, seq.after) == (7, {0: 0, 1: 0})
    with LocalTurns("main", 6).take([1]) as seq:
        assert (seq, seq.after) == (8, {1: 7})
    assert turns.last_cells() == {0: 7, 1: 8}


def test_a_turn_excludes_every_other() -> None:
    registry.folder("main").mkdir()
    inside, overlaps, seen = [], [], []

    def take_turns() -> None:
        for _ in range(50):
            with LocalTurns("main").take() as seq:
                inside.append(seq)
                overlaps.append(len(inside))
                seen.append(seq)
                inside.remove(seq)

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(overlaps) == {1}
    assert seen == list(range(1, 201))


def test_a_turn_excludes_the_other_threads_of_a_notebook() -> None:
    registry.folder("main").mkdir()
    turns, seen = LocalTurns("main"), []

    def take() -> None:
        with turns.take() as seq:
            seen.append(seq)

    other = threading.Thread(target=take)
    with turns.take() as first:
        other.start()
        other.join(0.3)
        assert seen == []
    other.join(30)
    assert (first, seen) == (1, [2])


def test_a_turn_that_is_over_is_free_for_others(root: Path) -> None:
    registry.folder("main").mkdir()
    turns = LocalTurns("main")
    with turns.take():
        pass
    with pytest.raises(RuntimeError), turns.take():
        raise RuntimeError("of a cell's")
    with open(root / "main" / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_turn_looks_up_one_path_and_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell takes one."""
    registry.folder("main").mkdir()
    turns, used = LocalTurns("main"), []
    with turns.take([0]):
        pass
    for name in ("open", "stat", "lstat", "fstat", "readlink", "listdir"):
        monkeypatch.setattr(os, name, counted(getattr(os, name), used))
    with turns.take([0]) as seq:
        pass
    assert used == ["stat"]
    assert (seq, seq.after) == (2, {0: 1})


def counted(call: Any, used: list[str]) -> Any:
    def counting(*args: Any, **kwargs: Any) -> Any:
        used.append(call.__name__)
        return call(*args, **kwargs)

    return counting


def test_a_turn_of_a_folder_that_is_gone_or_another_one_is_not_given_by_the_old_one() -> None:
    folder = registry.folder("main")
    folder.mkdir()
    turns = LocalTurns("main")
    for _ in range(3):
        with turns.take():
            pass
    folder.rename(folder.with_name("moved"))
    with pytest.raises(NoCluster), turns.take():
        pass
    folder.mkdir()
    with turns.take() as seq, LocalTurns("moved").take() as old:
        assert (seq, old) == (1, 4)
    folder.rename(folder.with_name("moved-too"))
    folder.mkdir()
    for _ in range(4):
        with LocalTurns("main").take():
            pass
    with turns.take() as seq:
        assert seq == 5


def test_a_notebook_that_lets_go_of_its_turns_keeps_no_file() -> None:
    registry.folder("main").mkdir()
    with LocalTurns("main").take():
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with LocalTurns("main").take():
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_each_rank_is_told_which_cell_comes_before() -> None:
    registry.folder("main").mkdir()
    seen = []
    for ranks in ([0, 1], [1], [0, 1], []):
        with LocalTurns("main").take(ranks) as seq:
            seen.append((seq, seq.after))
    assert seen == [
        (1, {0: 0, 1: 0}),
        (2, {1: 1}),
        (3, {0: 1, 1: 2}),
        (4, {}),
    ]


def test_without_its_folder_nobody_hands_out_a_cell() -> None:
    with pytest.raises(NoCluster), LocalTurns("main").quiet():
        pass
    assert LocalTurns("main").last_cells() == {}


# --------------------------------------------------------------------------- by an agent


def told(granted: Turn) -> list[tuple[bytes, int, Granted]]:
    return [(asked.client, asked.id, body) for asked, body in granted]


def test_a_free_turn_is_granted_at_once_with_what_came_before() -> None:
    turns = Turns()
    found = []
    for ranks in ([0, 1], [1], [0, 1], []):
        (asked, body), *others = turns.ask(W, A, 1, "a", ranks, 0.0)
        assert (asked.client, asked.id, others) == (A, 1, [])
        assert turns.done(A, 1, 0.0) == []
        found.append((body.seq, {rank: body.last.get(rank, 0) for rank in ranks}))
    assert found == [(1, {0: 0, 1: 0}), (2, {1: 1}), (3, {0: 1, 1: 2}), (4, {})]


def test_who_asks_while_another_has_it_waits_in_line() -> None:
    turns = Turns()
    turns.ask(W, A, 1, "a", [0], 0.0)
    assert turns.ask(W, B, 1, "b", [0], 1.0) == []
    assert turns.ask(W, C, 7, "c", [0], 2.0) == []
    assert told(turns.done(A, 1, 3.0)) == [(B, 1, Granted({0: 1}, 2))]
    assert told(turns.done(B, 1, 3.0)) == [(C, 7, Granted({0: 2}, 3))]
    assert turns.done(C, 7, 3.0) == []


def test_one_client_may_ask_twice() -> None:
    turns = Turns()
    turns.ask(W, A, 1, "a", [0], 0.0)
    assert turns.ask(W, A, 2, "a", [0], 0.0) == []
    assert told(turns.done(A, 1, 0.0)) == [(A, 2, Granted({0: 1}, 2))]


def test_a_quiet_turn_hands_out_no_number() -> None:
    turns = Turns()
    turns.ask(W, A, 1, "a", [0, 1], 0.0)
    turns.done(A, 1, 0.0)
    assert told(turns.ask(W, B, 1, "b", None, 0.0)) == [(B, 1, Granted({0: 1, 1: 1}))]
    assert turns.ask(W, A, 2, "a", [1], 0.0) == []
    assert told(turns.done(B, 1, 0.0)) == [(A, 2, Granted({0: 1, 1: 1}, 2))]


def test_who_is_interrupted_leaves_the_line() -> None:
    turns = Turns()
    turns.ask(W, A, 1, "a", [0], 0.0)
    turns.ask(W, B, 1, "b", [0], 0.0)
    turns.ask(W, C, 1, "c", [0], 0.0)
    assert turns.done(B, 1, 0.0) == []
    assert len(turns.line(W).waiting) == 1
    assert [asked.client for asked, _ in turns.done(A, 1, 0.0)] == [C]


def test_the_turn_of_a_client_that_is_gone_goes_to_the_next() -> None:
    turns = Turns()
    turns.ask(W, A, 1, "a", [0], 0.0)
    turns.ask(W, A, 2, "a", [0], 0.0)
    turns.ask(W, B, 1, "b", [0], 0.0)
    assert [asked.client for asked, _ in turns.done(A, None, 1.0)] == [B]
    assert (
        turns.done(A, None, 1.0) == turns.done(A, 1, 1.0) == []
    )  # it comes back, and says so late
    line = turns.line(W)
    assert line.holder == Asked(B, 1, "b", (0,), 1.0)
    assert (line.last, list(line.waiting)) == ({0: 2}, [])


def test_new_ranks_have_a_line_of_their_own() -> None:
    turns = Turns()
    turns.ask(W, A, 1, "a", [0], 0.0)
    assert told(turns.ask("new", A, 2, "a", [0], 0.0)) == [(A, 2, Granted({}, 1))]
    turns.done(A, 2, 0.0)
    assert turns.line(W).holder is not None  # as long as somebody wants something of it
    turns.done(A, 1, 0.0)
    turns.ask("newer", A, 3, "a", [0], 0.0)
    assert turns.line(W).last == {}
    assert turns.line("never").holder is None


@pytest.mark.parametrize("seed", range(20))
def test_whoever_comes_and_goes_one_has_it_and_nobody_waits_for_nobody(seed: int) -> None:
    chance = random.Random(seed)
    turns = Turns()
    holder: tuple[bytes, int] | None = None
    wanted: list[tuple[bytes, int]] = []
    seqs: list[int] = []

    def take(granted: Turn) -> None:
        nonlocal holder
        assert len(granted) <= 1
        for asked, body in granted:
            assert holder is None and wanted[0] == (asked.client, asked.id)  # in line
            holder = wanted.pop(0)
            seqs.append(body.seq)

    for number in range(300):
        client = chance.choice([A, B, C])
        match chance.choice(["ask", "ask", "done", "leave", "gone"]):
            case "ask":
                wanted.append((client, number))
                take(turns.ask(W, client, number, "", [0], 0.0))
            case "done" if holder is not None:
                was, holder = holder, None
                take(turns.done(*was, 0.0))
            case "leave" if wanted:
                take(turns.done(*wanted.pop(chance.randrange(len(wanted))), 0.0))
            case "gone":
                holder = None if holder is not None and holder[0] == client else holder
                wanted = [one for one in wanted if one[0] != client]
                take(turns.done(client, None, 0.0))
        assert holder is not None or not wanted
    assert seqs == list(range(1, len(seqs) + 1))
