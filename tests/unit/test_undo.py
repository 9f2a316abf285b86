"""What a rank keeps from before a cell, and how it takes the cell back."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxcluster.engine import undo
from jaxcluster.engine.retained import Memory
from jaxcluster.engine.shards import memory_report
from jaxcluster.engine.undo import CannotUndo, Leave, Undo
from jaxcluster.wire.ops.state import UndoLooked


class Rank:
    """An Undo with a namespace, and cells that are run in it."""

    def __init__(self) -> None:
        self.undo = Undo()
        self.ns: dict[str, Any] = {"__name__": "__main__", "_oh": {}, "_": "", "In": [""]}
        self.ns["Out"] = self.ns["_oh"]
        self.undo.namespace = self.ns
        self.undo.display_hook = SimpleNamespace(_="", __="", ___="")
        self.seq = 0

    def run(self, source: str) -> int:
        self.seq += 1
        self.undo.begin(self.seq, source)
        try:
            exec(source, self.ns)
        finally:
            self.undo.end()
        return self.seq

    def back(self, **leave: Any) -> None:
        self.undo.undo(self.seq, Leave(**leave))


@pytest.fixture
def rank() -> Rank:
    return Rank()


def test_names_are_what_they_were(rank: Rank) -> None:
    rank.run("a = b = [1]; gone = 1; untouched = object()")
    before = dict(rank.ns)
    rank.run("a = 2; new = 3; del gone")
    look = rank.undo.look(rank.seq)
    assert (look.back, look.made) == (["a", "gone"], ["new"])
    rank.back()
    assert {n: v for n, v in rank.ns.items() if before.get(n) is not v} == {}
    assert "new" not in rank.ns
    assert rank.ns["a"] is rank.ns["b"]


def test_what_other_ranks_have_lost_is_lost_where_the_cell_has_not_begun(rank: Rank) -> None:
    rank.run("a = b = [1]")
    rank.undo.undo(rank.seq + 1, Leave(lost=("a",)))
    assert "a" not in rank.ns and "b" in rank.ns


def test_a_look_changes_nothing(rank: Rank) -> None:
    rank.run("a = [1]")
    rank.run("a.append(2); b = 1")
    after = dict(rank.ns)
    rank.undo.look(rank.seq)
    assert rank.ns == after
    assert rank.ns["a"] == [1, 2]


def test_what_was_looked_at_can_be_taken_back_until_that_is_decided(rank: Rank) -> None:
    """Else one rank would refuse it, and another one have done it."""
    rank.run("a = 1")
    rank.run("a = 2")
    rank.undo.look(rank.seq, 60.0)
    px = threading.Thread(target=rank.undo.forget_once_decided, args=("%%px has run",))
    px.start()
    rank.undo.set_limit(0)
    px.join(0.05)
    rank.back()
    assert rank.ns["a"] == 1
    assert px.is_alive()
    rank.undo.drop()
    px.join(10)
    assert not px.is_alive()


@pytest.mark.parametrize("hold_s", [0.0, 0.05])
def test_nothing_waits_for_ever_for_an_undo(rank: Rank, hold_s: float) -> None:
    """Its notebook has ended after the look."""
    rank.run("a = 1")
    rank.undo.look(rank.seq, hold_s)
    rank.undo.forget_once_decided("%%px has run")
    with pytest.raises(CannotUndo, match="%%px has run"):
        rank.back()


def test_who_has_waited_for_an_undo_in_vain_is_told(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undo, "SAID_S", 0.01)
    rank.run("a = 1")
    assert rank.undo.forget_once_decided("%%px has run") == ""
    rank.undo.look(rank.run("a = 2"), 0.05)
    told = rank.undo.forget_once_decided("%%px has run")
    assert "waited 0 s for a notebook that was about to take the last cell back" in told
    rank.undo.look(rank.run("a = 3"), 60.0)
    threading.Timer(0.05, rank.undo.drop).start()
    assert rank.undo.forget_once_decided("%%px has run") == ""


def test_only_the_last_cell_and_only_once(rank: Rank) -> None:
    first = rank.run("a = 1")
    rank.run("a = 2")
    with pytest.raises(CannotUndo, match="another cell has begun since"):
        rank.undo.look(first)
    rank.back()
    with pytest.raises(CannotUndo, match="it is already undone"):
        rank.back()
    assert rank.ns["a"] == 1


def test_a_rank_on_which_no_cell_has_run_refuses(rank: Rank) -> None:
    with pytest.raises(CannotUndo, match="processes are newer"):
        rank.undo.look(1)


def test_a_cell_that_never_began_here_has_nothing_to_take_back(rank: Rank) -> None:
    rank.run("a = 1")
    assert rank.undo.look(rank.seq + 1) == UndoLooked()
    assert rank.undo.undo(rank.seq + 1, Leave()) == []
    assert rank.ns["a"] == 1


def test_results_are_taken_back_and_inputs_stay(rank: Rank) -> None:
    rank.run("1")
    rank.ns["_oh"][1] = rank.ns["_"] = rank.ns["_1"] = "first"
    rank.undo.display_hook._ = "first"
    rank.run("2")
    rank.ns["_oh"][2] = rank.ns["_"] = rank.ns["_2"] = "second"
    rank.ns["_i2"] = "2"
    rank.ns["In"].append("2")
    rank.undo.display_hook._ = "second"
    look = rank.undo.look(rank.seq)
    assert (look.back, look.made) == ([], [])
    rank.back()
    assert rank.ns["_oh"] == {1: "first"}
    assert rank.ns["_"] == rank.undo.display_hook._ == "first"
    assert "_2" not in rank.ns
    assert rank.ns["_i2"] == "2"
    assert rank.ns["In"] == ["", "2"]


def test_what_is_left_on_all_ranks_is_left_here(rank: Rank) -> None:
    rank.run("a = [1]; b = [1]; c = 1")
    rank.run("a.append(2); b.append(2); c = 2")
    rank.back(names=("a",), lost=("c",))
    assert (rank.ns["a"], rank.ns["b"]) == ([1, 2], [1])
    assert "c" not in rank.ns


def test_deleted_arrays_are_found_behind_all_their_names(rank: Rank) -> None:
    rank.ns["x"] = jnp.ones(3)
    rank.run("y = {'w': x}; z = x + 1; old = x + 2; old.delete()")
    rank.run("x.delete(); y['w'] = 1; z = 2")
    look = rank.undo.look(rank.seq)
    assert look.donated == ["x", "y"]  # not old, which an earlier cell has deleted


def test_names_that_share_what_is_not_put_back_are_named(rank: Rank) -> None:
    rank.run("big = [[n] for n in range(20_000)]; first = big[0]; it = iter(big); same = [it]")
    rank.run("apart = [1]; other = [first]; x = (1, 2)\ndef g(): return apart, big")
    rank.run("big[0].append(1); next(it)")
    opaque = rank.undo.look(rank.seq).opaque
    assert opaque["it"] == "a list_iterator"
    assert opaque["first"] == opaque["other"] == opaque["same"] == "shares values with big, it"
    assert not {"apart", "x", "g"} & set(opaque)


@pytest.mark.parametrize(
    "setup",
    [
        "def f(q):\n @contextlib.contextmanager\n def g(): q.put(1); yield\n return g\nx = f(q())",
        "x = contextlib.contextmanager(q().put)",
    ],
)
def test_what_a_librarys_function_holds_is_named(rank: Rank, setup: str) -> None:
    rank.ns |= {"contextlib": contextlib, "q": queue.Queue}
    rank.run(setup)
    rank.run("x")
    assert rank.undo.look(rank.seq).opaque == {"x": "a Queue"}


class Wrapper:
    """A library's, of a function: it may be a method."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __get__(self, instance: Any, owner: Any) -> Any:
        return self


