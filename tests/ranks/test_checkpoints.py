"""Variables saved under a name come back, in this cluster or a later one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import until
from jaxcluster.engine.state.saved import read, state_path, write

import jaxcluster
from jaxcluster.cluster import checkpoints
from jaxcluster.errors import CellInterrupted, RankDied, RecoveryError, UsageError

SETUP = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
g = jax.make_array_from_callback(
    (16,), NamedSharding(mesh, P("i")), lambda index: np.arange(16.0)[index])
params = {"w": g, "step": 7}
lines = (line for line in "abc")
"""
CHECK = "print(float(jnp.sum(params['w'])), params['step'], params['w'] is g)"


def test_a_checkpoint_comes_back_in_a_later_cluster(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    first = start(2, name="first")
    first.run(SETUP)
    line = first.checkpoint("epoch-1", tmp_path)
    assert "variables of 2 ranks" in line
    assert "Not saved: lines (a generator" in line
    first.stop()
    second = start(2, name="second")
    assert "Restored" in second.restore("epoch-1", tmp_path)
    record = second.run(CHECK, show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["120.0 7 True\n"] * 2
    with pytest.raises(UsageError) as caught:
        second.restore("epoch-2", tmp_path)
    assert "There are: epoch-1." in str(caught.value)


def test_a_checkpoint_has_no_moment_of_a_cell_that_runs(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    """Each rank would be at another one, and none would tell."""
    pair.run("import time, jax\nn, rank = 0, jax.process_index()\nseen = []", show=False)
    cell = pair.submit(
        "for _ in range(20):\n    n += 1; time.sleep(0.02 * (1 + rank)); seen.append(n)"
    )
    pair.checkpoint("c", tmp_path)
    cell.wait()
    pair.run("n = seen = None", show=False)
    pair.restore("c", tmp_path)
    told = pair.run("print(n, len(seen))", show=False)
    assert [told.stdout(rank) for rank in range(2)] == ["20 20\n"] * 2


def test_a_state_of_another_jax_or_python_is_refused(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    cluster = start(2, name="versions")
    cluster.run("mine = 1")
    cluster.checkpoint("c", tmp_path)
    path = state_path(tmp_path / "c", 1)
    saved = read(path)
    other = f"9{saved.versions['jax'][1:]}"
    saved.versions["jax"] = other
    write(saved, path)
    with pytest.raises(RecoveryError, match=f"it was saved with .*jax {other}, which this cluster"):
        cluster.restore("c", tmp_path)


# --------------------------------------------------------------------------- all ranks or none

# ``Slow`` waits where it is unpickled, as long as there is a file.
BOUND = """
import jax, os, time
from pathlib import Path
import jax.numpy as jnp
r, lr, only = jax.process_index(), 0.5, "old"
jax.config.update("jax_debug_nans", True)
class Slow:
    def __init__(self, gate): self.gate = gate
    def __setstate__(self, state):
        self.__dict__ = state
        Path(f"{self.gate}.{r}").touch()
        while Path(self.gate).exists(): time.sleep(0.01)
slow = Slow(GATE)
wide = jnp.arange(3)
"""
CHANGED = "lr, new, wide = 5.0, 1, 2; jax.config.update('jax_debug_nans', False)"
SEEN = "print(lr, 'new' in globals(), jax.config.jax_debug_nans, wide, r)"
OLD, NEW = "0.5 False True [0 1 2] {}\n", "5.0 True False 2 {}\n"


def seen(cluster: jaxcluster.Cluster) -> list[str]:
    record = cluster.run(SEEN, show=False)
    return [record.stdout(rank) for rank in range(cluster.num_processes)]


def all_are(cluster: jaxcluster.Cluster, line: str) -> bool:
    shown = seen(cluster)
    assert shown == [line.format(rank) for rank in range(cluster.num_processes)]
    return True


@pytest.fixture
def saved(start: Callable[..., jaxcluster.Cluster], tmp_path: Path) -> jaxcluster.Cluster:
    """A cluster whose variables are others than those that it has saved as ``c``."""
    cluster = start(2, name="both")
    cluster.run(BOUND.replace("GATE", repr(str(tmp_path / "gate"))), show=False)
    cluster.checkpoint("c", tmp_path)
    cluster.run(CHANGED, show=False)
    return cluster


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def writable(path: Path) -> None:
    path.chmod(0o620)


def in_a_folder_of_all(path: Path) -> None:
    path.parent.chmod(0o777)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def anothers(path: Path) -> None:
    os.chown(path, 12345, -1)


FAULTS = {
    missing: "can't be read: No such file",
    cut: "is truncated",
    flipped: "is damaged",
    writable: "other users can write to .*rank-1.state.*chmod go-w",
    in_a_folder_of_all: "other users can write to .*/c.*chmod go-w",
    a_pipe: "is not a file",
    **({anothers: "rank-1.state belongs to another user"} if os.getuid() == 0 else {}),
}


@pytest.mark.promise("Checkpoints")
def test_what_one_rank_can_not_restore_none_does(saved: jaxcluster.Cluster, tmp_path: Path) -> None:
    path = state_path(tmp_path / "c", 1)
    data = path.read_bytes()
    for fault, why in FAULTS.items():
        fault(path)
        with pytest.raises(RecoveryError, match=why) as caught:
            saved.restore("c", tmp_path)
        assert "Nothing was restored: all ranks keep the variables they have." in caught.value.hint
        assert all_are(saved, NEW), fault
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
    assert "Restored" in saved.restore("c", tmp_path)
    assert all_are(saved, OLD.replace("False", "True"))  # new is not in it, and stays


def test_a_rank_that_dies_before_all_have_read_it_leaves_the_others_as_they_were(
    saved: jaxcluster.Cluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    first, pid = saved.record.pids

    def kill() -> None:
        until(lambda: Path(f"{gate}.1").exists(), "rank 1 reads it", 20)
        os.kill(pid, signal.SIGKILL)
        # Rank 0 is saved while it still reads, under the checkpoint's settings.
        until(lambda: not Path(f"/proc/{first}").exists(), "end of rank 0's old process", 60)
        gate.unlink()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(RankDied) as caught:
        saved.restore("c", tmp_path)
    assert "Nothing was restored" in caught.value.hint
    with pytest.raises(RankDied):  # and gets a new process
        saved.run("pass", show=False)
    thread.join()
    assert all_are(saved, NEW.replace("[0 1 2]", "2"))
    collects = saved.run("import gc; print(gc.isenabled())", show=False)
    assert [collects.stdout(rank) for rank in (0, 1)] == ["True\n"] * 2


def test_a_rank_that_dies_while_all_bind_it_gets_no_value_that_nobody_knows_of(
    saved: jaxcluster.Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = checkpoints._bind

    def kill(*args: Any) -> Any:
        os.kill(saved.record.pids[1], signal.SIGKILL)
        until(lambda: 1 in saved.dead, "word of the death", 5)
        return bind(*args)

    monkeypatch.setattr(checkpoints, "_bind", kill)
    with pytest.raises(RankDied) as caught:
        saved.restore("c", tmp_path)
    assert "The other ranks have restored it. %jaxcluster restore" in caught.value.hint
    with pytest.raises(RankDied) as caught:
        saved.run("pass", show=False)
    record = saved.run("print('lr' in globals(), 'wide' in globals(), r)", show=False)
    assert [record.stdout(rank) for rank in range(2)] == ["False False 0\n", "False False 1\n"]
    assert "lr (each rank had its own, and one rank died)" in str(caught.value)


def test_stop_while_it_is_read_restores_nothing(saved: jaxcluster.Cluster, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()

    def stop() -> None:
        until(lambda: Path(f"{gate}.1").exists(), "rank 1 reads it", 20)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(CellInterrupted, match=r"^Stopped\. Nothing was restored: all ranks keep"):
        saved.restore("c", tmp_path)
    thread.join()
    gate.unlink()
    assert all_are(saved, NEW)


def test_stop_while_it_is_bound_says_that_it_can_not_be_stopped(
    saved: jaxcluster.Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bind = checkpoints._bind

    def stop(*asked: Any) -> Any:
        asked[-1].append(None)
        return bind(*asked)

    monkeypatch.setattr(checkpoints, "_bind", stop)
    assert "Restored" in saved.restore("c", tmp_path)
    assert "That can't be stopped" in capsys.readouterr().err
    assert all_are(saved, OLD.replace("False", "True"))


def test_a_checkpoint_is_for_its_owner_alone_whatever_the_umask(
    start: Callable[..., jaxcluster.Cluster], tmp_path: Path
) -> None:
    cluster = start(1, name="umask")
    cluster.run("x = 1", show=False)
    before = os.umask(0o002)
    try:
        for _ in range(2):
            cluster.checkpoint("c", tmp_path / "deep" / "er")
    finally:
        os.umask(before)
    assert "Restored 1" in cluster.restore("c", tmp_path / "deep" / "er")
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["c"]


def test_a_cluster_has_its_checkpoints_and_undo_in_python(
    pair: jaxcluster.Cluster, tmp_path: Path
) -> None:
    pair.run("level = 1")
    assert f"in {tmp_path}/before." in pair.checkpoint("before", tmp_path)
    pair.run("level = 2")
    assert "level" in pair.undo()
    pair.run("level = 3")
    assert "Restored" in pair.restore("before", tmp_path)
    assert pair["level"] == 1
    assert "in lockstep" in pair.resync()
    with pytest.raises(UsageError, match="There is no checkpoint 'after'"):
        pair.restore("after", tmp_path)
