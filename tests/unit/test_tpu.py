"""Cloud TPU slices: what gcloud says of them, how their hosts are logged in to, who has the chips.

No TPU and no Google Cloud is here. What version 528 of the Google
Cloud CLI prints is what a gcloud says here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.errors import LaunchError, LauncherUnavailable, PlanError, UsageError
from jaxcluster.host.tpus import TpuWorker, wait_for_libtpu
from jaxcluster.launchers import tpu as module
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Run
from jaxcluster.launchers.hosts import Host, parse_hosts
from jaxcluster.launchers.tpu import TPU
from jaxcluster.plan.placement import plan_ranks
from jaxcluster.wire import ClusterSpec, EngineFacts

OPTIONS = "-i /h/.ssh/google_compute_engine -o CheckHostIP=no -o HostKeyAlias=tpu.1-{n}-ab"
LINE = f"/usr/bin/ssh -T {OPTIONS} me@34.1.2.{{address}} -- true"
NOT_FOUND = (
    "ERROR: (gcloud.compute.tpus.tpu-vm.ssh) NOT_FOUND: Resource "
    "'projects/p/locations/us-central2-b/nodes/mine' was not found. This command is authenticated "
    "as me@example.com which is the active account specified by the [core/account] property\n"
)
NO_LOGIN = """\
ERROR: (gcloud.compute.tpus.tpu-vm.ssh) You do not currently have an active account selected.
Please run:

  $ gcloud auth login

to obtain new credentials.
"""
AGENT = AgentOptions("main", "k" * 64, "python3")


class Cloud:
    """A gcloud that says this, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        lines = "\n".join(LINE.format(n=n, address=3 + n) for n in (0, 1))
        self.says(lines + "\n", "Using ssh batch size of 1.\n")

    def says(self, out: str = "", err: str = "", code: int = 0) -> None:
        self.answer = subprocess.CompletedProcess((), code, out, err)

    def run(self, argv: Sequence[str], *_: Any) -> subprocess.CompletedProcess[str]:
        self.asked.append(" ".join(argv))
        return self.answer

    def prepared(self, **options: Any) -> TPU:
        return TPU((), **{"tpu": "pod", "zone": "us-central2-b", **options}).prepared(os.environ)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud()
    monkeypatch.setattr(module, "find_program", lambda *_: None)
    monkeypatch.setattr(module, "run_briefly", made.run)
    return made


# --------------------------------------------------------------------------------- a named slice


def test_a_slice_s_hosts_are_logged_in_to_as_gcloud_would(cloud: Cloud) -> None:
    ready = cloud.prepared(project="p", ssh_option=("A=b",))
    assert cloud.asked == [
        "gcloud compute tpus tpu-vm ssh pod --zone=us-central2-b --project=p --worker=all "
        "--dry-run --command=true --quiet"
    ]
    plan = ready.render(AGENT, "/run/f")
    assert plan.hosts == ("pod-w0", "pod-w1") and plan.ranks == (1, 1)
    argv = plan.commands[1].argv
    assert argv[:4] == ("/usr/bin/ssh", "-T", "-i", "/h/.ssh/google_compute_engine")
    assert argv[argv.index("--") + 1] == "me@34.1.2.4"
    assert "BatchMode=yes" in argv and "A=b" in argv
    assert plan.commands[1].socket


def test_a_login_of_the_user_s_and_gcloud_s_options_are_passed_on(cloud: Cloud) -> None:
    ready = cloud.prepared(ssh_config="/dev/null", user="you")
    assert ready.hosts == (Host("34.1.2.3", user="you"), Host("34.1.2.4", user="you"))
    ready = cloud.prepared(user="you", internal_ip=True, num_processes=8)
    assert "ssh you@pod --zone=us-central2-b --internal-ip" in cloud.asked[1]
    assert ready.render(AGENT, "/f").ranks == (4, 4)


# ---------------------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize("stderr", [NO_LOGIN, NOT_FOUND])
def test_what_gcloud_refuses_is_told_in_its_words(cloud: Cloud, stderr: str) -> None:
    cloud.says("", stderr, 1)
    with pytest.raises(LaunchError) as caught:
        cloud.prepared()
    assert caught.value.message == f'gcloud ended with code 1. It says: "{stderr.splitlines()[0]}"'
    assert caught.value.hint.startswith("Try: gcloud compute tpus tpu-vm ssh pod")
    cloud.says("no login")
    with pytest.raises(LaunchError, match='It says: "no login"'):
        cloud.prepared()


