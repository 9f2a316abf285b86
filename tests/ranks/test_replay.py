"""Which skipped programs are replayed, and that a replay is believed only once it is checked.

Each case with one and with two devices per process: with one a launch blocks, with two it waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import overhosts
import psutil
import pytest
from helpers import DEVICES, GONE_S, Home, until
from overhosts import processes_of, send_signal

import jaxcluster
from jaxcluster.cluster import connect, selfcheck
from jaxcluster.errors import CellInterrupted, Divergence, JaxClusterError
from jaxcluster.wire.link import Link
from jaxcluster.wire.ops.lockstep import PrepareCheck

TOLD_WITHIN_S = 30.0  # new processes on a busy machine

SETUP = """
import jax, jax.numpy as jnp, numpy as np, time
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
split, same = NamedSharding(mesh, P("i")), NamedSharding(mesh, P())
def spread(values, sharding=split):
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
big = spread(np.full(1000 * jax.device_count(), 2.0, np.float32))
small = spread(np.arange(16.0, dtype=np.float32))
flag, count = spread(np.array(True), same), spread(np.array(3), same)
keep = "mine"
r = jax.process_index()
def mapped(f, *specs):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False))
def total(v):
    return lax.psum(v.sum(), "i")
def local(v):
    return v.sum() * 2
