"""This machine's agent: one that is going, or gone, is not taken again."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import until

from jaxcluster.agent.requests import Detach
from jaxcluster.allocation import here
from jaxcluster.allocation.fleet import Fleet, HostLost
from jaxcluster.allocation.here import (
    AgentHere,
    own_environment,
    quit_warm,
    take_agent,
)
from jaxcluster.errors import LaunchError
from jaxcluster.supervision.processes import children
from jaxcluster.supervision.starting import import_time_settings
from jaxcluster.wire import forks

Take = Callable[[], AgentHere]
START_S = 30.0


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """Takes this process's agent. Its fork server imports nothing."""
    light = Path(__file__).parents[1] / "lightranks"
    monkeypatch.setenv("PYTHONPATH", f"{light}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(here, "_idle", None)
    with tempfile.TemporaryDirectory() as root:  # short: it is a socket's path
        monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", root)
        taken: list[AgentHere] = []
        yield lambda: taken.append(take_agent(own_environment())) or taken[-1]
        for agent in dict.fromkeys(taken):
            agent.stop()
        quit_warm()
        # The fork server of one that was killed removes its folder, after its imports.
        left = lambda: [name for name in os.listdir(root) if name.startswith(".agent")]  # noqa: E731
        until(lambda: not left(), "its folder is gone", START_S)


def connected(agent: AgentHere) -> Fleet:
    fleet = Fleet(agent.keys, is_here=True)
    agent.on_end = lambda why: fleet.ended([0], why)
    fleet.add([("here", agent.found(START_S, threading.Event())[1])])
    return fleet


def test_an_idle_agent_is_taken_again(take: Take) -> None:
    first = take()
    first.stop()
    assert take() is first


def test_one_that_has_a_cluster_is_not_shared(take: Take) -> None:
    first = take()
    second = take()
    assert second is not first
    first.stop()
    second.stop()
    assert first.alive and not second.alive  # there is another one that waits


def test_one_that_was_killed_is_a_lost_host_and_is_replaced(take: Take) -> None:
    first = take()
    fleet = connected(first)
    events: list[Any] = []
    fleet.on_event = events.append
    os.kill(first.pid, 9)
    until(lambda: events, "word of the loss", START_S)
    (lost,) = events
    assert isinstance(lost, HostLost)
    assert lost.why == "its agent has ended: it ended with code -9"
    with pytest.raises(LaunchError, match=f"^Host here is lost: {lost.why}.$"):
        fleet.hosts[0].ask(forks.Exits(), START_S)
    fleet.close()
    first.stop()
    assert take() is not first


@pytest.mark.parametrize("name", ["OF_NO_IMPORT", "JAX_ENABLE_X64"])
def test_its_fork_server_is_another_where_imports_read_other_settings(
    take: Take, name: str, tmp_path: Path
) -> None:
    """``--env JAX_...`` of the next start: a process that has imported jax can't take it on."""
    agent = take()
    fleet = connected(agent)
    (old,) = children(agent.pid)
    fleet.command(forks.Preload(own_environment()))
    assert children(agent.pid) == [old]
    fleet.command(forks.Preload({**own_environment(), name: "1"}))
    (new,) = children(agent.pid)
    assert (new == old) is (name == "OF_NO_IMPORT")
    # Its ranks have this environment, in any case.
    rank = forks.Process("rank", {}, str(tmp_path), str(tmp_path / "log"), rank=0)
    (pid,) = fleet.hosts[0].ask(forks.Spawn([rank]), START_S)
    (child,) = until(lambda: children(pid), "its own process", START_S)
    until(lambda: f"\0{name}=1\0" in Path(f"/proc/{child}/environ").read_text(), "its start")
    fleet.close()


def test_a_detached_one_without_processes_ends_and_another_is_taken(take: Take) -> None:
    first = take()
    fleet = connected(first)
    fleet.command(Detach(True))
    until(lambda: not first.alive, "its end", START_S)
    fleet.close()
    first.stop()
    second = take()
    assert second is not first
    second.found(START_S, threading.Event())


def test_one_whose_cluster_was_detached_is_not_taken_again(take: Take) -> None:
    """It would end itself: what it is found by goes with its cluster."""
    first = take()
    first.is_detached = True
    first.stop()
    assert not first.alive
    assert take() is not first


def test_one_that_is_left_lives_on_with_what_it_has(take: Take) -> None:
    agent = take()
    fleet = connected(agent)
    fleet.close()
    again = connected(agent)
    again.command(forks.Exits())
    again.close()
    assert agent.alive


def test_what_is_just_being_started_ends_with_all_others(take: Take, tmp_path: Path) -> None:
    """A start that is stopped does not wait for its own processes' pids."""
    fleet = connected(take())
    (host,) = fleet.hosts
    log = str(tmp_path / "log")
    process = forks.Process("controller", own_environment(), str(tmp_path), log, ("--help",))
    asked = host.begin(forks.Spawn([process, process]))
    host.ask(forks.Stop(), START_S)
    pids, _ = asked.wait(START_S)
    assert len(pids) == 2 and not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    fleet.close()


# --------------------------------------------------------------------------- the environment


def test_a_rank_does_not_take_itself_for_a_part_of_the_notebooks_kernel() -> None:
    env = {"PATH": "/bin", "HOME": "/me", "JPY_PARENT_PID": "12", "IPP_CLUSTER_ID": "theirs"}
    assert own_environment(env) == {"PATH": "/bin", "HOME": "/me"}


def test_what_is_read_at_import_asks_for_a_fork_server_of_its_own() -> None:
    env = {"XLA_FLAGS": "a", "JAX_ENABLE_X64": "1", "HOME": "h", "PYTHONPATH": "p", "MINE": "1"}
    assert import_time_settings(env) == {
        "JAX_ENABLE_X64": "1",
        "PYTHONPATH": "p",
        "XLA_FLAGS": "a",
    }


@pytest.mark.parametrize(
    "name", ["LANGCHAIN_API_KEY", "LANGSMITH_API_KEY", "LANGFUSE_SECRET_KEY", "CUDA_ROOT_TOKEN"]
)
def test_no_secret_is_taken_for_a_language(name: str) -> None:
    """What is read at import is in a Job's pods, in scripts, and in agents' command lines."""
    env = {"LANG": "C.UTF-8", "LANGUAGE": "en", "LC_ALL": "C", name: "secret"}
    assert import_time_settings(env) == {"LANG": "C.UTF-8", "LANGUAGE": "en", "LC_ALL": "C"}
