"""What each launcher would run and write, held against golden files; and agents' lines.

Write them again with ``GOLDEN=write pytest tests/unit/test_launch_plans.py`` and look at the diff.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import (
    AgentOptions,
    Launcher,
    LaunchPlan,
    announcements,
    describe,
)
from jaxcluster.launchers.commands import Launch, Run, StartedAgent
from jaxcluster.launchers.hosts import parse_hosts
from jaxcluster.launchers.ipp import IPP
from jaxcluster.launchers.kubernetes.launcher import Kubernetes
from jaxcluster.launchers.mpi import MPI, flavour_of
from jaxcluster.launchers.slurm import Allocation, Slurm
from jaxcluster.launchers.ssh import SSH
from jaxcluster.launchers.tpu import TPU
from jaxcluster.supervision.starting import ROOT

GOLDEN = Path(__file__).parents[1] / "golden"
AGENT = AgentOptions(
    "main",
    "54fcba24e93249969316fb617c872bb0c1d1ff14800427c594cbfacf1bc2d652",
    "~/my env/bin/python",
    env=(("XLA_FLAGS", "--xla_a='1 2' !"), ("EMPTY", "")),
)
FOLDER = "/home/me/.jaxcluster/launch/4f2a"
TEMPLATE = {
    "metadata": {"annotations": {"team": "a"}, "labels": {"x": "y"}},
    "spec": {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"pool": "gpu"},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "containers": [
            {"name": "log", "image": "fluent/fluent-bit:3"},
            {
                "name": "jaxcluster",
                "image": "from/the:template",
                "command": ["/entry.sh"],
                "env": [{"name": "EMPTY", "value": "full"}, {"name": "KEPT", "value": "1"}],
                "resources": {"limits": {"memory": "1Gi", "vendor/x": 1}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
        ],
    },
}
HOSTS = parse_hosts("h1:2,me@h2:2:2222,[fe80::1]:2")
NODES = ("n01", "n02", "n03")
LAUNCHERS: dict[str, Launcher] = {
    "ssh": SSH(HOSTS),
    "ssh-direct": SSH(
        HOSTS[:2],
        ssh=("ssh", "-v"),
        ssh_config="~/cfg",
        ssh_option=("A=b c", "BatchMode=no"),
        jump="gate",
        user="you",
        port=22,
        direct=True,
    ),
    "slurm": Slurm(nodes=2, ntasks_per_node=2),
    "slurm-all": Slurm(
        None, 2, 4, "gpu", "proj 1", "high", "2:00:00", "gpu:a100:4", "a100&nvlink", 8, "64G",
        ("exclusive", "--comment=two words"), drop=("SLURM_NTASKS",),
    ),
    "slurm-allocation": Slurm(
        nodes=2,
        allocation=Allocation("12", NODES, (4, 4, 2)),
        drop=("JPY_PARENT_PID", "SLURM_NTASKS"),
    ),
    "mpi-openmpi4": MPI(parse_hosts("h1:2,h2:2"), as_root=True),
    "mpi-openmpi5": MPI(
        parse_hosts("h1.site,h2.site"), 4, mpi_args=("--mca", "a", "b c"), flavour="openmpi5"
    ),
    "mpi-mpich": MPI(parse_hosts("h1:2,h2:2"), mpiexec="/opt/mpich/bin/mpiexec", flavour="mpich"),
    "tpu": TPU(
        parse_hosts("pod-w0,pod-w1"),
        ssh_option=("ServerAliveInterval=9",),
        tpu="pod",
        zone="us-central2-b",
        logins=tuple(("/usr/bin/ssh", "-T", "-i", "~/k", f"me@34.1.2.{n}") for n in (3, 4)),
    ),
    "tpu-hosts": TPU(parse_hosts("t0,t1"), direct=True, user="me"),
    "kubernetes": Kubernetes(
        pods=2, image="team/jax:1", cpu="8", mem="64Gi", gpus=8, namespace="team-a"
    ),
    "kubernetes-inside": Kubernetes(
        4, 2, template=json.dumps(TEMPLATE),
        label=("kueue.x-k8s.io/queue-name=team-a",), inside=True,
    ),
    "kubernetes-tpu": Kubernetes(
        image="team/jax:1", tpu_type="tpu-v5-lite-podslice", tpu_topology="4x4", context="gke",
        time="2:00:00", direct=True,
    ),
    "ipp": IPP("pbs", "mine", 2, 4, here="/usr/bin/python3"),
}  # fmt: skip


def plan(name: str) -> LaunchPlan:
    return LAUNCHERS[name].render(AGENT, FOLDER)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_dry_run(name: str) -> None:
    found = describe(plan(name)).replace(ROOT, "ROOT") + "\n"
    path = GOLDEN / f"launch-{name}.txt"
    if os.environ.get("GOLDEN") == "write":
        path.write_text(found)
    assert found == path.read_text()


def test_two_starts_share_no_socket_and_no_job() -> None:
    other = SSH(HOSTS).render(AGENT, FOLDER + "x")
    argvs = [c.argv for p in (plan("ssh"), other) for c in p.commands]
    there = {argv[argv.index("-L") + 1].rpartition(":")[2] for argv in argvs}
    assert len(there) == 6
    cancels = {LAUNCHERS["slurm"].render(AGENT, FOLDER + x).commands[0].cancel for x in "ab"}
    assert len(cancels) == 2


@pytest.mark.parametrize("name", LAUNCHERS)
def test_only_some_launchers_have_a_successor(name: str) -> None:
    command = LAUNCHERS[name].successor(plan(name), 1, "whoever")
    if not name.startswith(("ssh", "tpu")) and name != "slurm-allocation":
        assert command is None
        return
    assert command is not None and command.hosts == (1,)
    assert command.argv[-1].endswith("--fence")
    if name == "slurm-allocation":
        assert "--nodes=1" in command.argv and "--ntasks=1" in command.argv
        assert "--nodelist=n02" in command.argv and "--jobid=12" in command.argv


@pytest.mark.parametrize(
    ("queue", "node"),
    [
        ("7|RUNNING|None|N/A|N/A|n[03-04]", "n04"),  # the second task's
        ("7|RUNNING|None|N/A|N/A|n03,whoever", "whoever"),  # its host's name
        ("7|RUNNING|None|N/A|N/A|n03", None),
        ("", None),
    ],
)
def test_a_job_has_a_successor_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, queue: str, node: str | None
) -> None:
    said = type("Done", (), {"stdout": queue, "returncode": 0})
    monkeypatch.setattr("jaxcluster.launchers.slurm.run_briefly", lambda *a, **k: said)
    command = LAUNCHERS["slurm"].successor(plan("slurm"), 1, "whoever.site")
    if node is None:
        assert command is None
        return
    assert command is not None and command.hosts == (1,) and command.keeps_stdin
    assert {"--jobid=7", f"--nodelist={node}", "--nodes=1", "--ntasks=1"} <= set(command.argv)
    assert command.argv[-1].endswith("--fence")


@pytest.mark.parametrize(
    ("lines", "code", "ready", "told", "hint"),
    [
        (["x: Permission denied (publickey)."], 255, False, "ssh ended with code 255", "must not"),
        (["ssh: connect to h1: No route to host"], 255, False, "ssh ended with", "host up"),
        (["/py: No module named jaxcluster"], 1, False, "ssh ended with code 1", "--python PATH"),
        (["sh: /py: not found", "bye"], 127, False, "/py: not found", "--python PATH"),
        (["nothing known", " - "], 3, False, '"nothing known"', "Try: ssh h1 true"),
        ([], -9, False, "ssh was ended by signal 9.", "Try: ssh h1 true"),
        ([], None, False, "No agent on h1 yet: ssh still runs.", "Wait longer: --timeout 180"),
        (["gone"], 255, True, "The agent on h1 is lost: ssh ended", ""),
    ],
)
def test_an_end_is_told_with_its_status_its_line_and_a_hint(
    lines: list[str], code: int | None, ready: bool, told: str, hint: str
) -> None:
    launcher = SSH(HOSTS[:1])
    there = launcher.render(replace(AGENT, python="/py"), FOLDER)
    agents = [StartedAgent(0, {})] if ready else []
    run = Run(there.commands[0], agents=agents, err=deque(lines), code=code)
    reason = launcher.explain(there, run)
    assert told in reason.message and hint in reason.hint and bool(hint) == bool(reason.hint)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("CANCELLED", "Slurm's job 7 has ended: CANCELLED."),
        ("RUNNING", "Job 7 is RUNNING. The agent on the hosts is lost: salloc ended with code 1."),
    ],
)
def test_a_job_s_end_says_more_than_the_last_words_of_one_of_its_agents(
    monkeypatch: pytest.MonkeyPatch, state: str, told: str
) -> None:
    said = type("Done", (), {"stdout": f"7|{state}|None|N/A|N/A|n[1-2]", "returncode": 0})
    monkeypatch.setattr("jaxcluster.launchers.slurm.run_briefly", lambda *a, **k: said)
    launch = Launch(LAUNCHERS["slurm"], plan("slurm"))
    run = Run(launch.plan.commands[0], agents=[StartedAgent(None, {})] * 2, code=1, has_ended=True)
    run.take(ENDED)
    assert run.trouble is not None and launch.reason(run).message == told


@pytest.mark.parametrize(
    ("end", "is_known"), [("2026-11-29T12:00:00", True), ("12:00", False), ("N/A", False)]
)
def test_a_job_s_time_limit_is_told_where_slurm_writes_it_as_usual(
    monkeypatch: pytest.MonkeyPatch, end: str, is_known: bool
) -> None:
    said = type("Done", (), {"stdout": f"7|RUNNING|None|{end}|N/A|n[1-2]", "returncode": 0})
    monkeypatch.setattr("jaxcluster.launchers.slurm.run_briefly", lambda *a, **k: said)
    assert (LAUNCHERS["slurm"].ends_in(plan("slurm")) is not None) == is_known


# ------------------------------------------------------------------------------------- details


@pytest.mark.parametrize(
    ("launcher", "agent", "folder", "said"),
    [
        (SSH(HOSTS), AGENT, "/" + "x" * 100, "as a socket: it is too long"),
        (SSH(HOSTS), AGENT, "/${HOME}", "it is too long, or has a ${ in it"),
        *(
            (MPI(parse_hosts(hosts)), AGENT, FOLDER, "mpiexec takes plain names: ")
            for hosts in ("me@h1", "h1:2:22", "[fe80::1]")
        ),
        (Slurm(num_processes=5, nodes=2), AGENT, FOLDER, "5 ranks can't be shared out evenly amo"),
        (Slurm(5, nodes=2, ntasks_per_node=2), AGENT, FOLDER, "does not match the nodes' ranks, 4"),
    ],
)
def test_what_would_be_misread_is_refused(
    launcher: Launcher, agent: AgentOptions, folder: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        launcher.render(agent, folder)
    assert said in caught.value.message
    assert caught.value.hint


def test_the_folder_of_a_launch_may_have_any_name() -> None:
    """ssh splits what follows -L at colons and reads % and ${ in it."""
    argv = SSH(HOSTS[:1]).render(AGENT, "/f:a %20b\\c").commands[0].argv
    here, _, there = argv[argv.index("-L") + 1].rpartition(":")
    assert here == "/f\\:a %%20b\\\\c/ssh-0.sock"
    assert there.startswith("/tmp/jaxcluster-")


@pytest.mark.parametrize(
    ("version", "flavour"),
    [
        ("mpiexec (OpenRTE) 4.1.4\n\nReport bugs to http://www.open-mpi.org/", "openmpi4"),
        ("mpirun (Open MPI) 5.0.11\n", "openmpi5"),
        ("prterun (PRRTE) 3.0.5\n", "openmpi5"),
        ("HYDRA build details:\n    Version:      5.0.2\n", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.1\n", None),
    ],
)
def test_which_mpiexec_it_is(version: str, flavour: str | None) -> None:
    assert flavour_of(version) == flavour


# ------------------------------------------------------------------------------- agents' lines

LINE = '{"jaxcluster-agent": 1, "pid": 1}'
ENDED = '{"jaxcluster-agent-ended": "SIGTERM", "host": "h1", "pid": 3}'


@pytest.mark.parametrize(
    ("line", "pids", "rest"),
    [
        (LINE, [1], ""),
        (f"motd: {LINE}", [1], "motd: "),
        (f"{LINE}{LINE} bye\r", [1, 1], " bye\r"),
        (f"{LINE}{ENDED}", [1, 3], ""),
        ('{"jaxcluster-agent" : 1, "pid": 2, "env": {"x": "}"}}', [2], ""),
        ("Welcome", [], "Welcome"),
        ('{"jaxcluster-agent": 1, "pid": ', [], '{"jaxcluster-agent": 1, "pid": '),
        ("", [], ""),
    ],
)
def test_an_agent_s_line_is_found_in_what_a_shell_prints(
    line: str, pids: list[int], rest: str
) -> None:
    found, left = announcements(line)
    assert [facts["pid"] for facts in found] == pids
    assert left == rest
