"""Whether copies bring back all variables, bit for bit, whatever is killed in the middle of a cell.

Parameters that are replicated (DP) and cut over two axes (FSDP x TP), optax's states, PRNG keys,
values of each rank's own, views, a donated KV cache and a memo. Each round a random cell changes
some of that, and digests all names of each rank: shardings, types, aliases and numbers. After a
random time, or at once, another cell changes them again. In it, as soon as it runs or a little
later, a rank, several, or with ``--hosts`` a host with its agent is killed. Then all must be what
the first of the two had left.

With ``--hosts`` the ranks are on two hosts that are namespaces of this machine (``tests/rig``: root
and sshd). Without it: ``nice python benchmarks/bench_kills.py``.

What is not whole must be named as lost where the kill came before the copy of the last cell was
there. What is neither is counted as silent: there must be none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness import sandbox, table

import jaxcluster
from jaxcluster.errors import JaxClusterError, RankDied
from jaxcluster.wire.ops.state import Kept

ROOT = Path(__file__).parents[1]
SETUP = """
import functools, os, time, optax
from jax.sharding import NamedSharding, PartitionSpec as P
auto = (jax.sharding.AxisType.Auto,) * 2
mesh = jax.make_mesh((2, 2), ("fsdp", "tp"), axis_types=auto)
r = jax.process_index()
def put(values, *spec):
    where = NamedSharding(mesh, P(*spec))
    return jax.make_array_from_callback(values.shape, where, lambda at: values[at])
draw = np.random.default_rng(0).normal
dp = {"w": put(draw(size=(64, 64)).astype("f4")), "b": put(np.zeros(64, "f4"))}
cut = {"w": put(draw(size=(256, 128)).astype("f4"), "fsdp", "tp"),
       "v": put(draw(size=(128, 64)).astype("f4"), "tp", "fsdp"),
       "h": put(draw(size=(64, 16)).astype(jnp.bfloat16), ("fsdp", "tp"))}
adam = optax.adam(1e-2)
dp_state, cut_state = adam.init(dp), adam.init(cut)
@functools.partial(jax.jit, donate_argnums=(0, 1))
def train(params, state, key):
    grads = jax.tree.map(lambda p: p * 0.1 + jax.random.normal(key, p.shape, p.dtype), params)
    updates, state = adam.update(grads, state, params)
    return optax.apply_updates(params, updates), state
key = jax.random.key(7)
own_key, raw_key = jax.random.fold_in(key, r), jax.random.PRNGKey(r)
kv = put(np.zeros((8, 32, 16), "f4"), None, "tp")
fill = jax.jit(lambda kv, n: kv.at[n % 8].set(n), donate_argnums=0)
memo, own, count = {}, [r, {"of": r}], 0
rng, py_rng = np.random.default_rng(r), random.Random(r)
view = np.full((8, 8), float(r))
row, alias, same = view[1], cut, own
local = jnp.arange(5.0) * r
"""
DIGEST = """
import hashlib, itertools, json, random, jax, jax.numpy as jnp, numpy as np
def _numbers(x):
    x = jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    return [(str(s.index), np.asarray(s.data).tobytes()) for s in x.addressable_shards]
def _told(x, seen):
    if isinstance(x, jax.Array):
        at = seen.setdefault(id(x), len(seen))
        return at, str(x.dtype), str(x.sharding), x.is_fully_addressable, _numbers(x)
    if isinstance(x, np.ndarray):
        at = seen.setdefault(id(x), len(seen))
        is_view = isinstance(x.base, np.ndarray)
        base = seen.setdefault(id(x.base), len(seen)) if is_view else None
        return at, base, str(x.dtype), x.strides, x.tobytes()
    if isinstance(x, (dict, list)):
        if id(x) in seen:
            return seen[id(x)]
        at = seen[id(x)] = len(seen)
        items = sorted(x.items(), key=repr) if isinstance(x, dict) else enumerate(x)
        return at, type(x).__name__, [(k, _told(v, seen)) for k, v in items]
    if isinstance(x, tuple):
        return type(x).__name__, [_told(v, seen) for v in x]
    if isinstance(x, np.random.Generator):
        return x.bit_generator.state
    if isinstance(x, random.Random):
        return x.getstate()
    return type(x).__name__, repr(x)
def digest():
    space, told, met = globals(), {}, {}
    for name in sorted(NAMES | {n for n in space if n.startswith("new_")}):
        seen = met[name] = {}
        told[name] = _told(space[name], seen) if name in space else "absent"
    for a, b in itertools.combinations(sorted(met), 2):
        if both := met[a].keys() & met[b].keys():
            told[f"{a} & {b}"] = sorted((met[a][one], met[b][one]) for one in both)
    return {n: hashlib.sha256(repr(t).encode()).hexdigest()[:16] for n, t in told.items()}
