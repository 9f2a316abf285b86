"""What cells have registered with IPython, and what that changes in a later cell, is undone."""

from __future__ import annotations

import atexit
from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster.engine.ipython_hooks import Registered
from jaxcluster.engine.state.settings import Settings
from jaxcluster.engine.undo import Leave, Undo

SETUP = """
import functools
from IPython.core.magic import register_line_magic
log, count, seen = [], 0, {}
def told(*arguments):
    global count
    count += 1
    log.append(count)
class Observer:
    def __init__(self): self.calls = []
    def __call__(self): self.calls.append(1)
    def show(self, value, printer, cycle):
        self.calls.append(2)
        printer.text("shown")
observer, shown = Observer(), Observer()
@register_line_magic
def mine(line): seen[line] = len(seen)
get_ipython().events.register("post_run_cell", told)
get_ipython().events.register("pre_execute", observer)
get_ipython().events.register("pre_execute", functools.partial(seen.setdefault, "partial"))
get_ipython().display_formatter.formatters["text/plain"].for_type(complex, shown.show)
"""
REGISTERS = """
@register_line_magic
def mine(line): ...
@register_line_magic
def other(line): ...
get_ipython().events.register("pre_run_cell", other)
get_ipython().events.unregister("post_run_cell", told)
get_ipython().ast_transformers.append(Observer())
get_ipython().display_formatter.formatters["text/html"].for_type(complex, told)
"""


class Rank:
    def __init__(self, shell: InteractiveShell) -> None:
        self.shell, self.undo, self.seq = shell, Undo(), 0
        self.undo.attach(shell, Settings())

    def run(self, source: str) -> None:
        self.seq += 1
        self.undo.begin(self.seq, source)
        self.shell.run_cell(source)
        self.undo.end()

    def back(self) -> tuple[list[str], list[str]]:
        """Undo the last cell; the names that are restored, and those that are removed."""
        look = self.undo.look(self.seq)
        assert not (look.failed or look.opaque), look
        assert self.undo.undo(self.seq, Leave()) == []
        return sorted({*look.back, *look.in_place}), look.made

    def state(self) -> str:
        ns = self.shell.user_ns
        held = ns["log"], ns["count"], ns["seen"], ns["observer"].calls, ns["shown"].calls
        return repr(held)


@pytest.fixture
def rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rank]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        patch.delenv("VIRTUAL_ENV", raising=False)
        made = InteractiveShell.instance()
        made.history_manager.enabled = False
        ranks = Rank(made)
        ranks.run(SETUP)
        yield ranks
        made.history_manager.end_session()
        atexit.unregister(made.atexit_operations)
        made.restore_sys_module_state()
        InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("source", "restored"),
    [
        ("a = 1", ["count", "log", "observer"]),
        ("a = 1\n%mine x", ["count", "log", "observer", "seen"]),
        ("a = 1\n5j", ["count", "log", "observer", "shown"]),
    ],
)
@pytest.mark.usefixtures("capsys")
def test_what_a_callback_has_changed_in_a_cell_is_undone_with_it(
    rank: Rank, source: str, restored: list[str]
) -> None:
    rank.run("pass")
    before = rank.state()
    rank.run(source)
    assert rank.state() != before
    assert rank.back() == (restored, ["a"])
    assert rank.state() == before


def test_what_a_cell_has_registered_is_undone_and_what_a_library_has_stays(rank: Rank) -> None:
    shell, own = rank.shell, rank.shell.user_ns["mine"]
    rank.run("pass")
    rank.run(REGISTERS + "%load_ext autoreload")
    assert rank.back() == (["IPython's callbacks", "mine", "observer"], ["other"])
    callbacks = shell.events.callbacks
    assert callbacks["post_run_cell"] == [shell.user_ns["told"]]
    assert [one.__qualname__ for one in callbacks["pre_run_cell"]] == [
        "Undo._called",
        "AutoreloadMagics.pre_run_cell",
    ]
    assert shell.ast_transformers == []
    assert complex not in shell.display_formatter.formatters["text/html"].type_printers
    magics = shell.magics_manager.magics["line"]
    assert magics["mine"] is own
    assert "autoreload" in magics and "other" not in magics


def test_nothing_runs_unnamed_where_cells_have_registered_nothing(rank: Rank) -> None:
    namespace = rank.shell.user_ns
    known = Registered(rank.shell)
    now = known.now(namespace)
    assert list(now.used({"time"})) == []
    assert list(now.used({"time", "mine"})) == [namespace["mine"]]
    handlers = [namespace["told"], print]  # of signals
    assert list(known.now(namespace, handlers).used(set())) == [namespace["told"]]
    rank.shell.ast_transformers.append(namespace["Observer"]())
    assert now.has_changed() and len(list(known.now(namespace).used({"time"}))) == 1
    now.put_back()
    assert not now.has_changed() and not Registered().has_changed()