float(jnp.sum(small))
"""

# What decides here how often ranks meet: with zeros it is another number.
STEERED = {
    "cond": "step = mapped(lambda v, f: lax.cond(f, total, local, v), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "switch": "step = mapped(lambda v, k: lax.switch(k, [local, local, local, total], v),"
    " P('i'), P())\nask = lambda: step(big, count)",
    "fori_loop": "step = mapped(lambda v, k: lax.fori_loop(0, k, lambda i, s:"
    " 1 + total(v * s) / 9e9, 0.0), P('i'), P())\nask = lambda: step(big, count)",
    "while_loop": "step = mapped(lambda v: lax.while_loop(lambda s: s[1] < v[0] * 3, lambda s:"
    " (1 + total(v * s[0]) / 9e9, s[1] + 1.0), (0.0, 0.0))[0], P('i'))\nask = lambda: step(big)",
    "cond in a scan": "step = mapped(lambda v, f: lax.scan(lambda c, x: (lax.cond(f, lambda:"
    " total(v) + c, lambda: c * 3), None), 0.0, None, length=4)[0], P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "scan in a cond": "step = mapped(lambda v, f: lax.cond(f, lambda w: lax.scan(lambda c, x:"
    " (1 + total(w * c) / 9e9, None), 0.0, None, length=4)[0], local, v), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "jit in a cond": "inner = jax.jit(total)\n"
    "step = mapped(lambda v, f: lax.cond(f, lambda w: inner(w) * 2, local, v), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "gradient of a remat in a cond": "inner = jax.checkpoint(lambda w: total(jnp.sin(w)) ** 2)\n"
    "def loss(v, f): return lax.cond(f, inner, local, v)\n"
    "step = mapped(lambda v, f: jax.grad(loss)(v, f).sum(), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "shard_map in a cond": "part = jax.shard_map(total, mesh=mesh, in_specs=P('i'), out_specs=P(),"
    " check_vma=False)\n"
    "step = jax.jit(lambda v, f: lax.cond(f, part, lambda w: jnp.float32(2), v))\n"
    "ask = lambda: step(big, flag)",
    "a branch of sharded arrays": "step = jax.jit(lambda v, f: lax.cond(f, lambda w: w.sum(),"
    " lambda w: jnp.float32(2), v), out_shardings=same)\nask = lambda: step(big, flag)",
}  # fmt: skip

# Here nothing does.
STEADY = {
    "scan": "step = mapped(lambda v: lax.scan(lambda c, x: (1 + total(v * c) / 9e9, None), 0.0,"
    " None, length=4)[0], P('i'))\nask = lambda: step(big)",
    "fori_loop": "step = mapped(lambda v: lax.fori_loop(0, 5, lambda i, s: 1 + total(v * s) / 9e9,"
    " 0.0), P('i'))\nask = lambda: step(big)",
    "a collective that the compiler takes out of a loop": "step = mapped(lambda v, k:"
    " lax.fori_loop(0, k, lambda i, s: s * 0.5 + total(v), 0.0), P('i'), P())\n"
    "ask = lambda: step(big, count)",
    "cond without a collective": "step = mapped(lambda v, f: total(lax.cond(f, jnp.sin, jnp.cos,"
    " v)), P('i'), P())\nask = lambda: step(big, flag)",
    "where": "step = mapped(lambda v, f: jnp.where(f, total(v), local(v)), P('i'), P())\n"
    "ask = lambda: step(big, flag)",
    "random numbers": "step = jax.jit(lambda v: (v * jax.random.normal(jax.random.key(1),"
    " v.shape)).sum())\nask = lambda: step(big)",
}  # fmt: skip


@pytest.fixture(scope="module", params=DEVICES)
def ranks(request: pytest.FixtureRequest, home: Home) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(
        4, devices_per_process=request.param, name=f"replay-{request.param}"
    ) as cluster:
        cluster.run(SETUP)
        yield cluster


@pytest.fixture(autouse=True)
def nothing_left_over(home: Home, ranks: jaxcluster.Cluster) -> Iterator[None]:
    """The cluster's processes may have been replaced: none of the former ones is left.

    Other clusters of the session, and what belongs to them, were there before.
    """

    if overhosts.hosts():
        former = processes_of(ranks)
        yield
        replaced = set(former) - set(processes_of(ranks))
        until(lambda: not any(p.state for p in replaced), "end of those replaced", GONE_S)
        return

    def own() -> set[int]:
        server = psutil.Process(ranks.record.pids[0]).parent()
        return {server.pid, *(p.pid for p in server.children(recursive=True))}

    others = set(home.processes()) - own()
    yield

    def left() -> set[int]:
        known = {os.getpid(), *own(), *others}
        return {pid for pid in home.processes() if pid not in known and not is_idle_server(pid)}

    until(lambda: not left(), "end of the processes that were replaced", GONE_S)


def is_idle_server(pid: int) -> bool:
    """Whether it is a fork server of ours that waits for the next start."""
    try:
        process = psutil.Process(pid)
        return process.ppid() == os.getpid() and not process.children()
    except psutil.NoSuchProcess:
        return True


def fails(cluster: jaxcluster.Cluster, source: str, **options: object) -> JaxClusterError:
    """The error of a cell that must fail soon, after which the session must be whole."""
    started = time.monotonic()
    with pytest.raises(JaxClusterError) as caught:
        cluster.run(source, show=False, **options)
    assert time.monotonic() - started < TOLD_WITHIN_S
    check_whole(cluster)
    return caught.value


def check_whole(cluster: jaxcluster.Cluster) -> None:
    """The next results are right on every rank, and old variables are there."""
    source = "print(float(jnp.sum(small)), float(jnp.max(small)), keep)"
    for _ in range(3):  # what is left over somewhere may come one launch later
        record = cluster.run(source, timeout_s=TOLD_WITHIN_S, show=False)
        assert [record.stdout(rank) for rank in range(4)] == ["120.0 15.0 mine\n"] * 4


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "never compiled there"])
@pytest.mark.parametrize("steered", STEERED)
def test_a_program_whose_inputs_steer_its_collectives_is_not_run_with_zeros(
    ranks: jaxcluster.Cluster, steered: str, compiled: bool
) -> None:
    ranks.run(STEERED[steered], show=False)
    if compiled:
        ranks.run("value = float(ask())", show=False)
    error = fails(ranks, "if r != 1: s = ask()")
    assert isinstance(error, Divergence)
    assert error.report.culprits == (1,)
    assert "New processes" in error.hint
    assert "depends on its inputs" in error.hint


@pytest.mark.parametrize("steady", STEADY)
def test_a_program_that_always_makes_the_same_collectives_is_replayed(
    ranks: jaxcluster.Cluster, steady: str
) -> None:
    ranks.run(STEADY[steady], show=False)
    pids = list(ranks.record.pids)
    error = fails(ranks, "if r != 1: s = ask()")
    assert isinstance(error, Divergence)
    assert "Back in lockstep" in error.hint
    assert ranks.record.pids == pids


# ------------------------------------------------------------------ what must not be run with zeros


@pytest.mark.parametrize(
    "body",
    [
        "jax.debug.print('{}', v.sum())",
        "jax.experimental.io_callback(lambda s: None, None, v.sum())",
        "jax.pure_callback(lambda s: s, jax.ShapeDtypeStruct((), v.dtype), v.sum())",
    ],
)
def test_a_program_that_calls_the_users_functions_is_not_run_with_zeros(
    ranks: jaxcluster.Cluster, body: str
) -> None:
    ranks.run(
        "import jax.experimental\n"
        f"def calling(v):\n    w = {body}\n    return v.sum() if w is None else w\n"
        "step = jax.jit(calling)\njax.block_until_ready(step(small)); jax.effects_barrier()",
        show=False,
    )
    error = fails(ranks, "if r != 1: s = step(small)")
    assert "New processes" in error.hint


def test_a_program_that_never_ends_with_zeros_is_given_up(ranks: jaxcluster.Cluster) -> None:
    """Its loop has no collective, so it may be tried; what it would do with zeros nobody knows."""
    ranks.run(
        "step = mapped(lambda v: lax.psum(lax.while_loop(lambda x: x < 1e9, lambda x: x * 2,"
        " v.sum()), 'i'), P('i'))\nprint(float(step(small)))",
        show=False,
    )
    error = fails(ranks, "if r != 1: s = step(small)")
    assert "New processes" in error.hint


def test_mixed_programs_that_sent_to_each_other_in_another_way_have_not_completed(
    ranks: jaxcluster.Cluster,
) -> None:
    ranks.run(
        "n = jax.device_count()\n"
        "def moved(pairs):\n"
        "    return jax.jit(jax.shard_map(lambda v: lax.ppermute(v, 'i', pairs), mesh=mesh,"
        " in_specs=P('i'), out_specs=P('i'), check_vma=False))\n"
        "right = moved([(i, (i + 1) % n) for i in range(n)])\n"
        "left = moved([(i, (i - 1) % n) for i in range(n)])\n"
        "ring = spread(np.arange(float(n)))\n"
        "jax.block_until_ready([right(ring), left(ring)])",
        show=False,
    )
    error = fails(ranks, "jax.block_until_ready((right if r % 2 else left)(ring))")
    assert isinstance(error, Divergence)
    assert "New processes" in error.hint
    shown = "print([float(s.data[0]) for s in right(ring).addressable_shards][0])"
    record = ranks.run("n = jax.device_count()\n" + shown, timeout_s=TOLD_WITHIN_S, show=False)
    n = 4 * len(ranks.record.devices[0].devices)
    first = [rank * n // 4 for rank in range(4)]
    assert [float(record.stdout(rank)) for rank in range(4)] == [(i - 1) % n for i in first]


def test_programs_of_sets_that_overlap_in_another_order_are_found(
    ranks: jaxcluster.Cluster,
) -> None:
    """They meet in the two ranks' communicator, so each gets the other's numbers."""
    ranks.run(
        "n = jax.device_count()\n"
        "grid = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, n // 2), ('a', 'b'))\n"
        "part = jax.sharding.Mesh(np.array(jax.devices()[: n // 2]), ('b',))\n"
        "rows = spread(np.arange(2.0 * n).reshape(4, n // 2), NamedSharding(grid, P('a', 'b')))\n"
        "of_all = jax.jit(jax.shard_map(lambda v: lax.psum(v, 'b'), mesh=grid,"
        " in_specs=P('a', 'b'), out_specs=P('a', None)))\n"
        "if r < 2:\n"
        "    own = spread(np.full((2, n // 2), 1000.0), NamedSharding(part, P(None, 'b')))\n"
        "    of_two = jax.jit(jax.shard_map(lambda v: lax.psum(v, 'b'), mesh=part,"
        " in_specs=P(None, 'b'), out_specs=P(None, None)))\n"
        "    jax.block_until_ready(of_two(own))\n"
        "jax.block_until_ready(of_all(rows))",
        show=False,
    )
    error = fails(
        ranks,
        "if r == 1: two = of_two(own); every = of_all(rows)\n"
        "else:\n"
        "    every = of_all(rows)\n"
        "    if r == 0: two = of_two(own)\n"
        "jax.block_until_ready(every)",
    )
    assert isinstance(error, Divergence)
    assert "The ranks launched programs of ranks 0, 1 and of ranks 0-3 in different orders" in str(
        error
    )
    assert "New processes" in error.hint


# ------------------------------------------------------------------ the check

FORGE = """
from dataclasses import replace
from jaxcluster.engine.app import JaxEngine
control = JaxEngine.instance().rank.control
_, check = control.handlers["self_check"]
def forged(request):
    {body}
    return answer
