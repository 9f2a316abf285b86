"""A start in pods, against a bare Job of the same image whose pods initialize JAX by themselves.

The cluster is the tests' own (``tests/rig``): its nodes are namespaces of this machine, its API
server is a stand-in that schedules at once. So what is measured is what a start adds to what the
scheduler takes, and not Kubernetes. Root and ``jaxcluster[kubernetes]`` are needed.

Each round runs all sides in turn, cold, each in a process of its own: from the Job's creation (for
jaxcluster: from the call of ``start``) until the result of a sum over all processes is there.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMAGE = "bench"
BOUND_S = 2.0
SUM = """\
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((jax.device_count(),), ("i",))
x = jax.make_array_from_callback(
    (8,), NamedSharding(mesh, P("i")), lambda at: np.arange(*at[0].indices(8)[:2], dtype="i4"))
print("RESULT", int(jnp.sum(x)), flush=True)
"""
BARE = """\
import os, jax
jax.distributed.initialize({address!r}, {pods}, int(os.environ["JOB_COMPLETION_INDEX"]),
                           cluster_detection_method="deactivate")
"""
SIDES = ("bare Job", "in the cluster", "by port-forward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of all sides (%(default)s)")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print("=" + json.dumps(measure_bare() if args.inside == SIDES[0] else measure(args.inside)))
        return
    show(run_all(args.rounds))


# --------------------------------------------------------------------------- on the rig


def run_all(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by side."""
    sys.path.insert(0, str(ROOT / "tests"))
    from rig import Rig
    from rig.kube import Kube, listener_on, node_on

    found: dict[str, list[float]] = {side: [] for side in SIDES}
    with Rig() as rig:
        python = {"PATH": f"{Path(rig.python).parent}:/usr/bin:/bin", "HOME": "/mnt"}
        image = {**python, "LANG": "C.UTF-8", "JAX_PLATFORMS": "cpu"}
        nodes = [node_on(rig[name]) for name in ("h1", "h2")]
        kube = Kube(
            listener_on(rig["h0"]), nodes, {IMAGE: {**image, "JAXCLUSTER_RUNTIME_DIR": "/mnt"}}
        )
        rig["h0"].write("~/.kube/config", kube.kubeconfig())
        env = {"JAX_PLATFORMS": "cpu", "BENCH_URL": kube.url, "BENCH_FIRST": nodes[0].address}
        env |= {"BENCH_TOKEN": kube.token, "PYTHONPATH": str(ROOT)}
        try:
            for number in range(rounds + 1):  # the first reads files into the page cache
                for side in SIDES:
                    command = (rig.python, Path(__file__).resolve(), "--inside", side)
                    done = rig["h0"].run(*command, env=env, check=False, timeout_s=300)
                    line = next((s for s in done.stdout.splitlines() if s.startswith("=")), "")
                    if not line:
                        sys.exit(f"{side}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
                    print(f"round {number}, {side}: {line[1:]} s", file=sys.stderr, flush=True)
                    if number:
                        found[side].append(float(line[1:]))
                    while kube.all("pods"):
                        time.sleep(0.05)
        finally:
            kube.close()
    return found


def show(found: dict[str, list[float]]) -> None:
    from harness import table

    base = statistics.median(found[SIDES[0]])
    rows = []
    for side, values in found.items():
        more = statistics.median(values) - base
        told = "" if side == SIDES[0] else f"{more:+.2f} {'ok' if more <= BOUND_S else 'MISSED'}"
        rows.append([side, f"{statistics.median(values):.2f}", f"{min(values):.2f}", told])
    table(["2 pods, a process each, s", "median", "best", f"more (<= {BOUND_S:g})"], rows)
    print(f"{os.cpu_count()} CPUs; load average (1 min): {os.getloadavg()[0]:.1f} at the end")


# --------------------------------------------------------------------------- on h0


def ask(method: str, path: str, body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {os.environ['BENCH_TOKEN']}"}
    request = urllib.request.Request(os.environ["BENCH_URL"] + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def measure_bare() -> float:
    """A Job as one writes it by hand, and its first pod's log read until the sum is in it."""
    name, jobs = f"bare-{os.getpid()}", "/apis/batch/v1/namespaces/team-a/jobs"
    port = 40000 + os.getpid() % 10000
    source = BARE.format(address=f"{os.environ['BENCH_FIRST']}:{port}", pods=2) + SUM
    container = {"name": "jaxcluster", "image": IMAGE, "command": ["python3", "-c", source]}
    template = {
        "metadata": {"labels": {"bare": name}},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    spec = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    pods = "/api/v1/namespaces/team-a/pods"
    began = time.perf_counter()
    ask("POST", jobs, job)
    try:
        while True:
            listed = json.loads(ask("GET", f"{pods}?labelSelector=bare%3D{name}"))["items"]
            logs = [ask("GET", f"{pods}/{one['metadata']['name']}/log") for one in listed]
            if any(b"RESULT 28" in log for log in logs):
                return time.perf_counter() - began
            if time.perf_counter() > began + 60:
                sys.exit(f"the bare Job gives no result: {listed} {logs}")
            time.sleep(0.02)
    finally:
        ask("DELETE", f"{jobs}/{name}", {})


def measure(side: str) -> float:
    import jaxcluster

    direct = {"direct": True} if side == "in the cluster" else {}
    began = time.perf_counter()
    cluster = jaxcluster.start(
        launcher="kubernetes", image=IMAGE, pods=2, ranks_per_pod=1, **direct
    )
    try:
        cluster.run(SUM, show=False)
        seconds = time.perf_counter() - began
        assert "RESULT 28" in cluster.last.stdout(0)
    finally:
        cluster.stop()
    return seconds


if __name__ == "__main__":
    main()