def test_without_a_gcloud_there_is_no_start(tmp_path: Path) -> None:
    with pytest.raises(LauncherUnavailable, match="There is no gcloud on this machine"):
        TPU((), tpu="pod").prepared({"PATH": str(tmp_path)})


def test_a_key_that_the_slice_does_not_know_is_made_known_by_gcloud(cloud: Cloud) -> None:
    ready = cloud.prepared()
    plan = ready.render(AGENT, "/f")
    line = "me@34.1.2.3: Permission denied (publickey)."
    told = ready.explain(plan, Run(plan.commands[0], code=255, err=deque([line])))
    assert told.message.startswith("No agent on pod-w0: ssh ended with code 255.")
    login = "gcloud compute tpus tpu-vm ssh pod --zone=us-central2-b --worker=0 --command=true"
    assert told.hint.endswith(f"Try: {login}")


# ------------------------------------------------------------------------------------- its hosts


def test_a_tpu_host_starts_on_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = TpuWorker(0, ("10.1.0.2", "10.1.0.3"))
    monkeypatch.setattr(module, "tpu_worker", lambda *a: worker)
    ready = TPU(()).prepared(os.environ)
    assert [host.name for host in ready.hosts] == ["10.1.0.2", "10.1.0.3"]
    assert TPU(parse_hosts("a,b")).prepared(os.environ).hosts == parse_hosts("a,b")
    monkeypatch.setattr(module, "tpu_worker", lambda *a: None)
    with pytest.raises(UsageError, match="needs the name of a slice, or its hosts"):
        TPU(()).prepared(os.environ)


def facts(numbers: list[int | None], hosts: list[list[str]]) -> list[EngineFacts]:
    return [
        EngineFacts(rank, 1, f"t{rank}", f"key{rank}", "0.10", [], 4, number, hosts[rank])
        for rank, number in enumerate(numbers)
    ]


SLICE = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (facts([0, 1, 2], [SLICE] * 3), ""),
        (facts([0, None, 2], [SLICE, [], SLICE]), ""),  # not known: libtpu will say
        (facts([0, 2], [SLICE] * 2), "--hosts t0,b,t1   or"),
        (facts([1, 0, 2], [SLICE] * 3), "--hosts t1,t0,t2   or"),
        (facts([0, 1], [["a", "b"], ["c", "d"]]), "t1 (worker 1). They are not one whole"),
    ],
)
def test_a_cluster_is_a_whole_slice_in_its_order(known: list[EngineFacts], said: str) -> None:
    def plan(env: dict[str, str]) -> None:
        spec = ClusterSpec(name="main", num_processes=len(known), platform="tpu", env=env)
        plan_ranks(
            spec,
            known,
            coordinator="h:1",
            collectives_addresses=[""] * len(known),
        )

    plan({"TPU_PROCESS_BOUNDS": "1,1,1"})
    if not said:
        plan({})
        return
    with pytest.raises(PlanError) as caught:
        plan({})
    assert said in str(caught.value)


# ---------------------------------------------------------------------------------- libtpu's lock

HOLD = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o644)
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """libtpu's lock as another process holds it."""
    path = tmp_path / "libtpu_lockfile"
    argv = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield path, process
        process.kill()


def test_a_lock_that_is_held_is_waited_for(
    held: tuple[Path, subprocess.Popen[str]],
) -> None:
    path, process = held
    with pytest.raises(RuntimeError, match=rf"has locked {path} .*: sudo lsof -w {path}"):
        wait_for_libtpu(0.2, path)
    assert process.stdin is not None
    process.stdin.close()  # it ends, and its lock with it
    wait_for_libtpu(60, path)
    with subprocess.Popen(  # looking at the lock has not taken it
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as another:
        assert another.stdout is not None and another.stdout.readline() == b"locked\n"
        another.kill()


def test_another_user_s_lock_that_is_held_is_not_said_to_be_left(
    held: tuple[Path, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, process = held
    opened = os.open

    def open_to_read(file: Any, flags: int, *mode: Any, **options: Any) -> int:
        if file == path and flags & os.O_RDWR:
            raise PermissionError(13, "Permission denied")
        return opened(file, flags, *mode, **options)

    monkeypatch.setattr(os, "open", open_to_read)
    with pytest.raises(RuntimeError, match=rf"has locked {path} "):
        wait_for_libtpu(0.2, path)
    process.kill()
    process.wait()
    with pytest.raises(RuntimeError, match=r"Permission denied.*: sudo rm "):
        wait_for_libtpu(60, path)
