"""Edits of the user's modules that IPython's ``%autoreload`` loads in a cell are not the cell's."""

from __future__ import annotations

import atexit
import importlib
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.extensions.deduperreload.deduperreload import DeduperReloader

from jaxcluster.engine.state import ownmodules
from jaxcluster.engine.state.loading import load
from jaxcluster.engine.state.saving import save
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.undo import Leave, Undo

FILE = """
S = {s}
table = {{"a": {s}}}
def f(x): return x * S + {add}
class Model:
    rate = {s}
    def step(self): return "step {add}"
"""
SHOW = "(m.S, m.table['a'], m.f(1), m.Model.rate, model.step(), f(1), isinstance(model, m.Model))"
WAYS = {"patched": "%autoreload 2", "reloaded": "%autoreload 2-", "new names": "%autoreload 3"}


class Rank:
    """One rank's cells, undo and settings."""

    def __init__(self, shell: InteractiveShell, path: Path) -> None:
        self.shell, self.path, self.seq, self.edits = shell, path, 0, itertools.count(1)
        self.undo, self.settings = Undo(), Settings()
        self.edit()
        self.settings.begin(shell)
        self.undo.attach(shell, self.settings)

    def edit(self, s: int = 1, add: int = 0, more: str = "") -> None:
        self.path.write_text(FILE.format(s=s, add=add) + more)
        at = self.path.stat().st_mtime + 10 * next(self.edits)  # the clock's step is no matter
        os.utime(self.path, (at, at))

    def run(self, source: str) -> Any:
        self.seq += 1
        self.undo.begin(self.seq, source)
        result = self.shell.run_cell(source)
        assert result.success
        self.undo.end()
        self.settings.note()
        return result.result

    def back(self) -> tuple[list[str], list[str]]:
        """Undo the last cell: the names that are restored, and those that can't be."""
        look = self.undo.look(self.seq)
        self.undo.undo(self.seq, Leave())
        return sorted({*look.back, *look.in_place} - {*look.failed}), look.failed

    def set_by_cells(self) -> set[str]:
        """What new processes get beside what the file makes, which has been edited since."""
        found = self.settings.read()
        held = {one.name for one in found.values() if isinstance(one, ownmodules.Held)}
        variables = found["module edited"]
        assert isinstance(variables, ownmodules.Variables)
        assert variables.source == ownmodules._source_of({"__file__": str(self.path)})
        return held | variables.set_later


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(SourceFileLoader, "exec_module", SourceFileLoader.exec_module)
    monkeypatch.setattr(DeduperReloader, "maybe_reload_module", DeduperReloader.maybe_reload_module)
    for name in ("_made", "_first"):
        monkeypatch.setattr(ownmodules, name, {})
    monkeypatch.setattr(ownmodules, "_own_names", lambda count: ["edited"])
    ownmodules.remember_imports()
    shell = InteractiveShell.instance()
    shell.history_manager.enabled = False
    yield Rank(shell, tmp_path / "edited.py")
    sys.modules.pop("edited", None)
    shell.history_manager.end_session()
    atexit.unregister(shell.atexit_operations)
    shell.restore_sys_module_state()
    InteractiveShell.clear_instance()


@pytest.fixture(params=WAYS)
def begun(rank: Rank, request: pytest.FixtureRequest) -> Rank:
    rank.run(f"%load_ext autoreload\n{WAYS[request.param]}")
    rank.run("import edited as m; from edited import f; model = m.Model(); mine = []")
    assert rank.run(SHOW) == (1, 1, 1, 1, "step 0", 1, True)
    return rank


