"""What is decided about a loop: where it is, what is kept of it, and what is shown."""

from __future__ import annotations

import itertools
import linecache
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jax.numpy as jnp
import numpy as np
import pytest

import jaxcluster
from jaxcluster import wire
from jaxcluster.engine.state.saved import CannotRestore
from jaxcluster.engine.steps import functions, names, plot, position
from jaxcluster.engine.steps.agreement import Agreement
from jaxcluster.engine.steps.checkpoints import (
    Entry,
    LoopCheckpoints,
    common,
    of_others,
    texts_of,
    unfinished,
)
from jaxcluster.engine.steps.curve import check
from jaxcluster.engine.steps.loop import Steps, parse_keep
from jaxcluster.model.loop_progress import LoopProgress

# ------------------------------------------------------------------------------- outside of a rank


def test_outside_of_a_rank_it_is_the_iterable() -> None:
    items = [1, 2]
    assert jaxcluster.steps(items, keep="60s") is items
    jaxcluster.log(loss=1.0)


def test_keep_is_a_time_or_a_number() -> None:
    assert parse_keep(None) == (0, 0.0)
    assert parse_keep(100) == (100, 0.0)
    assert [parse_keep(word)[1] for word in ("60s", "1.5min", "2m", "1h")] == [60, 90, 120, 3600]
    for wrong in (0, -1, True, 1.5, "60", "0s", "s"):
        with pytest.raises(ValueError, match="keep takes a time or a number of iterations"):
            jaxcluster.steps([], keep=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="state takes a dict or a list, not int"):
        jaxcluster.steps([], keep=1, state=3)


# ------------------------------------------------------------------------------------ where it is


class Loader:
    """One with a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 5:
            self.at += 1
            yield self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def test_it_goes_on_where_it_was() -> None:
    for items in (range(5), [0, 1, 2, 3, 4], (n for n in range(5)), map(int, "01234")):
        assert list(position.start(items, 3, None)) == [3, 4]
    assert list(position.start(enumerate("abc"), 2, None)) == [(2, "c")]
    assert list(position.start(range(3), 7, None)) == []
    assert list(position.start(iter([1]), 0, None)) == [1]
    loader = Loader()
    assert list(itertools.islice(loader, 2)) == [1, 2]
    assert list(position.start(Loader(), 2, position.state_of(loader))) == [3, 4, 5]
    assert position.state_of([1]) is None


def test_a_generator_that_has_begun_is_refused() -> None:
    """Its first items are gone: to pass over as many more would be wrong."""
    items = (n for n in range(5))
    next(items)
    for one in (items, enumerate(items)):
        with pytest.raises(position.Began, match="is a generator that has begun"):
            position.start(one, 2, None)


def test_how_many_there_are() -> None:
    assert position.total(range(7)) == 7
    assert position.total(enumerate([1, 2])) == 2
    assert position.total(n for n in range(2)) is None


# ------------------------------------------------------------------------------- what is kept of it

CELL = """
import numpy as np
count, log, config, table, data, big = 0, [], {"lr": 1}, np.zeros(3), jnp.ones(3), BIG
def helper():
    global made
    made = config["lr"]
    other.append(1)
other, unrelated = [], [2]
step = jax.jit(helper)
for i in STEPS(
    range(3)
):
    count += 1
    table[i] = data[i] + big[0]
    helper(), step
    log.append(i)
