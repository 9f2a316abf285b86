"""Starting: what comes up, how it is closed off, and that a failed start leaves nothing."""

from __future__ import annotations

import ipaddress
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import overhosts
import psutil
import pytest
from helpers import Home, free_port
from overhosts import Process

import jaxcluster
from jaxcluster.cluster import make_spec, start_spec
from jaxcluster.errors import (
    CellInterrupted,
    LaunchError,
    NoCluster,
)
from jaxcluster.hosts.processes import Processes
from jaxcluster.hosts.records import registry
from jaxcluster.wire.forks import SECURITY

pytestmark = pytest.mark.any_jax

Start = Callable[..., jaxcluster.Cluster]
LATE_S = 10.0  # that a busy machine may need beyond the time it was given


def on_each_rank(cluster: jaxcluster.Cluster, expression: str) -> list[str]:
    record = cluster.run(f"print({expression})", show=False)
    return [record.stdout(rank).strip() for rank in range(cluster.num_processes)]


# --------------------------------------------------------------------------- what comes up


def test_all_ranks_are_processes_of_one_jax(cluster: jaxcluster.Cluster) -> None:
    numbers = on_each_rank(
        cluster,
        "(jax.process_index(), jax.process_count(), jax.device_count(), len(jax.local_devices()))",
    )
    assert numbers == [f"({rank}, 4, 8, 2)" for rank in range(4)]
    assert on_each_rank(cluster, "os.getpid()") == [str(pid) for pid in cluster.record.pids]


def test_the_environment_reaches_every_rank_and_a_schedulers_leads_nobody_astray(
    start: Start,
) -> None:
    running = start(
        env={
            "MINE": "a b=c",
            "SHELL_LIKE": "$HOME",
            "SLURM_JOB_ID": "12",
            "SLURM_NTASKS": "64",
            "SLURM_PROCID": "5",
            "SLURM_LOCALID": "5",
            "SLURM_STEP_NODELIST": "node[1-8]",
            "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
            "OMPI_COMM_WORLD_SIZE": "9",
            "OMPI_COMM_WORLD_RANK": "8",
        }
    )
    running.run("import jax, os")
    assert on_each_rank(running, "jax.process_index(), jax.process_count()") == ["0 2", "1 2"]
    mine = on_each_rank(running, "os.environ['MINE'], os.environ['SHELL_LIKE']")
    assert mine == ["a b=c $HOME"] * 2


@pytest.mark.one_machine("it places the coordinator at an address of this machine")
def test_a_chosen_coordinator_address_is_listened_on(start: Start) -> None:
    port = free_port()
    running = start(coordinator_address=f"127.0.0.1:{port}", heartbeat_timeout_seconds=50)
    connections = psutil.Process(running.record.coordinator_pid).net_connections("inet")
    assert port in [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
    assert running.spec.heartbeat_timeout_seconds == 50


# --------------------------------------------------------------------------- closed off


@pytest.mark.one_machine("hosts reach each other at their addresses")
def test_every_port_is_on_loopback(cluster: jaxcluster.Cluster, home: Home) -> None:
    cluster.run("total = jnp.sum(x)")  # gloo listens from the first collective on
    listening = {}
    for pid, line in home.processes().items():
        for connection in psutil.Process(pid).net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                listening[connection.laddr] = line
    assert listening
    found = {ipaddress.ip_address(at.ip.removeprefix("::ffff:")) for at in listening}
    assert all(address.is_loopback for address in found), listening


def test_ipyparallels_keys_are_on_and_in_no_command_line(
    cluster: jaxcluster.Cluster, home: Home
) -> None:
    paths = [registry.client_file(cluster.name)]
    if not overhosts.hosts():
        agents = Path(cluster.record.hosts[0].folder)
        paths.append(agents / SECURITY / "ipcontroller-engine.json")
    secrets = []
    for path in paths:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        said = json.loads(path.read_text())
        secrets.append(said["curve_serverkey"] or said["key"])  # curve, where zmq has it
    assert all(len(secret) >= 32 for secret in secrets)
    for line in (*home.processes().values(), *overhosts.look()):
        assert not any(secret in line for secret in secrets)


@pytest.mark.one_machine("it looks at this machine's sockets")
def test_only_this_user_can_reach_the_ranks_sockets(cluster: jaxcluster.Cluster) -> None:
    root = registry.runtime_root()
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    ranks = Path(cluster.record.hosts[0].folder) / "ranks"
    assert ranks.is_relative_to(root)
    assert {f"{rank}.sock" for rank in range(4)} <= set(os.listdir(ranks))


# --------------------------------------------------------------------------- failing


def assert_nothing_is_registered(name: str) -> None:
    assert not registry.folder(name).exists()
    with pytest.raises(NoCluster):
        registry.read(name)


@pytest.mark.one_machine("it places the coordinator at an address of another machine")
@pytest.mark.parametrize("address", ["192.0.2.1:9999", "no-such-host.invalid:9999"])  # TEST-NET-1
def test_an_address_of_another_machine_for_the_coordinator_is_named(
    home: Home, address: str
) -> None:
    """JAX by itself would abort the process, without an exception."""
    with pytest.raises(LaunchError, match=f" {address} ") as caught:
        jaxcluster.start(2, name="bad", coordinator_address=address)
    assert "Leave out --coordinator-address" in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert "bootstrap.py" not in str(caught.value)
    assert_nothing_is_registered("bad")


def test_a_coordinator_that_ends_while_the_cluster_comes_up_is_told_at_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after all the time that a start has, and not as what it does to the ranks."""
    of: type[Any] = Processes
    start_coordinator = of.start_coordinator

    def start_and_kill(*arguments: Any) -> int:
        pid: int = start_coordinator(*arguments)
        Process(overhosts.first_host(), pid).send()
        return pid

    monkeypatch.setattr(of, "start_coordinator", start_and_kill)
    began = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        jaxcluster.start(2, name="bad", timeout_s=60)
    assert time.monotonic() - began < 30
    where = f" on host {overhosts.first_host()}" if overhosts.hosts() else ""
    assert str(caught.value).startswith(f"The coordinator ended (killed by SIGKILL{where}).")
    assert_nothing_is_registered("bad")


def test_too_short_a_time_says_how_to_get_more(home: Home) -> None:
    began = time.monotonic()
    with pytest.raises(LaunchError) as caught:
        jaxcluster.start(2, name="bad", timeout_s=0.1, env={"JAX_LOG_COMPILES": "0"})
    assert time.monotonic() - began < 0.1 + LATE_S
    assert "--timeout" in str(caught.value)
    assert_nothing_is_registered("bad")


@pytest.mark.parametrize("step", ["starting", "engines 1/2", "initializing", "connecting"])
def test_a_start_that_the_user_stops_leaves_nothing(home: Home, step: str) -> None:
    def stop(line: str) -> None:
        if line.startswith(step):
            raise KeyboardInterrupt

    with pytest.raises(CellInterrupted, match=r"The start was stopped\."):
        start_spec(make_spec(2, name="stopped"), stop)
    assert_nothing_is_registered("stopped")
    assert "stopped" not in os.listdir(registry.runtime_root())


# --------------------------------------------------------------------------- versions of jax


def test_a_jax_on_which_no_cluster_runs_is_refused_with_what_to_type(
    start: Start, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = registry.records()
    monkeypatch.setattr("jaxcluster.plan.versions.OLDEST_JAX", "99.1")
    with pytest.raises(LaunchError, match=r"is older than 99\.1, the oldest with which") as caught:
        start()
    assert caught.value.hint == 'Try: pip install -U "jax>=99.1"'
    assert registry.records() == before