EDITS: dict[str, tuple[dict[str, Any], Any]] = {
    "a function": ({"add": 5}, (1, 1, 6, 1, "step 5", 6, True)),
    "a constant": ({"s": 10}, (10, 10, 10, 10, "step 0", 10, True)),
    "both": ({"s": 10, "add": 5}, (10, 10, 15, 10, "step 5", 15, True)),
    "a new name": (
        {"s": 10, "more": "def g(): return S\nT = [1]"},
        (10, 10, 10, 10, "step 0", 10, True),
    ),
    "what can't be patched": (
        {"s": 10, "more": "T = len(str(S))"},
        (10, 10, 10, 10, "step 0", 10, True),
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_is_loaded_in_a_cell_stays_when_it_is_undone(begun: Rank, edit: str) -> None:
    how, then = EDITS[edit]
    begun.edit(**how)
    assert begun.run(f"mine.append(1); m.extra = 1; m.table['b'] = 1\n{SHOW}") == then
    assert begun.back() == (["mine", "model"], [])  # as it is by ``model`` that m is met
    assert begun.run(f"(*{SHOW}, mine, hasattr(m, 'extra'), 'b' in m.table)") == (
        *then,
        [],
        False,
        False,
    )


@pytest.mark.parametrize("edit", EDITS)
def test_new_processes_have_the_constants_of_a_file_that_was_loaded_again(
    begun: Rank, edit: str
) -> None:
    assert begun.set_by_cells() == set()
    for _ in range(2):
        begun.edit(**EDITS[edit][0])
        begun.run(SHOW)
        assert begun.set_by_cells() == set()
        begun.edit(7, 1)
        begun.run("mine.append(1)")
        begun.back()
        assert begun.set_by_cells() == set()
    begun.run("m.S = 8; m.new = 3; m.Model.step = m.f")
    assert begun.set_by_cells() == {"S", "new", "Model.step"}


def test_what_a_cell_has_set_is_its_own_until_a_load_sets_it(rank: Rank) -> None:
    rank.run("%load_ext autoreload\n%autoreload 2")
    rank.run("import edited as m")
    rank.run("m.S = 0.5; m.new = 3; m.f = lambda x: x")
    rank.edit(1, 1)  # a patch: the constants are as they were
    rank.run("m")
    assert {"S", "new"} <= rank.set_by_cells()
    rank.edit(2, 1)
    rank.run("m")
    assert "S" not in rank.set_by_cells() and "new" in rank.set_by_cells()


IN_CELL: dict[str, Callable[[Rank], str]] = {
    "%autoreload": lambda rank: "%autoreload\n",
    "%autoreload in a line": lambda rank: "get_ipython().run_line_magic('autoreload', 'now')\n",
    "a reload": lambda rank: "import importlib; importlib.reload(m)\n",
}


@pytest.mark.parametrize("full", ["", " --full"])
@pytest.mark.parametrize("how", IN_CELL)
def test_what_a_cell_itself_loads_stays_and_is_named(rank: Rank, how: str, full: str) -> None:
    rank.run(f"%load_ext autoreload\n%autoreload 0{full}")
    rank.run("import edited as m; from edited import f; model = m.Model(); mine = []")
    rank.run("%autoreload" + full)
    rank.edit(10, 5)
    then = rank.run(f"mine.append(1)\n{IN_CELL[how](rank)}{SHOW}")
    assert then[:3] == (10, 10, 15)
    restored, failed = rank.back()
    assert "mine" in restored and failed  # the names that lead to it
    assert rank.run(SHOW) == then
    assert rank.run("mine") == []
    assert rank.set_by_cells() == set()


def test_modules_that_new_processes_import_are_reloaded_once_edited(rank: Rank) -> None:
    rank.run("%load_ext autoreload\n%autoreload 1-\n%aimport edited")
    now = rank.settings.changed()
    assert now["IPython %autoreload"]["modules"] == {"edited": True}
    rank.run("%aimport -edited")
    assert rank.settings.changed() != now
    del sys.modules["edited"]
    reloader = rank.shell.magics_manager.registry["AutoreloadMagics"]
    reloader.loaded_modules.discard("edited")
    reloader._reloader.deduper_reloader.enabled = True
    reloader._reloader.modules_mtimes.pop("edited", None)
    importlib.invalidate_caches()
    for name, value in now.items():
        if name.startswith(("IPython %", "module ")):
            rank.settings.restore(name, value)
    assert not reloader._reloader.deduper_reloader.enabled
    rank.edit(10, 5)
    assert rank.run("import edited; edited.f(1)") == 15


def test_an_ipython_that_patches_no_modules_is_set_as_it_was(rank: Rank) -> None:
    """IPython 8."""
    rank.run("%load_ext autoreload\n%autoreload 1")
    reloader = rank.shell.magics_manager.registry["AutoreloadMagics"]._reloader
    del reloader.deduper_reloader
    now = rank.settings.changed()["IPython %autoreload"]
    reloader.enabled = False
    rank.settings.restore("IPython %autoreload", now)
    assert reloader.enabled


def test_what_cells_have_set_is_theirs_in_new_processes_too(rank: Rank) -> None:
    rank.run("import edited as m")
    rank.run("m.S = 0.5; m.new = 3")
    for _ in range(2):
        found = rank.settings.changed()["module edited"]
        del sys.modules["edited"]
        ownmodules._first.clear()
        ownmodules._made.clear()
        rank.settings._own._count = 0
        rank.settings.restore("module edited", found)
        rank.run("import edited as m")
        assert rank.run("m.S, m.new, m.table['a']") == (0.5, 3, 1)
        assert rank.set_by_cells() == {"S", "new"}


def test_a_function_that_a_reload_has_replaced_is_its_modules_in_new_processes(rank: Rank) -> None:
    """By value it would be one that autoreload does not know."""
    rank.run("%load_ext autoreload\n%autoreload 2-")
    rank.run("import edited as m; from edited import f")
    rank.edit(10, 5)
    f, module = rank.run("f, m")
    assert f is not module.f and f(1) == module.f(1) == 15
    loaded = load(save({"f": f, "g": types.FunctionType(f.__code__, vars(module))}, 0), {})
    assert loaded.values["f"] is module.f and loaded.values["g"] is not module.f