after = 1
"""


def run(cell: str, name: str, **more: Any) -> tuple[names.Loop, names.Values]:
    """What is found of the loop of a cell, in its first iteration."""
    import jax

    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    found: list[Any] = []

    def begin(iterable: Any) -> Any:
        return outer(sys._getframe(1), iterable)

    def outer(frame: Any, iterable: Any) -> Iterator[Any]:
        loop = names.find(frame, cell)
        for item in iterable:
            yield item
            found.append((loop, names.values_of(frame, loop, Steps)))

    scope = {"__name__": "__main__", "STEPS": begin, "jnp": jnp, "jax": jax, **more}
    exec(compile(cell, name, "exec"), scope)
    return found[-1]  # type: ignore[no-any-return]


def test_a_loops_variables_are_those_that_it_names() -> None:
    """And those of the functions behind it; functions and modules are made again by its cell."""
    loop, found = run(CELL, "<cell 1>", BIG=np.zeros(names.READ_NBYTES // 8 + 1))
    assert found.values.keys() == {"count", "table", "i", "log", "config", "made", "other", "data"}
    assert loop.bound == {"count", "table", "i"}
    assert found.fixed == {"data"}
    assert found.doubtful == {"log", "config", "other"}  # "made" is bound by a function
    assert found.data == ("big",)


def test_names_of_a_loop_that_have_no_value_are_known() -> None:
    """``best`` is bound later, ``x`` and ``y`` are nobody's outside of their scopes."""
    cell = """
gone, best_of = 1, None
def keep():
    global best
    y = [best]
for i in STEPS(range(3)):
    if i == 0:
        del gone
    z = [x for x in ()]
    if i == 5:
        best_of = late = i
        keep()
"""
    _, found = run(cell, "<cell 3>")
    assert found.unbound == ("gone", "late")
    _, found = run(cell.replace("y = [best]", "best = 1"), "<cell 4>")
    assert found.unbound == ("best", "gone", "late")


def test_under_a_cell_magic_the_cell_has_the_loop() -> None:
    """Its code runs under a name that leads to no text."""
    cell = CELL.replace("STEPS", "steps")
    scope: dict[str, Any] = {}
    # Not as <string>: of python -c, which starts pytest-xdist's processes, 3.13 keeps the text.
    exec(compile("import sys\nframe = sys._getframe()", "<no text>", "exec"), scope)
    loop = names.find(scope["frame"], f"%%time\n{cell}")
    assert loop.bound == {"count", "table", "i"}
    assert "helper" in loop.named
    assert "after" not in loop.named
    twice = names.find(scope["frame"], f"%%time\n{cell}{cell}")
    assert "after" in twice.bound


def test_another_text_is_another_loop() -> None:
    def key(cell: str) -> str:
        return run(cell, "<cell 2>", BIG=np.zeros(1))[0].key

    assert key(CELL) == key(CELL)
    assert key(CELL) != key(CELL.replace("count += 1", "count += 2"))
    assert key(CELL) != key("\n" + CELL)


def test_what_was_one_object_is_one_again() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec("import sys\na = b = [1]\nn = None\nm = None\nframe = sys._getframe()", scope)
    names.bind(scope["frame"], {"a": [1, 2], "n": 3})
    assert scope["a"] == [1, 2]
    assert scope["a"] is scope["b"]
    assert (scope["n"], scope["m"]) == (3, None)


CODE = """
import functools, jax
def make(weights, box):
    n, hidden = 0, [0]
    @functools.wraps(print)
    def count(a=box, *, b=1):
        nonlocal n
        n += 1
        hidden[0] += 1
        return n
    def get():
        return n, hidden
    def use(x):
        return weights, x
    return count, get, use
class C:
    n = 0
    def step(self, log=[]):
        log.append(1)
    @classmethod
    def count(cls):
        cls.n += 1
class D(C):
    pass
def plain(x=(1, {"a": 2})):
    return x
box, weights = [], {"w": (jax.numpy.ones(2),)}
count, get, use = make(weights, box)
jitted, step, names = jax.jit(get), D().step, dict(plain.__dict__)
"""
CHANGES = {
    "count()": {"count", "get", "jitted"},
    "box.append(1)": {"count"},
    "count.seen = 1": {"count"},
    "count.__kwdefaults__['b'] = 2": {"count"},
    "get()[1].append(1)": {"count", "get", "jitted"},
    "C.count()": {"C", "D"},
    "D.count()": {"D"},
    "D().step()": {"C", "D"},
    "jitted.seen = 1": {"jitted"},
    "weights['w'] = (jax.numpy.ones(2),)": {"use"},
    "plain.__code__ = (lambda x: x).__code__": {"plain"},
    "plain()[1]['a'] = 3": {"plain"},
    "get(), use(1), C(), plain(), box + [1]": set(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_functions_keep_is_looked_at(change: str) -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE, scope)
    code = {n: scope[n] for n in ("count", "get", "use", "C", "D", "plain", "jitted")}

    def look() -> functions.Look:
        return functions.look(code, lambda values: texts_of(values, scope, 0))

    before = look()
    assert functions.changed(before, look()) == set()
    exec(change, scope)
    assert functions.changed(before, look()) == CHANGES[change]


def test_what_is_not_code_is_kept_as_a_value() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE, scope)
    assert not any(map(functions.is_code, [scope["step"], [].append, types.ModuleType("M")]))
    assert all(map(functions.is_code, [len, sys, C_METHOD, scope["jitted"], scope["C"]]))