NAMES = {"dp", "cut", "dp_state", "cut_state", "key", "own_key", "raw_key", "kv", "memo", "own",
         "count", "rng", "py_rng", "view", "row", "alias", "same", "local", "r"}
"""
TELL = "\nprint(json.dumps(digest()))"
CHANGES = [
    "key, sub = jax.random.split(key); dp, dp_state = train(dp, dp_state, sub)",
    "key, sub = jax.random.split(key); cut, cut_state = train(cut, cut_state, sub); alias = cut",
    "kv = fill(kv, count); count += 1",
    "own.append(py_rng.random()); same = own",
    "view[:] = rng.normal(size=(8, 8)); row[0] += 1",
    "memo[len(memo)] = jnp.sum(kv) + len(memo); memo['text'] = 'x' * rng.integers(99)",
    "own_key, raw_key = jax.random.split(own_key)[0], jax.random.split(raw_key)[1]",
    "own = [r, list(own)[:2]]; same = own; local = local * 2 + r",
    "new_{n} = {{'mine': r, 'arrays': [local, dp['b'] + 0]}}",
    "globals().pop('new_{m}', None); memo.clear()",
    "alias, row = dict(cut), view[2]",
    "view = np.array(view); row = view[1]; local = jnp.arange(5.0) - r",
    "pass",
]
ALL_LOST = "all variables are lost"
WAITS = ("at once", "up to 1 s", "until copied")


@dataclass
class Kill:
    """One, and what has become of it."""

    victims: str
    wait: str
    lost: str = ""
    silent: list[str] = field(default_factory=list)
    back_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        return not self.lost and not self.silent


class Course:
    """A cluster of 4 ranks whose variables change, and who is killed."""

    def __init__(self, cluster: jaxcluster.Cluster, args: argparse.Namespace) -> None:
        self.cluster, self.rng, self.hosts = cluster, random.Random(args.seed), args.inside
        self.waits = args.waits
        self.number = 0

    def begin(self) -> None:
        self.cluster.run(DIGEST + SETUP, show=False)

    def changes(self) -> str:
        """Some lines of cells, each in a random order."""
        self.number += 1
        few = self.rng.sample(CHANGES, self.rng.randrange(1, 5))
        numbers = {"n": self.number % 5, "m": self.rng.randrange(5)}
        return "\n".join(one.format(**numbers) for one in few)

    def told(self, source: str = "pass") -> dict[int, dict[str, str]]:
        """What all names of each rank are after a cell."""
        record = self.cluster.run(source + TELL, show=False)
        return {
            rank: json.loads(record.stdout(rank).splitlines()[-1])
            for rank in range(self.cluster.num_processes)
        }

    def wait(self, how: str) -> None:
        """Until the last cell's copies are there, or for as long as it comes."""
        if how == "up to 1 s":
            time.sleep(self.rng.random())
        deadline = time.monotonic() + 20
        while how == "until copied" and time.monotonic() < deadline:
            bodies = [
                e.body for e in self.cluster.link.gather(range(4), Kept(), timeout_s=5.0).values()
            ]
            if all(one.is_current for one in bodies) and all(
                one.mirror.is_current for one in bodies if one.mirror is not None
            ):
                return
            time.sleep(0.02)

    def kill(self) -> Kill:
        """Change all, kill somebody in a cell, and compare."""
        rng = self.rng
        for _ in range(rng.randrange(2)):
            self.cluster.run(self.changes(), show=False)
        before = self.told(self.changes())
        found = Kill("", rng.choice(self.waits))
        self.wait(found.wait)
        source = f"print('on', flush=True)\n{self.changes()}\n{self.changes()}\ntime.sleep(600)"
        cell = self.cluster.submit(source)
        cell.run_in_background(lambda record: None)
        while not cell.done and not all(cell.record.stdout(rank) for rank in range(4)):
            time.sleep(0.001)  # a kill comes in that cell
        time.sleep(rng.choice([0.0, 0.02, 0.1, 0.5]) * rng.random())
        found.victims = self._kill()
        began = time.perf_counter()
        try:
            cell.wait()
            told = "it ended well"
        except (RankDied, JaxClusterError) as error:
            told = " ".join(str(error).split())
        found.back_s = time.perf_counter() - began
        after = self.told(DIGEST)  # should all be gone
        found.lost = told[told.index("Lost: ") :] if "Lost: " in told else ""
        if ALL_LOST in told:
            found.lost = ALL_LOST + "".join(f" {name} (" for name in before[0])
        differ = {
            name
            for rank in before
            for name in {**before[rank], **after[rank]}
            if before[rank].get(name, "") != after[rank].get(name, "")
        }
        found.silent = sorted(
            name
            for name in differ
            if not any(f" {one} (" in found.lost for one in name.split(" & "))
        )
        if not found.is_whole:
            print(f"{found.victims}, {found.wait}: differ {sorted(differ)}. {told}\n{source}\n")
        if differ or found.lost:
            self.begin()
        return found

    def _kill(self) -> str:
        """Kill a rank, some, or a host; returns whom."""
        rng, pids = self.rng, self.cluster.record.pids
        if not self.hosts:
            victims = rng.choice(
                [rng.sample(range(4), 1), rng.sample(range(4), rng.randrange(2, 5))]
            )
            for rank in victims:
                os.kill(pids[rank], signal.SIGKILL)
            return f"ranks {sorted(victims)}"
        fleet = self.cluster.world.processes.supervisor
        kind = rng.choice(["rank", "ranks", "host"])
        if kind == "host":
            place = rng.choice(fleet.in_use)
            agent = str(place.facts["token"]).partition(":")[0]
            _kill_on(place.name, [agent, *(pids[rank] for rank in place.ranks)])
            return f"host {place.name}"
        victims = rng.sample(range(4), 1 if kind == "rank" else rng.randrange(2, 5))
        for place in fleet.in_use:
            if there := [pids[rank] for rank in victims if rank in place.ranks]:
                _kill_on(place.name, there)
        return f"ranks {sorted(victims)}"


