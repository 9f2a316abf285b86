"""The slurm launcher against a real Slurm of one node: its queue, its refusals, its ends.

Agents are stand-ins that announce themselves. The fixture starts munged, slurmctld and slurmd in a
folder of its own, on ports of its own, and ends them.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import until
from rig import launches
from rig.launches import KEY, Site, ends_of, is_alive, launching, successor
from rig.slurm import CONFIG

from jaxcluster.errors import LaunchError, LauncherUnavailable, UsageError
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.slurm import Slurm

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "salloc", "setpriv")
PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
MISSING = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd needs root"),
]
CONF = """
{config}SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 RealMemory=2000 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
PartitionName=short Nodes={host} MaxTime=1 State=UP OverSubscribe=NO
"""


def two_ports() -> list[int]:
    with socket.socket() as a, socket.socket() as b:
        a.bind(("127.0.0.1", 0))
        b.bind(("127.0.0.1", 0))
        return [a.getsockname()[1], b.getsockname()[1]]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """A Slurm whose conf is named by SLURM_CONF; its folder."""
    path = Path(tempfile.mkdtemp(prefix="jcslurm", dir="/tmp"))
    path.chmod(0o755)
    munge = path / "munge"
    for folder in (munge, path / "state", path / "spool"):
        folder.mkdir()
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    for one in (munge, munge / "key"):
        shutil.chown(one, "munge", "munge")
    host = socket.gethostname().split(".")[0]
    config = CONFIG.replace("=h0\n", f"={host}(127.0.0.1)\n").replace("GresTypes=gpu\n", "")
    config = config.replace("/run/munge/munge.socket.2", f"{munge}/socket")
    config = config.replace("/run/slurm/", f"{path}/")
    text = CONF.format(config=config, host=host, ports=two_ports())
    (path / "slurm.conf").write_text(text)
    (path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(path / "slurm.conf")
    env = {**os.environ, "PATH": PATH}
    daemons = [
        ["setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups", "munged", "-F",
         f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
         f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", host],
    ]  # fmt: skip
    running = []
    try:
        for argv in daemons:
            with open(path / f"{argv[0]}.out", "wb") as log:
                running.append(subprocess.Popen(argv, stdout=log, stderr=log, env=env))
            if "munged" in argv:
                until((munge / "socket").exists, "munged is there", 10)
        until(
            lambda: ask("sinfo", "-h", "-p", "debug", "-t", "idle", "-o", "%D") == "1", "a node", 30
        )
        yield path
    finally:
        ask("scancel", "--user=root")
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(20)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before
        shutil.rmtree(path, ignore_errors=True)


def ask(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


def queue() -> list[str]:
    """Numbers of the jobs that wait or run."""
    return ask("squeue", "-h", "-o", "%i").split()


@pytest.fixture
def site(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with launching(monkeypatch) as made:
        yield made
        for launch in made.launches:
            launch.stop()
        ask("scancel", "--user=root")
        until(lambda: not queue(), "the queue is empty", 30)


def launched(site: Site, launcher: Slurm | None = None, python: str = "", **agent: Any) -> Launch:
    return site.launch(launcher or Slurm(), python, **agent)


@pytest.fixture
def busy_node(site: Site) -> Iterator[str]:
    """The node is another job's."""
    script = site.path / "busy.sh"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    job = ask("sbatch", "--parsable", "--exclusive", "--output=/dev/null", str(script))
    until(lambda: ask("squeue", "-h", "-j", job, "-o", "%T") == "RUNNING", "it runs", 30)
    yield job
    ask("scancel", job)


def refused(launch: Launch) -> str:
    return launches.refused(launch, 60)


# ---------------------------------------------------------------------------- a job of its own


def test_a_job_s_agents_come_up_and_stop_cancels_it(site: Site) -> None:
    value = 'it\'s "$HOME" \\ !\nsecond line'
    launch = launched(
        site,
        Slurm(ntasks_per_node=2, cpus_per_task=2, salloc=("comment=x",)),
        env=(("XLA_FLAGS", value),),
    )
    (agent,) = launch.start(60)
    assert launch.plan.ranks == (2,)
    assert agent.host == 0  # there is but one
    assert f"--owner-key={KEY}" in agent.facts["argv"]
    assert agent.facts["env"]["XLA_FLAGS"] == value
    assert len(queue()) == 1
    launch.stop()
    until(lambda: not queue(), "the job is gone", 10)