Wrapper.__module__ = "library"


@pytest.mark.parametrize(
    ("held", "change"),
    [
        ("1", "x.calls = 1"),
        ("[1]", "x.held.append(2)"),
        ("iter([1])", "next(x.held)"),
        ("contextlib.contextmanager(lambda: 1)", "x.held.__defaults__ = (1,)"),
    ],
)
def test_a_librarys_wrapper_that_has_changed_is_named(rank: Rank, held: str, change: str) -> None:
    rank.ns |= {"contextlib": contextlib, "Wrapper": Wrapper}
    rank.run(f"x = Wrapper({held}); y = [x]; z = Wrapper(1)")
    rank.run(f"z, {change}" if "=" not in change else f"z; {change}")
    assert {"x", "y"} == rank.undo.look(rank.seq).opaque.keys()


def test_a_dict_of_a_librarys_attributes_is_named_with_it(rank: Rank) -> None:
    rank.ns["args"] = type("Args", (), {"__module__": "library"})()
    rank.ns["args"].lr = 1
    rank.run("settings = vars(args); own = {}")
    rank.run("args.lr = 2")
    opaque = rank.undo.look(rank.seq).opaque
    assert opaque == {"args": "an Args", "settings": "shares values with args"}


def test_names_that_share_what_failed_are_named(rank: Rank) -> None:
    rank.ns["np"] = np
    rank.run("short = np.zeros(3); alias = {'a': short}; apart = np.zeros(3)")
    rank.run("short.resize(4, refcheck=False)")
    look = rank.undo.look(rank.seq)
    assert look.failed == ["short"]
    assert look.opaque == {"alias": "shares values with short"}
    assert rank.undo.undo(rank.seq, Leave(names=("short",))) == ["alias", "short"]


