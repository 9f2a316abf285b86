"""What launchers need is on the rig: sshd, Slurm and three MPIs start commands on its hosts."""

from __future__ import annotations

import subprocess
from collections import Counter

import pytest
from helpers import until
from rig import Mpi, Rig


def pids(rig: Rig, name: str, part: str) -> list[int]:
    """The processes of a host with a part of their command line."""
    return [pid for pid, line in rig[name].processes().items() if part in line]


# -------------------------------------------------------------------------------------------- ssh


@pytest.mark.parametrize("options", [[], ["-F", "CONFIG"], ["-p", "2222"], ["-J", "h0"]])
def test_ssh_runs_a_command_on_each_host(ssh: Rig, options: list[str]) -> None:
    given = [option.replace("CONFIG", ssh.ssh_config) for option in options]
    for name in ("h1", "h2"):
        done = ssh["h0"].run("ssh", *given, name, "hostname; echo $HOME")
        assert done.stdout.split() == [name, ssh.home]


def test_ssh_knows_another_user(ssh: Rig) -> None:
    done = ssh["h0"].run("ssh", "alice@h2", "id -un; pwd; touch mine && rm mine; hostname")
    assert done.stdout.split() == ["alice", "/home/alice", "h2"]


@pytest.mark.parametrize(
    "change, said",
    [
        ("cd .ssh; mv id_ed25519 away", "Permission denied (publickey)."),
        ("cd .ssh; cp known_hosts away; sed -i s/^h1,/hX,/ known_hosts", "verification failed."),
    ],
    ids=["key", "host key"],
)
def test_ssh_refuses_and_asks_nothing(ssh: Rig, change: str, said: str) -> None:
    first, undo = ssh["h0"], "id_ed25519" if "id_ed25519" in change else "known_hosts"
    first.run("sh", "-c", change)
    try:
        done = first.run("ssh", "h1", "true", check=False)
    finally:
        first.run("mv", f"{ssh.home}/.ssh/away", f"{ssh.home}/.ssh/{undo}")
    assert done.returncode == 255
    assert said in done.stderr.strip().splitlines()[-1]


SERVE = """
import socket
with socket.socket(socket.AF_UNIX) as server:
    server.bind("/tmp/there.sock")
    server.listen()
    print("listening", flush=True)
    connection, _ = server.accept()
    with connection:
        connection.sendall(connection.recv(100) + b" from " + socket.gethostname().encode())
"""
ASK = """
import socket
with socket.socket(socket.AF_UNIX) as client:
    client.connect("/tmp/here.sock")
    client.sendall(b"hello")
    print(client.recv(100).decode())
"""


def test_ssh_carries_a_unix_socket_and_its_end_leaves_what_it_has_started(ssh: Rig) -> None:
    first = ssh["h0"]
    python = str(ssh.python)
    carrier = first.popen(
        *("ssh", "-o", "ExitOnForwardFailure=yes", "-L", "/tmp/here.sock:/tmp/there.sock", "h1"),
        f"{python} -c '{SERVE}'; rm /tmp/there.sock; sleep 1000",
        stdout=subprocess.PIPE,
    )
    assert carrier.stdout is not None
    assert carrier.stdout.readline() == b"listening\n"
    assert first.run(python, "-c", ASK).stdout == "hello from h1\n"
    carrier.kill()
    carrier.communicate(timeout=30)
    first.path("/tmp/here.sock").unlink()
    until(lambda: pids(ssh, "h1", "sleep 1000"), "the command's end to begin")
    until(lambda: not pids(ssh, "h1", "sshd: root"), "the end of the connection")
    [pid] = pids(ssh, "h1", "sleep 1000")  # without a terminal nobody ends it
    ssh["h1"].kill(pid)


# ------------------------------------------------------------------------------------------ Slurm


def test_srun_starts_a_task_on_each_node(slurm: Rig) -> None:
    command = "echo $SLURM_PROCID $(hostname)"
    done = slurm["h0"].run("srun", "--nodes=2", "--label", "sh", "-c", command)
    assert sorted(line.split()[-1] for line in done.stdout.splitlines()) == ["h1", "h2"]