C_METHOD = int.from_bytes


def test_functions_that_share_a_variable_share_it_again() -> None:
    """Also one that the loop does not name, and what a name has of it."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(f"import sys\nframe = sys._getframe()\n{CODE}\nhidden = get()[1]", scope)
    kept: dict[str, Any] = {"__name__": "__main__"}
    exec(f"{CODE}\ncount(), count(), box.append(5)", kept)
    scope["get"].seen = 7
    names.bind(scope["frame"], {"count": kept["count"]})
    assert scope["count"]() == 3
    assert scope["get"]() == (3, [3])
    assert scope["get"].seen == 7
    assert scope["hidden"] is scope["get"]()[1]
    assert scope["box"] is scope["count"].__defaults__[0]


def test_values_without_arrays_are_told_apart() -> None:
    space: dict[str, Any] = {}
    before = texts_of({"a": {"lr": 1}, "b": [1], "c": [np.ones(9)]}, space, 0)
    after = texts_of({"a": {"lr": 1}, "b": [2], "c": [np.ones(9)]}, space, 0)
    assert before.keys() == {"a", "b"}
    assert (before["a"] == after["a"], before["b"] == after["b"]) == (True, False)


# ------------------------------------------------------------------------------- versions on disk


def entry(number: int, **changes: Any) -> Entry:
    end = wire.cell_ends.CellEnd("ok", own={"0,1": [number, 7]})
    values: dict[str, Any] = {
        "loop": "3-0", "number": number, "step": number, "key": "k", "cell": 3,
        "at": float(number), "ranks": [0, 1], "end": end,
    }  # fmt: skip
    return Entry(**{**values, **changes})


def make(checkpoints: LoopCheckpoints, number: int, values: dict[str, Any], **changes: Any) -> None:
    checkpoints.fill(checkpoints.take(number, values, {}), entry(number, **changes))


def test_a_version_comes_back(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    checkpoints = LoopCheckpoints(tmp_path / "steps" / "rank-0", 0)
    checkpoints.begin("3-0", 1)
    np.random.seed(1)
    shared = [1, jnp.arange(4.0)]
    make(checkpoints, 1, {"a": shared, "b": shared, "c": 1}, fixed=["c"])
    drawn = np.random.uniform()
    again = LoopCheckpoints(tmp_path / "steps" / "rank-0", 0)
    assert [replace(one, files=[]) for one in again.entries] == [entry(1, fixed=["c"])]
    version = again.folder / "3-0" / "v1"
    assert {*again.entries[0].files} == {path.name for path in version.iterdir()} - {"rank-0.state"}
    values = again.load(again.entries[0], {}, lambda name: True)
    assert values.keys() == {"a", "b"}
    assert values["a"] is values["b"]
    assert np.asarray(values["a"][1]).tolist() == [0, 1, 2, 3]
    again.put_back()
    assert np.random.uniform() == drawn
    assert again.load(again.entries[0], {}, lambda name: False)["c"] == 1


def test_older_versions_go_once_all_ranks_have_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    checkpoints = LoopCheckpoints(tmp_path / "steps" / "rank-0", 0)
    checkpoints.begin("3-0", 1)
    array = jnp.arange(4.0)
    make(checkpoints, 1, {"a": array})
    make(checkpoints, 2, {"a": array})
    assert [one.number for one in checkpoints.entries] == [1, 2]
    checkpoints.settle(("3-0", 2))
    checkpoints.begin("4-0", 1)
    make(checkpoints, 1, {"a": array}, loop="4-0")
    assert [one.name for one in checkpoints.entries] == [("3-0", 2), ("4-0", 1)]
    checkpoints.drop(("4-0", 1))
    assert checkpoints.load(checkpoints.entries[0], {}, lambda name: False).keys() == {"a"}
    make(checkpoints, 2, {"a": array}, loop="4-0")
    checkpoints.settle(("4-0", 2))
    assert not (checkpoints.folder / "3-0").exists()
    checkpoints.forget(1)
    assert {path.name for path in checkpoints.folder.iterdir()} == {"kept.json"}
    gone = LoopCheckpoints(tmp_path / "steps" / "rank-1", 1)
    gone.begin("4-0", 1)
    checkpoints.forget(1)
    assert not gone.folder.exists()


def test_only_what_all_ranks_have_alike_counts() -> None:
    both = {0: [entry(1), entry(2)], 1: [entry(1), entry(2), entry(3)]}
    assert [one.number for one in common(both, "k")] == [2, 1]
    assert common(both, "other") == []
    other = wire.cell_ends.CellEnd("ok", own={"0,1": [2, 8]})  # it has launched something else
    diverged = {0: [entry(1), entry(2)], 1: [entry(1), entry(2, end=other)]}
    assert [one.number for one in common(diverged, "k")] == [1]
    end = entry(9).end
    over = {rank: [entry(1, over=end)] for rank in (0, 1)}
    assert common(over, "k") == unfinished(over) == []
    for one in (entry(1), entry(1, over=other)):  # a rank has failed, or skipped a launch
        assert len(common({**over, 1: [one]}, "k")) == 1
        assert len(unfinished({**over, 1: [one]})) == 1


def names_in(entries: dict[int, list[Entry]]) -> list[tuple[str, int]]:
    return [one.name for one in of_others(entries)]


def test_other_ranks_go_on_from_what_all_had() -> None:
    """Of ranks that are gone nobody could ask: one that is left must know that all had it."""
    both = {0: [entry(1)], 1: [entry(1), entry(2)]}
    assert names_in(both) == [("3-0", 1)]
    assert names_in({0: [entry(1)]}) == []
    assert names_in({0: [entry(1, is_settled=True), entry(2)]}) == [("3-0", 1)]
    diverged = wire.cell_ends.CellEnd("ok", own={"0,1": [1, 8]})
    assert names_in({0: [entry(1)], 1: [entry(1, end=diverged)]}) == []


def test_only_the_last_loop_counts_for_other_ranks() -> None:
    """Ranks that were left out earlier still have their own: it must not come back."""
    old = {one: [entry(1, loop="3-0", is_settled=True)] for one in (2, 3)}
    end = entry(9).end
    new = [entry(5, loop="12-0", is_settled=True)]
    assert names_in({**old, 0: new}) == [("12-0", 5)]
    assert names_in({**old, 0: [replace(new[0], over=end)]}) == []


def test_a_new_rank_gets_what_was_equal_on_all(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    told = []
    for rank in (0, 1):
        checkpoints = LoopCheckpoints(tmp_path / "steps" / f"rank-{rank}", rank)
        checkpoints.begin("3-0", 1)
        table = np.arange(4)
        values = {
            "lr": 0.5, "table": table, "rows": table[:2], "mine": rank,
            "cut": np.arange(4)[rank:], "own": jnp.full(3, rank), "same": jnp.ones(3),
        }  # fmt: skip
        saved = checkpoints.take(1, values, {})
        checkpoints.fill(saved, entry(1, fixed=["lr"]))
        told.append({*saved.now.digests.items()})
    equal = [name for name, _ in told[0] & told[1]]
    assert {*equal} >= {"lr", "table", "rows", "same"}
    assert {*equal}.isdisjoint({"mine", "own", "cut"})
    checkpoints.settle(("3-0", 1), equal)
    new = LoopCheckpoints(tmp_path / "steps" / "rank-2", 2)
    (found,) = of_others(new.of_all())
    assert (found.is_settled, {*found.equal}) == (True, {*equal})
    values, own = new.load_of_others(found, {}, lambda name: True, {})
    assert {*values} - {"the random states"} == {*equal} - {"lr", "the random states"}
    assert {"mine", "own"} <= {*own}
    values, own = LoopCheckpoints(tmp_path / "steps" / "rank-1", 1).load_of_others(
        found, {}, lambda name: False, {}
    )
    assert (values["mine"], values["lr"], own) == (1, 0.5, [])
    with pytest.raises(CannotRestore, match="it is not on this host"):
        LoopCheckpoints(tmp_path / "other" / "rank-0", 0).load_of_others(found, {}, bool, {})


# ---------------------------------------------------------------------------------- they all agree


class Store:
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def write(self, key: str, value: str) -> None:
        self.texts[key] = value

    def read(self, folder: str) -> dict[str, str]:
        found = dict(self.texts)
        return {k.rpartition("/")[2]: v for k, v in found.items() if k.startswith(f"{folder}/")}

    def wait(self, key: str, timeout_s: float) -> str | None:
        return self.texts.get(key)

    def delete(self, key: str) -> None:
        self.texts.pop(key, None)


def test_all_hear_what_all_have_said() -> None:
    store = Store()
    parts = [Agreement(store, rank, (1, 4, 6), "7-0") for rank in (1, 4, 6)]
    heard: list[dict[int, str]] = []

    def ask(part: Agreement) -> None:
        heard.append(part.ask_all("have", f"of {part.rank}"))

    threads = [threading.Thread(target=ask, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert heard == [{1: "of 1", 4: "of 4", 6: "of 6"}] * 3
    assert [part.leads for part in parts] == [True, False, False]
    assert parts[1].hear_leader("have") == "of 1"
    assert parts[1].hear_all("more", lambda: False) is None
    for part in parts:
        part.forget("have")
    assert store.texts == {}


def test_a_rank_alone_agrees_with_itself() -> None:
    alone = Agreement(None, 2, (2,), "7-0")
    assert alone.ask_all("have", "x") == {2: "x"}
    alone.forget("have")
    assert alone.heard("have") == {}


class Passing(Steps):
    """A loop that comes to ``step`` at the moment at which another thread looks where it is."""

    step = 7

    def __init__(self) -> None:
        self.stopped: list[int] = []
        self.is_watched = False
        super().__init__(range(9), 0, 0.0, None, sys._getframe(), Any)  # type: ignore[arg-type]

    @property
    def done(self) -> int:  # type: ignore[override]
        if self.is_watched:
            self.is_watched = False
            if self._next == self.step:  # as it does when it has set ``done``
                self.stopped.append(self.step)
            return self.step - 1
        return self.step

    @done.setter
    def done(self, done: int) -> None: ...


def test_a_step_that_was_promised_is_not_passed_by() -> None:
    """Either the loop stops at it, or the promise is refused."""
    loop = Passing()
    loop.is_watched = True
    assert loop.propose(7)
    assert loop.stopped == [7]
    assert not loop.propose(7)  # it is there already
    assert loop._next == -1
    assert loop.propose(8)
    loop.withdraw(8)
    assert loop._next == -1


# ------------------------------------------------------------------------------------ what is shown


def line(*reports: tuple[float, int, list[list[int]]], kept: int = -1) -> str:
    loop_progress = LoopProgress(0)
    for at, rank, places in reports:
        loop_progress.hear(wire.StepsReport(rank, places), at)
    if kept >= 0:
        loop_progress.hear(wire.StepsReport(0, [], kept), 99.0)
    return loop_progress.line()


def test_the_line_of_a_loop() -> None:
    assert line() == ""
    assert line((1, 0, [[5, -1]])) == "step 5"
    assert line((1, 0, [[0, 100]]), (2, 0, [[50, 100]]), kept=40) == (
        "██████████░░░░░░░░░░ step 50 of 100, 50.0/s, 1 s left, kept at step 40"
    )
    assert line((1, 0, [[1, 10], [0, -1]]), (21, 0, [[1, 10], [2, -1]])) == (
        "2 of 10 · step 2, 10.0 s each"
    )


@pytest.mark.parametrize(("done", "said"), [(100, True), (199, False)])
def test_a_rank_that_is_behind_is_named(done: int, said: bool) -> None:
    told = line((1, 0, [[0, -1]]), (1, 3, [[0, -1]]), (2, 3, [[done, -1]]), (2, 0, [[200, -1]]))
    assert ("rank 3 is 100 behind" in told) == said


def test_the_line_goes_with_the_loop() -> None:
    loop_progress = LoopProgress(0)
    loop_progress.hear(wire.StepsReport(0, [[5, 9]]), 1.0)
    loop_progress.hear(wire.StepsReport(0, [], 5), 1.0)
    assert loop_progress.line().endswith("step 5 of 9, kept at step 5")
    loop_progress.hear(wire.StepsReport(0, []), 2.0)
    assert loop_progress.line() == ""


def test_what_is_told_at_the_end() -> None:
    loop_progress = LoopProgress(0)
    assert loop_progress.told() == ""
    for kept in (0, 41_200, 40_000):
        loop_progress.hear(wire.StepsReport(1, [], kept), 1.0)
    assert loop_progress.told() == "Kept at step 41,200: run the cell again to go on there."


def test_a_curve_is_a_picture() -> None:
    series = {"loss<": [(0.0, 2.0), (1.0, float("nan")), (2.0, 1.0)], "flat": [(2.0, 3.0)]}
    drawn = ElementTree.fromstring(plot.draw(series))
    lines = [one for one in drawn.iter() if one.tag.endswith("polyline")]
    assert [one.get("points") for one in lines] == ["8.0,18.0 472.0,78.0", "8.0,174.0"]
    assert plot.text(series) == "step 2: loss< 1, flat 3"
    assert plot.text({}) == ""


def test_what_is_logged_is_a_number() -> None:
    values = {"a": 1, "b": np.float32(2), "c": jnp.ones(()), "d": np.ones((1, 1))}
    found = check(values)
    assert (found["a"], found["b"], found["d"]) == (1, 2.0, 1.0)
    for wrong in ("x", [1], np.ones(2), jnp.ones(2), None):
        with pytest.raises(TypeError, match="is not"):
            check({"a": wrong})


def test_a_version_that_is_written_after_its_cells_end_is_of_an_ended_cell(tmp_path: Path) -> None:
    """The thread that writes it, and the main thread at the cell's end, are in either order."""
    kept, late = begun(tmp_path)
    kept.over({"7-0"}, late.end)
    kept.fill(kept.take(60, {"x": 1}, {}), late)
    kept.settle(late.name)
    assert unfinished({0: kept.entries}) == []


def test_a_loops_thread_and_a_cells_end_note_what_is_kept_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, entry = begun(tmp_path)
    replace = os.replace

    def slowly(*paths: Any) -> None:
        time.sleep(0.001)  # so that another thread has its turn
        replace(*paths)

    monkeypatch.setattr(os, "replace", slowly)
    kept.fill(kept.take(60, {"x": 1}, {}), entry)
    failed: list[BaseException] = []

    def note() -> None:
        try:
            for _ in range(50):
                kept.settle(entry.name)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=note) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failed, [one.name for one in kept.entries]) == ([], [entry.name])


def begun(folder: Path) -> tuple[LoopCheckpoints, Entry]:
    (folder / "steps").mkdir()
    kept = LoopCheckpoints(folder / "steps" / "rank-0", 0)
    kept.begin("7-0", 1)
    return kept, Entry("7-0", 60, 60, "key", 7, 0.0, [0], wire.cell_ends.CellEnd("ok"))