def test_a_job_that_scancel_can_not_end_is_told_with_what_to_type(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = site.path / "bin"
    own.mkdir()
    (own / "scancel").write_text("#!/bin/sh\necho scancel: error: No answer >&2\nexit 1\n")
    (own / "scancel").chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", f"{own}:{os.environ['PATH']}")
        launch = launched(site)
        launch.start(60)
        launch.stop()
    told, hint = capsys.readouterr().err.splitlines()
    assert told == (
        "Something of this cluster may be left over: scancel ended with code 1. It says: "
        '"scancel: error: No answer"'
    )
    typed = hint.removeprefix("To end it: ")
    subprocess.run(typed, shell=True, check=True, timeout=60)
    until(lambda: not queue(), "the job is gone", 10)


def test_what_waits_in_the_queue_is_told_and_cancelled_at_the_timeout(
    site: Site, busy_node: str
) -> None:
    launch = launched(site)
    told: list[str] = []
    with pytest.raises(LaunchError) as caught:
        launch.start(8, told.append)
    text = str(caught.value)
    assert re.search(r"0 of 1 hosts were ready within 8 s\. Job \d+ is PENDING \(\w+\)", text)
    assert "\nIt was cancelled. Wait longer: --timeout 3600" in text
    assert any(re.match(r"0 of 1 hosts \(job \d+ is PENDING \(", line) for line in told)
    until(lambda: queue() == [busy_node], "ours is out of the queue", 10)


def test_a_job_that_would_never_start_is_told_at_once(site: Site) -> None:
    launch = launched(site, Slurm(nodes=5))
    told = refused(launch)
    assert re.match(r"Job \d+ is PENDING \(Partition\w+\) and can't start\. ", told)
    until(lambda: not queue(), "it is cancelled", 10)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partition": "nosuch"}, "nvalid partition name specified"),
        ({"mem": "900G"}, "node configuration is not available"),
        ({"salloc": ("foo",)}, "foo"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words(site: Site, options: Any, said: str) -> None:
    told = refused(launched(site, Slurm(**options)))
    assert "No agent on the hosts: salloc ended with code " in told and said in told, told
    assert "\nsinfo lists " in told


def test_a_job_that_somebody_cancels_is_told(site: Site) -> None:
    launch = launched(site)
    ends = ends_of(launch)
    launch.start(60)
    (job,) = queue()
    ask("scancel", job)
    until(lambda: ends, "the end is told", 40)
    assert ends[0][1].message.startswith(f"Slurm's job {job} has ended: CANCELLED")
    assert launch.successor(0, "node") is None


def test_a_time_limit_is_told_before(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    launched(site, Slurm(partition="short", time="1")).start(60)
    told = until(lambda: capfd.readouterr().err, "it is told", 40)
    assert re.match(r"Slurm ends job \d+ in \d\d s, at its time limit \(--time\)\. .*checkp", told)


@pytest.mark.parametrize("queued", [False, True])
def test_a_notebook_killed_leaves_no_job(
    site: Site, queued: bool, request: pytest.FixtureRequest
) -> None:
    others = [request.getfixturevalue("busy_node")] if queued else []
    with site.notebook(Slurm()) as notebook:
        assert notebook.stdout is not None
        wanted = "is PENDING" if queued else "up"
        assert any(wanted in line for line in notebook.stdout)
        assert len(queue()) == len(others) + 1
        notebook.kill()
        until(lambda: queue() == others, "the job is cancelled", 15)


# ------------------------------------------------------------------------- inside an allocation


@pytest.fixture
def allocation(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """As in a shell of ``salloc``."""
    said = subprocess.run(
        ["salloc", "--no-shell", "--nodes=1", "--ntasks-per-node=2"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stderr
    found = re.search(r"Granted job allocation (\d+)", said)
    assert found is not None, said
    monkeypatch.setenv("SLURM_JOB_ID", found[1])
    monkeypatch.setenv("SLURM_JOB_NODELIST", ask("squeue", "-h", "-j", found[1], "-o", "%N"))
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_CPU_BIND", "quiet,mask_cpu:0x1")
    yield found[1]
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS"):
        monkeypatch.delenv(name)
    ask("scancel", found[1])


def test_inside_an_allocation_the_agents_are_a_step_of_it(site: Site, allocation: str) -> None:
    launch = launched(site, env=(("A", "b c"),))
    assert launch.plan.ranks == (2,)
    (agent,) = launch.start(60)
    assert queue() == [allocation]  # no second job
    assert agent.facts["env"]["SLURM_NTASKS"] == "1"
    assert agent.facts["env"]["A"] == "b c"
    assert "--owner-stdin" in agent.facts["argv"]
    launch.stop()
    assert queue() == [allocation]
    until(lambda: not is_alive(agent.facts["pid"]), "the agent ended", 10)


def test_an_agent_in_an_allocation_gets_a_successor(site: Site, allocation: str) -> None:
    launch = launched(site)
    ends = ends_of(launch)
    (agent,) = launch.start(60)
    os.kill(agent.facts["pid"], 9)
    until(lambda: ends, "the end is told", 30)
    assert "is lost: srun ended with code" in ends[0][1].message
    again = successor(launch, 0, name="node")
    assert again is not None and again.facts["pid"] != agent.facts["pid"]


def test_options_of_a_job_are_refused_inside_of_one(site: Site, allocation: str) -> None:
    already = rf"--partition, --time: .* already in .* job {allocation}"
    with pytest.raises(UsageError, match=already):
        Slurm(partition="debug", time="10").prepared(os.environ)
    with pytest.raises(UsageError, match=r"--nodes 2: this notebook is in job \d+, which has 1"):
        Slurm(nodes=2).prepared(os.environ)
    assert Slurm(partition="debug", new_job=True).prepared(os.environ).allocation is None
    with pytest.raises(LauncherUnavailable, match="There is no salloc on this machine"):
        Slurm(new_job=True).prepared({"PATH": str(site.path)})