def test_sbatch_runs_a_script_and_srun_in_it(slurm: Rig) -> None:
    script = f"#!/bin/sh\n#SBATCH --nodes=2 --output={slurm.shared}/job.out\nsrun hostname\n"
    job = slurm["h0"].run("sbatch", "--parsable", input=script).stdout.strip()
    until(lambda: not slurm["h0"].run("squeue", "--noheader", f"--jobs={job}").stdout, "its end")
    until(lambda: len((slurm.shared / "job.out").read_text().split()) == 2, "its output")
    assert sorted((slurm.shared / "job.out").read_text().split()) == ["h1", "h2"]
    (slurm.shared / "job.out").unlink()


def test_squeue_says_why_a_job_waits_and_scancel_ends_what_runs(slurm: Rig) -> None:
    first = slurm["h0"]
    submit = ("sbatch", "--parsable", "--exclusive", "--nodes=2", "--output=/dev/null", "--wrap")
    running = first.run(*submit, "srun sleep 1234").stdout.strip()
    waiting = first.run(*submit, "true").stdout.strip()

    def seen(job: str) -> str:
        return first.run("squeue", "--noheader", f"--jobs={job}", "--format=%T %r").stdout.strip()

    until(lambda: seen(waiting) == "PENDING Resources", "the second job to wait")
    for name in ("h1", "h2"):
        until(lambda name=name: pids(slurm, name, "sleep 1234"), f"a step on {name}")
    first.run("scancel", waiting, running)
    until(lambda: not first.run("squeue", "--noheader").stdout, "the end of both")
    for name in ("h1", "h2"):
        until(lambda name=name: not pids(slurm, name, "sleep 1234"), f"its end on {name}")


def test_slurm_refuses_an_unknown_partition(slurm: Rig) -> None:
    done = slurm["h0"].run("srun", "--partition=nowhere", "true", check=False)
    assert done.returncode != 0
    assert "invalid partition" in done.stderr


# -------------------------------------------------------------------------------------------- MPI


def test_mpiexec_starts_a_command_on_both_hosts(ssh: Rig, mpi: Mpi) -> None:
    ranks = "echo $(hostname) ${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
    command = mpi.argv({"h1": 2, "h2": 2}, "sh", "-c", ranks)
    # What is asked is whether the rig can: Open MPI 5 failed once in some 200, or did not end.
    for _ in range(3):
        done = ssh["h0"].run("timeout", "--kill-after=5", "20", *command, check=False)
        if done.returncode == 0 and len(done.stdout.splitlines()) == 4:
            break
    assert done.returncode == 0, done
    started = [line.split() for line in done.stdout.splitlines()]
    assert Counter(host for host, _ in started) == {"h1": 2, "h2": 2}, done
    assert sorted(rank for _, rank in started) == ["0", "1", "2", "3"]


# ------------------------------------------------------------------------------------ ipyparallel

STOCK = """
import sys
import ipyparallel as ipp
from traitlets.config import Config
address, python, ssh_config = sys.argv[1:]
config = Config()
config.SSHEngineSetLauncher.engines = {"h1": 1, "h2": 1}
for name in ("SSHEngineSetLauncher", "SSHEngineLauncher"):
    config[name].ssh_args = config[name].scp_args = ["-F", ssh_config]
    config[name].remote_python = python
cluster = ipp.Cluster(engines="ssh", n=2, config=config, controller_ip=address, log_level=40,
                      controller_location=address)
client = cluster.start_and_connect_sync(n=2)
print("answer", *sorted(client[:].apply_sync(lambda: __import__("socket").gethostname())))
client.close()
cluster.stop_cluster_sync()
"""


@pytest.mark.any_jax
def test_ipyparallels_own_ssh_cluster_has_engines_on_both_hosts(ssh: Rig) -> None:
    first = ssh["h0"]
    command = (ssh.python, "-c", STOCK, first.address, ssh.python, ssh.ssh_config)
    done = first.run(*command, timeout_s=90)
    assert "answer h1 h2" in done.stdout, done.stderr
