"""This machine's agent: one that is going, or gone, is not taken again."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from helpers import until

from jaxcluster import wire
from jaxcluster.errors import LaunchError
from jaxcluster.hosts import here
from jaxcluster.hosts.agent.requests import Detach
from jaxcluster.hosts.allocation import Allocation
from jaxcluster.hosts.fleet import Fleet
from jaxcluster.hosts.here import own_environment, quit_warm
from jaxcluster.hosts.records import claims
from jaxcluster.supervision.processes import children
from jaxcluster.supervision.starting import import_time_settings
from jaxcluster.wire import forks

START_S = 30.0


class Cluster:
    """Has this machine, as a cluster that is started there."""

    def __init__(self, name: str = "one") -> None:
        claimed = claims.claim(name)
        assert claimed is not None
        self.allocation = Allocation(claimed)

    def start(self, env: dict[str, str] | None = None) -> Fleet:
        spec = wire.ClusterSpec("one", 1, platform="cpu", env=env or {})
        stopped = threading.Event()
        fleet = self.allocation.prepare(spec, lambda text: None, START_S, stopped).fleet
        self.key = fleet.keys.public
        return fleet

    @property
    def agent(self) -> int:
        """Its pid."""
        (pid,) = [pid for pid in children() if self.key in Path(f"/proc/{pid}/cmdline").read_text()]
        return pid


def children_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters. Their fork servers import nothing."""
    light = Path(__file__).parents[1] / "lightranks"
    monkeypatch.setenv("PYTHONPATH", f"{light}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(here, "_idle", None)
    with tempfile.TemporaryDirectory() as root:  # short: it is a socket's path
        monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", root)
        made: list[Cluster] = []
        yield lambda name="one": made.append(Cluster(name)) or made[-1]
        for one in made:
            one.allocation.end()
        quit_warm()
        # The fork server of one that was killed removes its folder, after its imports.
        left = lambda: [name for name in os.listdir(root) if name.startswith(".agent")]  # noqa: E731
        until(lambda: not left(), "its folder is gone", START_S)


Make = Callable[..., Cluster]


def test_an_idle_agent_is_taken_again(make: Make) -> None:
    first = make()
    first.start()
    first.allocation.end()
    second = make()
    second.start()
    assert second.key == first.key


def test_one_that_has_a_cluster_is_not_shared(make: Make) -> None:
    before = {*children()}  # other tests have some
    first, second = make(), make("two")
    first.start()
    second.start()
    assert second.key != first.key
    first.allocation.end()
    second.allocation.end()
    assert quit_warm()  # one has waited
    until(lambda: {*children()} <= before, "the other one's processes end", START_S)


def test_one_that_was_killed_is_a_lost_host_and_is_replaced(make: Make) -> None:
    cluster = make()
    fleet, key = cluster.start(), cluster.key
    events: list[Any] = []
    fleet.on_event = events.append
    os.kill(cluster.agent, 9)
    until(lambda: events, "word of the loss", START_S)
    (lost,) = events
    assert lost is fleet.hosts[0] and lost.gone
    assert "ended by signal 9" in lost.lost
    with pytest.raises(LaunchError, match=f"^Host {fleet.hosts[0].name} is lost: "):
        fleet.hosts[0].ask(forks.Exits(), START_S)
    assert cluster.start() is not fleet
    assert cluster.key != key


@pytest.mark.parametrize("name", ["OF_NO_IMPORT", "JAX_ENABLE_X64"])
def test_its_fork_server_is_another_where_imports_read_other_settings(
    make: Make, name: str, tmp_path: Path
) -> None:
    """``--env JAX_...`` of the next start: a process that has imported jax can't take it on."""
    cluster = make()
    fleet = cluster.start()
    (old,) = children_of(cluster.agent)
    assert cluster.start() is fleet
    assert children_of(cluster.agent) == [old]
    assert cluster.start({name: "1"}) is fleet
    (new,) = children_of(cluster.agent)
    assert (new == old) is (name == "OF_NO_IMPORT")
    # Its ranks have this environment, in any case.
    rank = forks.Process("rank", {}, str(tmp_path), str(tmp_path / "log"), {"rank": 0})
    (pid,) = fleet.hosts[0].ask(forks.Spawn([rank]), START_S)
    (child,) = until(lambda: children_of(pid), "its own process", START_S)
    until(lambda: f"\0{name}=1\0" in Path(f"/proc/{child}/environ").read_text(), "its start")


def test_a_detached_one_without_processes_ends_and_another_is_taken(make: Make) -> None:
    cluster = make()
    fleet, pid = cluster.start(), cluster.agent
    fleet.command(Detach(True))
    until(lambda: pid not in children(), "its end", START_S)
    assert cluster.start() is not fleet


def test_what_is_just_being_started_ends_with_all_others(make: Make, tmp_path: Path) -> None:
    """A start that is stopped does not wait for its own processes' pids."""
    (host,) = make().start().hosts
    log = str(tmp_path / "log")
    process = forks.Process("controller", own_environment(), str(tmp_path), log)
    asked = host.begin(forks.Spawn([process, process]))
    host.ask(forks.Stop(), START_S)
    pids, _ = asked.wait(START_S)
    assert len(pids) == 2 and not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


# --------------------------------------------------------------------------- the environment


def test_a_rank_does_not_take_itself_for_a_part_of_the_notebooks_kernel() -> None:
    env = {"PATH": "/bin", "HOME": "/me", "JPY_PARENT_PID": "12", "IPP_CLUSTER_ID": "theirs"}
    assert own_environment(env) == {"PATH": "/bin", "HOME": "/me"}


def test_what_is_read_at_import_asks_for_a_fork_server_of_its_own() -> None:
    """It is in a Job's pods, in scripts, and in agents' command lines, too: no secret is."""
    read = {"XLA_FLAGS": "a", "JAX_ENABLE_X64": "1", "PYTHONPATH": "p", "LANG": "C", "LC_ALL": "C"}
    others = ("HOME", "MINE", "LANGCHAIN_API_KEY", "LANGFUSE_SECRET_KEY", "CUDA_ROOT_TOKEN")
    assert import_time_settings({**read, **dict.fromkeys(others, "secret")}) == read
