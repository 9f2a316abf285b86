"""Two hosts, 4 ranks: the launchers side by side, and stock ipyparallel's ssh launcher beside them.

The hosts are namespaces of this machine (``tests/rig``): root, sshd and, for Slurm, slurmctld and
slurmd are needed. Each round starts a cluster with every launcher in turn, all of them cold: the
local fork server is ended before, as other hosts have none. All of them share this machine's cores,
so a launcher that works on two hosts has no more of them than the local one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOSTS = "h1:2,h2:2"
OPTIONS: dict[str, dict[str, Any]] = {
    "local": {},
    "ssh": {"hosts": HOSTS},
    "ssh direct": {"hosts": HOSTS, "direct": True},
    "slurm": {"nodes": 2, "ntasks_per_node": 2},
}
FIRST = """\
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
def sharded(n):
    return jax.make_array_from_callback(
        (n,), NamedSharding(mesh, P("i")), lambda at: np.arange(*at[0].indices(n)[:2], dtype="i4"))
x = sharded(8)
assert int(jnp.sum(x)) == 28
"""
PULLED, PUSHED = 256 << 20, 64 << 20
NOOPS = 60

# What is measured, in which unit, and its bar: (how it is told, whether the figures meet it).
Figures = dict[str, dict[str, float]]
ROWS: dict[str, tuple[str, str, Callable[[dict[str, float], str], bool | None]]] = {
    "start to first result": (
        "s",
        "ssh <= local + 2, <= ipyparallel / 4; slurm <= ssh + 2",
        lambda f, k: {
            "ssh": f["ssh"] <= f["local"] + 2
            and ("ipyparallel" not in f or f["ssh"] <= f["ipyparallel"] / 4),
            "slurm": f["slurm"] <= f["ssh"] + 2 if "slurm" in f and "ssh" in f else None,
        }.get(k),
    ),
    "no-op cell": ("ms", "local + 3", lambda f, _: f["of hosts"] <= f["local"] + 3),
    "pull of 256 MiB": ("MB/s", ">= 250, aim 400", lambda f, _: f["of hosts"] >= 250),
    "push of 64 MiB to one rank per host": ("s", "", lambda f, _: None),
    "push of 64 MiB to 4 ranks": (
        "s",
        "<= 2 x to one rank per host",
        lambda f, _: f["of hosts"] <= 2 * f["one"],
    ),
    "restart with values": ("s", "<= 1.5", lambda f, _: f["of hosts"] <= 1.5),
    "a dead rank replaced": ("s", "<= 1.5", lambda f, _: f["of hosts"] <= 1.5),
    "stop": ("s", "", lambda f, _: None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of all launchers (%(default)s)")
    parser.add_argument("--launchers", default="local,ssh,slurm,ipyparallel", help="%(default)s")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        one = measure_stock if args.inside == "ipyparallel" else measure
        print("=" + json.dumps(one(args.inside)))
        return
    show(run_all(args.launchers.split(","), args.rounds))


# --------------------------------------------------------------------------- on the rig


def run_all(launchers: Sequence[str], rounds: int) -> Figures:
    """Medians by row and launcher; every launcher in a process of its own on h0."""
    sys.path.insert(0, str(ROOT / "tests"))
    from rig import Missing, Rig, start_slurm, start_ssh

    found: dict[str, dict[str, list[float]]] = {}
    load = os.getloadavg()[0]
    with Rig() as rig:
        start_ssh(rig)
        if "slurm" in launchers:
            try:
                start_slurm(rig)
            except Missing as missing:
                print(f"without Slurm: {missing}", file=sys.stderr)
                launchers = [one for one in launchers if one != "slurm"]
        env = {"JAX_PLATFORMS": "cpu", "JAXCLUSTER_SHARED_DIR": str(rig.shared)}
        env |= {"BENCH_ADDRESS": rig["h0"].address, "BENCH_SSH": rig.ssh_config}
        for number in range(rounds):
            for launcher in launchers:
                command = (rig.python, Path(__file__).resolve(), "--inside", launcher)
                done = rig["h0"].run(*command, env=env, check=False, timeout_s=300)
                line = next((s for s in done.stdout.splitlines() if s.startswith("=")), "")
                if not line:
                    sys.exit(f"{launcher}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
                print(f"round {number + 1}, {launcher}: {line[1:]}", file=sys.stderr, flush=True)
                for row, value in json.loads(line[1:]).items():
                    found.setdefault(row, {}).setdefault(launcher, []).append(value)
    print(
        f"{os.cpu_count()} CPUs, {rounds} rounds; load average (1 min): {load:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after"
    )
    return {
        row: {launcher: statistics.median(values) for launcher, values in by.items()}
        for row, by in found.items()
    }


def show(figures: Figures) -> None:
    """The table, each figure of other hosts with whether it meets its bar."""
    from harness import table

    launchers = list(dict.fromkeys(name for by in figures.values() for name in by))
    rows = []
    for name, (unit, bar, meets) in ROWS.items():
        by = figures.get(name, {})
        cells = []
        for launcher in launchers:
            if launcher not in by:
                cells.append("")
                continue
            text = f"{by[launcher]:.0f}" if unit == "MB/s" else f"{by[launcher]:.2f}"
            if launcher not in ("local", "ipyparallel"):
                one = figures.get("push of 64 MiB to one rank per host", {}).get(launcher, 0.0)
                with contextlib.suppress(KeyError):
                    met = meets({**by, "of hosts": by[launcher], "one": one}, launcher)
                    text += "" if met is None else " ok" if met else " MISSED"
            cells.append(text)
        rows.append([f"{name}, {unit}", *cells, bar])
    table(["two hosts, 4 ranks", *launchers, "bar"], rows)


# --------------------------------------------------------------------------- on h0


def timed(do: Callable[[], Any]) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def measure(name: str) -> dict[str, float]:
    """One cluster's life."""
    import numpy as np

    import jaxcluster
    from jaxcluster.errors import RankDied

    launcher = name.partition(" ")[0]
    found: dict[str, float] = {}
    began = time.perf_counter()
    cluster = jaxcluster.start(4, launcher=launcher, **OPTIONS[name])
    try:
        cluster.run(FIRST, show=False)
        found["start to first result"] = time.perf_counter() - began
        noops = [timed(lambda: cluster.run("pass", show=False)) for _ in range(NOOPS)]
        found["no-op cell"] = statistics.median(noops) * 1e3
        cluster.run(f"big = sharded({PULLED // 4}).block_until_ready()", show=False)
        pulls = [timed(lambda: cluster["big"]) for _ in range(3)]
        found["pull of 256 MiB"] = PULLED / 1e6 / min(pulls)
        assert (cluster["big"] == np.arange(PULLED // 4, dtype=np.int32)).all()
        cluster.run("del big", show=False)
        value = np.random.default_rng(0).integers(0, 255, PUSHED, dtype=np.uint8)
        to_two, to_all = [], []
        for _ in range(3):
            to_two.append(timed(lambda: cluster.push({"v": value}, [0, 2])))
            to_all.append(timed(lambda: cluster.push({"v": value})))
        found["push of 64 MiB to one rank per host"] = min(to_two)
        found["push of 64 MiB to 4 ranks"] = min(to_all)
        cluster.run(f"assert int(v.sum()) == {int(value.sum())}\ndel v\nkept = 5", show=False)

        def restart() -> None:
            cluster.restart()
            cluster.run("assert kept == 5 and int(jnp.sum(x)) == 28", show=False)

        found["restart with values"] = timed(restart)

        def replace() -> None:
            with contextlib.suppress(RankDied):
                cluster.run("import os; os.kill(os.getpid(), 9)", ranks=[3], show=False)
            cluster.run("assert jax.process_count() == 4", show=False)

        found["a dead rank replaced"] = timed(replace)
    finally:
        found["stop"] = timed(cluster.stop)
    return found


STOCK_FIRST = """\
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_platforms", "cpu")
jax.distributed.initialize({address!r}, 4, r, cluster_detection_method="deactivate")
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("i",))
x = jax.make_array_from_callback(
    (8,), NamedSharding(mesh, P("i")), lambda at: np.arange(8, dtype="i4")[at])
s = int(jnp.sum(x))
"""


def measure_stock(name: str) -> dict[str, float]:
    """The same with what ipyparallel has: engines by ssh, JAX initialized by hand."""
    import ipyparallel
    import numpy as np
    from traitlets.config import Config

    address = os.environ["BENCH_ADDRESS"]
    config = Config()
    config.SSHEngineSetLauncher.engines = {"h1": 2, "h2": 2}
    for kind in ("SSHEngineSetLauncher", "SSHEngineLauncher"):
        config[kind].ssh_args = config[kind].scp_args = ["-F", os.environ["BENCH_SSH"]]
        config[kind].remote_python = sys.executable
    found: dict[str, float] = {}
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(
        engines="ssh",
        n=4,
        config=config,
        controller_ip=address,
        controller_location=address,
        log_level=40,
    )
    client = cluster.start_and_connect_sync(n=4)
    try:
        view = client[:]
        hosts = view.apply_sync(lambda: __import__("socket").gethostname())
        order = sorted(range(4), key=lambda engine: (hosts[engine], engine))
        for rank, engine in enumerate(order):
            client[engine].push({"r": rank}, block=True)
        view.execute(STOCK_FIRST.format(address=f"{hosts[order[0]]}:45671"), block=True)
        assert view["s"] == [28] * 4
        found["start to first result"] = time.perf_counter() - began
        noops = [timed(lambda: view.execute("pass", block=True)) for _ in range(NOOPS)]
        found["no-op cell"] = statistics.median(noops) * 1e3
        view.execute(f"part = np.arange({PULLED // 16}, dtype='i4')", block=True)
        pulls = [timed(lambda: np.concatenate(view.pull("part", block=True))) for _ in range(2)]
        found["pull of 256 MiB"] = PULLED / 1e6 / min(pulls)
        value = np.random.default_rng(0).integers(0, 255, PUSHED, dtype=np.uint8)
        two = client[[order[0], order[2]]]
        found["push of 64 MiB to one rank per host"] = timed(
            lambda: two.push({"v": value}, block=True)
        )
        found["push of 64 MiB to 4 ranks"] = timed(lambda: view.push({"v": value}, block=True))
    finally:
        found["stop"] = timed(cluster.stop_cluster_sync)
    return found


if __name__ == "__main__":
    with contextlib.suppress(subprocess.TimeoutExpired):
        main()