def test_odd_names_and_leaked_tracers_keep_nothing_from_being_undone(rank: Rank) -> None:
    import jax

    rank.ns |= {"jax": jax, "jnp": jnp, 7: "no name"}
    rank.run(
        "leaked = []\njax.jit(lambda a: leaked.append(a) or a)(jnp.ones(2)); tracer = leaked[0]"
    )
    rank.run("leaked.append(1); tracer = globals()[8] = a = 1")
    look = rank.undo.look(rank.seq)
    assert (look.back, look.made, look.donated) == (["tracer"], ["a"], [])
    rank.back()
    assert len(rank.ns["leaked"]) == 1
    assert "a" not in rank.ns


def test_a_push_since_stays(rank: Rank) -> None:
    rank.run("a = 1; b = 1")
    rank.run("a = 2; b = 2")
    rank.ns |= {"a": 3, "c": 3}
    rank.undo.bound(["a", "c"])
    rank.back()
    assert [rank.ns[n] for n in "abc"] == [3, 1, 3]


def test_restored_variables_are_not_undone(rank: Rank) -> None:
    rank.run("a = 1")
    rank.undo.forget("variables were restored since")
    with pytest.raises(CannotUndo, match="variables were restored since"):
        rank.back()


def test_a_cell_that_goes_on_after_it_was_undone_is_undone_at_its_end(rank: Rank) -> None:
    rank.run("a = 1; log = []")
    rank.seq += 1
    rank.undo.begin(rank.seq, "a log")
    exec("a = 2; log.append(1)", rank.ns)
    rank.back()
    assert rank.undo.before() is not None
    assert (rank.ns["a"], rank.ns["log"]) == (1, [])
    exec("a = 3; b = 3; log.append(2)", rank.ns)
    rank.undo.end()
    assert (rank.ns["a"], rank.ns["log"], "b" in rank.ns) == (1, [], False)


def test_what_was_before_is_told_to_whoever_saves_the_variables(rank: Rank) -> None:
    assert rank.undo.before() is None
    rank.run("a = 1; b = 1")
    rank.run("a = 2; b = 2; c = 2")
    rank.ns["b"] = 3
    rank.undo.bound(["b"])
    for seq in (None, rank.seq):
        before = rank.undo.before(seq)
        assert before is not None
        assert (before["a"], before["b"], "c" in before) == (1, 3, False)
    assert rank.undo.before(rank.seq - 1) is None


def test_before_a_cell_that_did_not_run_here_is_now(rank: Rank) -> None:
    rank.run("a = 1")
    rank.run("a = 2")
    assert rank.undo.before(rank.seq + 1) == rank.ns
    rank.undo.set_limit(0)
    assert rank.undo.before(rank.seq + 1) == rank.ns
    assert rank.undo.before(rank.seq) is None


