"""Random states, kept before each cell at little cost."""

from __future__ import annotations

import codeop
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxcluster.engine.state.process_state import ContextOfCells, NumpyState, PythonState
from jaxcluster.engine.state.settings import Settings


def is_same(a: Any, b: Any) -> bool:
    words, others = a["state"], b["state"]
    return (a["has_gauss"], a["gauss"], words["pos"]) == (
        b["has_gauss"],
        b["gauss"],
        others["pos"],
    ) and bool((words["key"] == others["key"]).all())


def test_what_cells_import_from_future_is_for_all_later_ones() -> None:
    """It is kept, set in another process, and taken back with its cell."""
    mine, other = Settings(), Settings()
    for one in (mine, other):
        one.shell = SimpleNamespace(compile=codeop.Compile())
    before = ContextOfCells.of(mine)
    assert mine.future == 0
    mine.shell.compile("from __future__ import annotations", "<cell>", "exec")
    source = "def f(a: Missing): pass"
    with pytest.raises(NameError, match="Missing"):
        exec(other.shell.compile(source, "<cell>", "exec"), {})
    other.future = mine.future
    for one in (mine, other):
        exec(one.shell.compile(source, "<cell>", "exec"), {})
    before.put_back(mine)
    assert (mine.future, other.future) == (0, annotations.compiler_flag)


def test_pythons_state_is_always_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found, chosen = PythonState(), random.Random(1)
    before = random.getstate()
    states = [found.now()]
    changes = (
        random.random,
        lambda: random.gauss(0, 1),  # draws two, and gives the second one later
        lambda: random.getrandbits(8),
        lambda: random.seed(chosen.randrange(9)),
        lambda: random.setstate(chosen.choice(states)),
        lambda: None,
    )
    try:
        for _ in range(3000):
            chosen.choice(changes)()
            states = [*states[-20:], found.now()]
            assert states[-1] == random.getstate()
        other = random.SystemRandom()
        monkeypatch.setattr(random, "getstate", random.Random(3).getstate)
        assert found.now() == random.Random(3).getstate()
        monkeypatch.setattr(random, "getstate", other.getstate)
        with pytest.raises(NotImplementedError):
            found.now()
    finally:
        monkeypatch.undo()
        random.setstate(before)


def test_a_state_that_has_not_changed_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes 625 integers: before each cell that is most of what a rank touches for undo."""
    generator = random.Random(1)
    taken: list[str] = []

    def getstate(self: random.Random) -> Any:
        taken.append("")
        return original(self)

    original = random.Random.getstate
    monkeypatch.setattr(random, "getstate", generator.getstate)
    found = PythonState()
    found.now()
    monkeypatch.setattr(random.Random, "getstate", getstate)
    for _ in range(10):
        found.now()
    assert taken == []
    generator.random()
    assert found.now() == original(generator)
    assert taken == [""]


def test_numpys_state_is_always_the_present_one() -> None:
    found, chosen = NumpyState(), random.Random(1)
    before = np.random.get_state(legacy=False)
    own = np.random.get_bit_generator()
    another: Any = np.random.PCG64(1)
    states = [found.now()]
    changes = (
        np.random.rand,
        np.random.randn,  # draws two, and gives the second one later
        lambda: np.random.normal(size=3),
        lambda: np.random.seed(chosen.randrange(9)),
        lambda: np.random.set_state(chosen.choice(states)),
        lambda: np.random.set_bit_generator(np.random.MT19937(chosen.randrange(9))),
        lambda: None,
    )
    try:
        for _ in range(2000):
            chosen.choice(changes)()
            states = [*states[-20:], found.now()]
            assert is_same(states[-1], np.random.get_state(legacy=False))
        np.random.set_bit_generator(another)
        assert found.now()["bit_generator"] == "PCG64"
    finally:
        np.random.set_bit_generator(own)
        np.random.set_state(before)