if r == 2: control.handlers["self_check"] = "main", forged
"""


def forge(cluster: jaxcluster.Cluster, body: str) -> None:
    """Give rank 2 another part in the check, until its process is replaced."""
    cluster.run(FORGE.format(body=body), show=False)


WRONG = "answer = replace(check(request), right=False, why='came out wrong')"


@pytest.mark.promise("Replay")
def test_a_check_that_is_wrong_on_one_rank_means_new_processes(ranks: jaxcluster.Cluster) -> None:
    forge(ranks, WRONG)
    error = fails(ranks, "if r != 1: s = jnp.sum(small)")
    assert "a sum over all devices came out wrong on rank 2." in error.hint
    assert "New processes" in error.hint
    assert "Back in lockstep" not in error.hint


def test_a_number_left_over_in_one_rank_is_seen_by_all(ranks: jaxcluster.Cluster) -> None:
    forge(
        ranks,
        "request.body = replace(request.body, number=request.body.number + 1)\n"
        "    answer = check(request)",
    )
    error = fails(ranks, "if r != 1: s = jnp.sum(small)")
    assert "a sum over all devices came out wrong on" in error.hint
    assert "New processes" in error.hint


def test_a_check_that_does_not_end_means_new_processes(ranks: jaxcluster.Cluster) -> None:
    forge(ranks, "time.sleep(1000)")
    error = fails(ranks, "if r != 1: s = jnp.sum(small)")
    assert "did not end within 1 s on rank" in error.hint
    assert "New processes" in error.hint


def test_a_rank_that_computes_is_waited_for(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    forge(
        ranks,
        "end = time.monotonic() + 2.5\n"
        "    while time.monotonic() < end: pass\n"
        "    control.handlers['self_check'] = 'main', check; answer = check(request)",
    )
    error = fails(ranks, "if r != 1: s = jnp.sum(small)")
    assert "Back in lockstep" in error.hint
    assert ranks.record.pids == pids


def test_resync_checks_ranks_that_seem_to_be_in_lockstep(ranks: jaxcluster.Cluster) -> None:
    pids = list(ranks.record.pids)
    assert "Back in lockstep" in ranks.resync()
    assert ranks.record.pids == pids
    forge(ranks, WRONG)
    assert "New processes" in ranks.resync()
    check_whole(ranks)


def test_mixed_programs_are_checked_too(ranks: jaxcluster.Cluster) -> None:
    mixed = "if r == 1: print(float(jnp.max(small)))\nelse: print(float(jnp.sum(small)))"
    pids = list(ranks.record.pids)
    assert "All of them have completed" in fails(ranks, mixed).hint
    assert ranks.record.pids == pids
    forge(ranks, WRONG)
    assert "New processes" in fails(ranks, mixed).hint


def test_ranks_that_a_stop_took_out_of_a_wait_are_checked(ranks: jaxcluster.Cluster) -> None:
    """All counts are even: rank 3 sleeps only after its launch."""
    source = "s = jnp.sum(small)\nif r == 3: time.sleep(60)\nwhile r != 3: time.sleep(0.01)"
    for body, said in (("answer = check(request)", ""), (WRONG, "New processes")):
        forge(ranks, body)
        cell = ranks.submit(source)
        until(lambda: all(s.launches != {} for s in ranks.status()), "the cell runs")
        cell.stop()
        with pytest.raises(CellInterrupted) as caught:
            cell.wait()
        assert said in str(caught.value)
        check_whole(ranks)


def test_a_launch_that_no_journal_knows_is_found(ranks: jaxcluster.Cluster) -> None:
    """It waits in a communicator of two ranks' own: no rank's count tells of it."""
    if len(ranks.record.devices[0].devices) == 1:
        pytest.skip("with one device it blocks the rank that makes it, so the cell never ends")
    ranks.run(
        "own = [d for d in jax.devices() if d.process_index in (2, 3)]\n"
        "part = jax.sharding.Mesh(np.array(own), ('i',))\n"
        "if r > 1:\n"
        "    v = jax.make_array_from_callback((8,), NamedSharding(part, P('i')),"
        " lambda index: np.arange(8.0)[index])\n"
        "    print(float(jnp.sum(v)))",
        show=False,
    )
    ranks.run(
        "from jaxcluster.engine.app import JaxEngine\n"
        "journal = JaxEngine.instance().rank.journal\n"
        "kept = lambda: (journal.counts, journal._crossings._pairs)\n"
        "before = [{k: type(c)(c) for k, c in held.items()} for held in kept()]\n"
        "if r == 2: unknown = jnp.sum(v)\n"
        "for held, old in zip(kept(), before):\n"
        "    held.update(old)\n"
        "for own in journal._own.values(): own.clear()",
        show=False,
    )
    error = fails(ranks, "if r != 1: s = jnp.sum(small)")
    assert "New processes" in error.hint


def test_every_communicator_between_processes_is_checked(ranks: jaxcluster.Cluster) -> None:
    ranks.run(
        "from jax.sharding import Mesh\n"
        "n = jax.device_count()\n"
        "for devices in (jax.devices(), jax.devices()[::-1]):\n"
        "    grid = Mesh(np.array(devices).reshape(2, n // 2), ('a', 'b'))\n"
        "    w = spread(np.arange(4.0 * n).reshape(4, n), NamedSharding(grid, P('a', 'b')))\n"
        "    jax.block_until_ready([jnp.sum(w), jnp.sum(w, 0), jnp.sum(w, 1)])",
        show=False,
    )
    n = 4 * len(ranks.record.devices[0].devices)
    prepared = ranks.world.ask([0], PrepareCheck(), timeout_s=TOLD_WITHIN_S)[0].body
    groups = [group for division in prepared for group in division]
    half = n // 2
    assert prepared[0] == [list(range(n))]
    assert list(range(half)) in groups
    assert [0, half] in groups
    assert [n - 1, half - 1] in groups  # the other mesh's order is another communicator
    there = (
        "from jaxcluster.engine.private import coordination\n"
        "print(len(coordination.communicators()))"
    )
    before = ranks.run(there, show=False).stdout()
    assert "Back in lockstep" in ranks.resync()
    assert ranks.run(there, show=False).stdout() == before


@pytest.mark.parametrize(
    ("on", "off"),
    [
        (f"jax.config.update('jax_{name}', {on!r})", f"jax.config.update('jax_{name}', {off!r})")
        for name, on, off in (
            ("disable_jit", True, False),
            ("enable_x64", True, False),
            ("transfer_guard", "disallow", "allow"),
            ("debug_nans", True, False),
        )
    ]
    + [
        (
            "grid = jax.set_mesh(jax.make_mesh((2, jax.device_count() // 2), ('p', 'q')))",
            "grid.__exit__(None, None, None)",
        )
    ],
    ids=["disable_jit", "enable_x64", "transfer_guard", "debug_nans", "set_mesh"],
)
def test_a_cells_settings_do_not_disturb_the_check(
    ranks: jaxcluster.Cluster, on: str, off: str
) -> None:
    pids = list(ranks.record.pids)
    ranks.run(on, show=False)
    try:
        assert "Back in lockstep" in ranks.resync()
        assert ranks.record.pids == pids
    finally:
        ranks.run(off, show=False)


def test_no_other_notebook_hands_out_a_cell_meanwhile(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = connect(ranks.record)
    shown: list[str] = []

    def run_there() -> None:
        record = other.run("print(float(jnp.sum(small)))", show=False)
        shown.extend(record.stdout(rank) for rank in range(4))

    thread = threading.Thread(target=run_there, daemon=True)
    verify = selfcheck.verify

    def while_another_tries(link: Link) -> selfcheck.Verdict:
        thread.start()
        thread.join(0.3)
        assert shown == []
        return verify(link)

    pids = list(ranks.record.pids)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(selfcheck, "verify", while_another_tries)
            assert "Back in lockstep" in fails(ranks, "if r != 1: s = jnp.sum(small)").hint
        thread.join(TOLD_WITHIN_S)
    finally:
        other.close()
    assert shown == ["120.0\n"] * 4
    assert ranks.record.pids == pids


def test_a_stop_during_the_check_lets_no_cell_run_before_it_is_made_up_for(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(link: Link) -> selfcheck.Verdict:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(selfcheck, "verify", stopped)
        with pytest.raises(KeyboardInterrupt):
            ranks.run("if r != 1: s = jnp.sum(small)", show=False)
    with pytest.raises(Divergence, match="have diverged, so no cell can run"):
        ranks.run("1", show=False)
    assert "The last cell is undone" in ranks.resync()  # its sum met zeros
    check_whole(ranks)


# ------------------------------------------------------------------ strict mode


def test_strict_mode_is_on_again_on_each_rank_after_a_replay(ranks: jaxcluster.Cluster) -> None:
    ranks.run("jnp.max(small), jnp.sum(small)", show=False)
    for culprit in range(4):
        ranks.strict(True)
        try:
            # The launch is made without being announced, or there would be nothing to replay.
            error = fails(
                ranks,
                "from jaxcluster.engine.app import JaxEngine\n"
                "journal = JaxEngine.instance().rank.journal\n"
                "announce, journal.before_launch = journal.before_launch, lambda program: None\n"
                f"try:\n    if r != {culprit}: s = jnp.sum(small)\n"
                "finally: journal.before_launch = announce",
            )
            assert f"rank {culprit} ran 1 skipped program" in error.hint
            for rank in range(4):
                mixed = f"t = jnp.max(small) if r == {rank} else jnp.sum(small)"
                error = fails(ranks, mixed)
                assert "launched none" in str(error)
        finally:
            ranks.strict(False)


# ------------------------------------------------------------------ once


def test_one_recovery_serves_all_cells_that_a_death_has_ended(
    ranks: jaxcluster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    respawn = jaxcluster.Cluster.respawn

    def counted(cluster: jaxcluster.Cluster, *args: object, **more: object) -> object:
        started.append(cluster)
        return respawn(cluster, *args, **more)

    cells = [ranks.submit("time.sleep(60)") for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(jaxcluster.Cluster, "respawn", counted)
        for cell in cells:
            cell.run_in_background(lambda record: None)
        send_signal(ranks, 3)
        for cell in cells:
            with pytest.raises(JaxClusterError):
                cell.wait()
        ranks.run(SETUP, show=False)  # what the dead rank alone had is lost
        check_whole(ranks)
    assert len(started) == 1