def _kill_on(host: str, pids: Sequence[object]) -> None:
    subprocess.run(["ssh", host, "kill", "-9", *map(str, pids)], check=False, timeout=30)


def run(args: argparse.Namespace) -> None:
    """All kills, on this machine or from h0."""
    where = {"launcher": "ssh", "hosts": "h1:2,h2:2"} if args.inside else {}
    with jaxcluster.start(4, devices_per_process=1, **where) as cluster:
        cluster.copies()
        course = Course(cluster, args)
        course.begin()
        kills, began = [], time.monotonic()
        while len(kills) < args.kills and time.monotonic() - began < args.minutes * 60:
            kills.append(course.kill())
            one = kills[-1]
            state = "whole" if one.is_whole else f"SILENT {one.silent}" if one.silent else one.lost
            print(
                f"{len(kills)}. {one.victims}, {one.wait}: {one.back_s:.1f} s, {state}", flush=True
            )
    show(kills)


def show(kills: Sequence[Kill]) -> None:
    """How many were whole, by how long after the last cell; and how long it took."""
    rows = []
    for wait in (*WAITS, "all"):
        those = [one for one in kills if wait in (one.wait, "all")]
        seconds = sorted(one.back_s for one in those) or [0.0]
        rows.append(
            [
                wait,
                f"{sum(one.is_whole for one in those)} of {len(those)}",
                f"{sum(bool(one.lost) for one in those)}",
                f"{sum(bool(one.silent) for one in those)}",
                f"{seconds[len(seconds) // 2]:.1f}",
                f"{seconds[-1]:.1f}",
            ]
        )
    table(["kills after the last cell", "whole", "named as lost", "SILENT", "s", "worst"], rows)
    kinds = Counter(one.victims.partition(" ")[0] for one in kills)
    print(", ".join(f"{n} of {kind}" for kind, n in kinds.items()))
    if any(one.silent for one in kills):
        raise SystemExit("Something came back as it had not been, and was not named.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no more after that")
    parser.add_argument("--waits", nargs="+", choices=WAITS, default=WAITS, metavar="WAIT")
    parser.add_argument("--hosts", action="store_true", help="2 ranks on each of two hosts")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        run(args)
    elif args.hosts:
        on_the_rig()
    else:
        with sandbox():
            run(args)


def on_the_rig() -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from rig import Rig, start_ssh

    with Rig() as rig:
        start_ssh(rig)
        env = {"JAX_PLATFORMS": "cpu", "JAXCLUSTER_SHARED_DIR": str(rig.shared)}
        words = [one for one in sys.argv[1:] if one != "--hosts"]
        command = (rig.python, Path(__file__).resolve(), "--inside", *words)
        code = rig["h0"].popen(*command, env=env, stdout=None, stderr=None).wait()
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(code)


if __name__ == "__main__":
    main()