def test_before_a_cell_that_was_undone_is_now(rank: Rank) -> None:
    rank.run("a = 1")
    rank.run("a = 2")
    rank.back()
    assert rank.undo.before(rank.seq) == rank.ns


def test_surroundings_are_put_back(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    here = os.getcwd()
    monkeypatch.setenv("JC_OLD", "1")
    rank.ns |= {"random": random, "np": np, "os": os}
    state, numpys = random.getstate(), np.random.get_state()[1].copy()
    rank.run(
        "random.random(); np.random.rand(); os.environ['JC_NEW'] = '1'; del os.environ['JC_OLD']\n"
        "os.chdir('/')"
    )
    rank.back()
    assert random.getstate() == state
    assert (np.random.get_state()[1] == numpys).all()
    assert os.environ["JC_OLD"] == "1"
    assert "JC_NEW" not in os.environ
    assert os.getcwd() == here


def test_a_value_that_can_not_be_looked_at_costs_the_undo_and_not_the_cell(
    rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(undo.changes, "watch", fails)
    rank.run("a = 1")
    assert "odd" in capsys.readouterr().err
    with pytest.raises(CannotUndo, match="could not be kept: ZeroDivisionError: odd"):
        rank.back()
    assert rank.ns["a"] == 1


# ----------------------------------------------------------------------------------- memory


def test_functions_that_the_cell_has_traced_are_traced_again(rank: Rank) -> None:
    """Each with the value that the variable has then, and no other one."""
    import equinox
    import jax

    rank.ns |= {"jax": jax, "jnp": jnp, "eqx": equinox, "traced": []}
    rank.run(
        "lr = 1.0\n"
        "def grow(x): traced.append('grow'); return x * lr\n"
        "def make():\n  held = [1.0]\n  return jax.jit(lambda x: x * held[0]), held\n"
        "inner = jax.jit(grow)\n"
        "class Model:\n  rate = 1.0\n  def __call__(self, x): return x * self.rate\n"
        "model = Model(); method = jax.jit(model.__call__)\n"
        "outer = jax.jit(lambda x: inner(x) + lr)\n"
        "closed, held = make()\n"
        "other = jax.jit(lambda x: x * lr, donate_argnums=0)\n"
        "filtered = eqx.filter_jit(lambda x: x * lr)\n"
        "def body(c, x): return c * lr, x\n"
        "scan = lambda x: jax.lax.scan(body, x, jnp.ones(3))[0]\n"
        "saved = jax.jit(jax.checkpoint(lambda x: x * lr)); grad = jax.jit(jax.grad(grow))\n"
        "reduced = jax.jit(lambda x: jax.lax.reduce(jnp.ones(2) * x, 1.0, comp, (0,)))\n"
        "def comp(a, b): return a * b * lr\n"
        "@jax.custom_jvp\ndef custom(x): return x * lr\n"
        "custom.defjvp(lambda p, t: (custom(*p), t[0] * lr))\n"
        "slope = jax.jit(jax.grad(custom)); eager = jax.checkpoint(grow)\n"
        "loop = lambda x: jax.lax.while_loop(lambda c: c < 0, grow, x * lr)\n"
        "fori = lambda x: jax.lax.fori_loop(0, 2, lambda i, c: c * lr, x)\n"
        "mapped = jax.jit(jax.vmap(grow, axis_size=2, in_axes=None))\n"
        "def old(x): traced.append('old'); return x\n"
        "old = jax.jit(old); old(1.0); shaped = jax.jit(lambda x: x * lr); shaped(1.0)\n"
        "def results():\n"
        "  return [float(jnp.sum(f(jnp.float32(1.0)))) for f in (inner, outer, closed, other,"
        " filtered, method, scan, saved, grad, shaped, reduced, custom, slope,"
        " eager, loop, fori)]"
    )
    first = len(rank.ns["traced"])
    rank.run("lr = held[0] = Model.rate = 100.0; bad = results(); shaped(jnp.ones(2)); old(1.0)")
    assert rank.ns["bad"][0] == 100.0
    rank.back()
    assert rank.ns["lr"] == 1.0
    rank.ns["traced"].clear()
    results = rank.ns["results"]()
    assert results == [1.0, 2.0, *[1.0] * 14], (first, results)
    assert float(jnp.sum(rank.ns["shaped"](jnp.ones(2)))) == 2.0
    rank.ns["old"](1.0)
    assert "old" not in rank.ns["traced"]


def test_more_than_the_limit_is_let_go(rank: Rank) -> None:
    rank.ns["np"] = np
    rank.undo.set_limit(1 << 20)
    rank.run("a = np.ones(1 << 16); b = np.ones(1 << 20)")
    rank.run("a = None")
    rank.undo.check_memory()
    rank.undo.look(rank.seq)
    rank.run("b = None")
    rank.undo.check_memory()
    with pytest.raises(CannotUndo, match=r"hold 8 MiB, more than the 1 MiB .*undo SIZE"):
        rank.undo.look(rank.seq)
    assert rank.undo.before() is None


def test_what_variables_still_reach_is_not_held(rank: Rank) -> None:
    rank.ns["np"] = np
    rank.undo.set_limit(1 << 20)
    rank.run("a = np.ones(1 << 20); view = a[3:]; box = {'a': a}")
    rank.run("a = None; view = None")
    rank.undo.check_memory()
    rank.undo.look(rank.seq)
    rank.run("box['a'] = None")
    rank.undo.check_memory()
    with pytest.raises(CannotUndo, match="8 MiB"):
        rank.undo.look(rank.seq)


def test_what_runs_the_cells_is_not_looked_through(rank: Rank) -> None:
    """It leads to what undo keeps, which would count as still reached, and as shared."""
    rank.ns |= {"np": np, "undo": rank.undo, "method": rank.run, "holder": [rank]}
    rank.undo.set_limit(1 << 20)
    rank.run("a = np.ones(1 << 20); it = iter([1]); b = [a]")
    rank.run("next(it); a = b = None")
    assert [*rank.undo.look(rank.seq).opaque] == ["it", "b"]  # which has a, a large array
    rank.undo.check_memory()
    with pytest.raises(CannotUndo, match="8 MiB"):
        rank.undo.look(rank.seq)


def test_arrays_of_devices_count_and_deleted_ones_do_not(rank: Rank) -> None:
    rank.ns["jnp"] = jnp
    rank.undo.set_limit(1 << 20)
    rank.run("a = jnp.ones(1 << 19).block_until_ready(); b = jnp.ones(1 << 19); c = b")
    rank.run("b.delete(); b = None; c = None")
    rank.undo.check_memory()
    rank.undo.look(rank.seq)
    rank.run("a = None")
    rank.undo.check_memory()
    with pytest.raises(CannotUndo, match="2 MiB"):
        rank.undo.look(rank.seq)


def test_what_it_keeps_is_named_in_the_memory_of_a_rank(rank: Rank) -> None:
    rank.ns["jnp"] = jnp
    rank.run("a = jnp.ones(1 << 16).block_until_ready(); b = {'w': a + 1}; c = a + 2")
    rank.run("a = None; b['w'] = None")
    report = memory_report(0, rank.ns, rank.undo.old_values())
    held = {entry.name: sum(entry.nbytes) for entry in report.names}
    assert held["%jaxcluster undo (before the last cell)"] == 2 << 18
    assert held["c"] == 1 << 18
    rank.back()
    assert not rank.undo.old_values()


def test_switched_off_nothing_is_kept(rank: Rank) -> None:
    rank.run("a = 1")
    assert rank.undo.set_limit(0) == 0
    with pytest.raises(CannotUndo, match="switched off: %jaxcluster undo on"):
        rank.back()
    rank.run("a = 2")
    with pytest.raises(CannotUndo, match="switched off"):
        rank.back()
    assert rank.undo.set_limit(None) > 0
    rank.run("a = 3")
    rank.back()
    assert rank.ns["a"] == 2


def test_a_process_that_has_little_needs_no_looks() -> None:
    """What is held is in this process: its size bounds it, whatever else has gone meanwhile."""
    memory = Memory()
    assert not memory.may_exceed(1 << 40)
    big = np.ones(1 << 25)
    assert memory.may_exceed(big.nbytes)


def test_a_process_whose_size_is_unknown_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    monkeypatch.setattr("jaxcluster.engine.retained.os.pread", lambda *_: b"VmRSS:")
    assert memory.may_exceed(1 << 40)


@pytest.mark.parametrize("swap", [False, True])
def test_a_process_that_may_be_swapped_out_is_asked_for_all_that_it_has(
    monkeypatch: pytest.MonkeyPatch, swap: bool
) -> None:
    """Else its size in memory says it, without a look at each kind of what it has."""
    monkeypatch.setattr("jaxcluster.engine.retained._may_swap", lambda: swap)
    memory, read = Memory(), []
    own = memory._own
    monkeypatch.setattr(memory, "_own", lambda: read.append("") or own())
    assert not memory.may_exceed(1 << 40)
    assert bool(read) == swap
    assert memory.may_exceed(1 << 20)


def test_the_default_is_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxcluster.engine.retained.host_nbytes", lambda: 16 << 30)
    rank = Rank()
    import jax

    assert rank.undo.set_limit(None) == (4 << 30) // len(jax.local_devices())


def test_old_values_live_no_longer_than_the_next_cell(rank: Rank) -> None:
    import weakref

    rank.run("class Big: pass\nbig = Big()")
    big = weakref.ref(rank.ns["big"])
    rank.run("big = None")
    assert big() is not None
    rank.run("pass")
    assert big() is None


def test_to_undo_beside_much_takes_no_longer_than_it_may(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What there was no time to look through is named, and what is small is looked through."""
    monkeypatch.setattr(undo.object_graph, "LOOK_S", 0.05)
    for function in (
        undo.object_graph.sharing,
        undo.object_graph.reachable_from,
        undo.object_graph.arrays_within,
    ):
        monkeypatch.setattr(function, "__defaults__", (*(function.__defaults__ or ())[:-1], 0.05))
    rank.run("big = [[n] for n in range(300_000)]; more = [[n] for n in range(300_000)]")
    rank.run("class Small: pass\nsmall = [1]; first = [big[0]]; x = (1, 2)")
    rank.run("import numpy as np\nfrom collections import Counter\nfrom statistics import mean")
    rank.run("big[0].append(1)")
    began = time.monotonic()
    look = rank.undo.look(rank.seq)
    assert time.monotonic() - began < 5
    assert look.too_large == ["big"]
    assert look.opaque["more"] == "too large to search"
    assert "first" in look.opaque
    assert {"x", "np", "mean", "Counter"}.isdisjoint(look.opaque)


def test_what_two_names_lead_to_is_named_of_both_though_the_way_is_gone(rank: Rank) -> None:
    """By a function's keyword defaults, which the cell has emptied."""
    rank.run("def f(*, k=iter([1, 2])): pass\ng = f")
    rank.run("next(f.__kwdefaults__.pop('k')); f = 1; g")
    assert rank.undo.look(rank.seq).opaque.keys() == {"f", "g"}


def test_what_an_array_of_a_users_class_leads_to_is_named_of_it(rank: Rank) -> None:
    rank.run("import numpy as np\nclass Tagged(np.ndarray): pass")
    rank.run("tagged = np.arange(3).view(Tagged)")
    rank.run("numbers = (n for n in range(3)); tagged.source = [numbers]")
    rank.run("numbers.close()")
    assert rank.undo.look(rank.seq).opaque.keys() == {"numbers", "tagged"}


def test_what_a_cell_that_may_reach_any_name_has_changed_is_not_known(rank: Rank) -> None:
    rank.run("state, name = {'n': 0}, 'state'")
    rank.run("globals()[name]['n'] = 1")
    course = rank.undo.course()
    assert course is not None
    assert course.in_place is None
    rank.back()
    assert rank.ns["state"] == {"n": 0}
