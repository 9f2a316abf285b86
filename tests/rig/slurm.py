"""Slurm without systemd: slurmctld on h0, a slurmd on each other host, munged on all."""

from __future__ import annotations

import os

from helpers import until

from rig.hosts import DEADLINE_S, Missing, Rig, need
from rig.ssh import until_answered

CPUS = 4  # that each node says it has
GPUS = 4  # the same: empty devices, for which Slurm really sets CUDA_VISIBLE_DEVICES
CONFIG = """\
ClusterName=rig
SlurmctldHost=h0
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=/run/munge/munge.socket.2
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
GresTypes=gpu
SchedulerType=sched/backfill
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=5
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
"""
CGROUP = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
MUNGED = [
    *("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "--foreground"),
    *("--key-file=/etc/munge/munge.key", "--socket=/run/munge/munge.socket.2"),
    *("--pid-file=/run/munge/munged.pid", "--log-file=/run/munge/munged.log"),
    "--seed-file=/run/munge/munged.seed",
]
DAEMONS = ("munged", "slurmctld", "slurmd")


def start_slurm(rig: Rig) -> None:
    """Two idle nodes of 4 CPUs, h1 and h2, in partition debug; h0 is the login node."""
    need("slurmctld", package="slurmctld")
    need("slurmd", package="slurmd")
    need("srun", "sbatch", "scancel", "squeue", "sinfo", package="slurm-client")
    need("munged", package="munge")
    nodes = [rig[name] for name in ("h1", "h2")]
    config = CONFIG + "".join(
        f"NodeName={node.name} NodeAddr={node.address} CPUs={CPUS} RealMemory=4000 "
        f"Gres=gpu:{GPUS}\n"
        for node in nodes
    )
    names = ",".join(node.name for node in nodes)
    config += f"PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"
    key = os.urandom(1024)
    for host in rig.hosts.values():
        host.not_left_over += ["/run/munge", "/run/slurm"]
        host.write("/etc/slurm/slurm.conf", config)
        host.write("/etc/slurm/cgroup.conf", CGROUP)
        host.path("/run/slurm/spool").mkdir(parents=True)
        host.path("/run/slurm/state").mkdir()
        host.write("/etc/slurm/gres.conf", f"Name=gpu File=/run/slurm/gpu[0-{GPUS - 1}]\n")
        for number in range(GPUS):
            host.run("mknod", f"/run/slurm/gpu{number}", "c", "1", "3")  # as /dev/null
        host.write("/etc/munge/munge.key", "")
        host.path("/etc/munge/munge.key").write_bytes(key)
        host.path("/run/munge").mkdir(mode=0o755)
        host.run("chown", "-R", "munge:", "/etc/munge", "/run/munge")
        host.run("chmod", "0400", "/etc/munge/munge.key")
        host.start_daemon("munged", *MUNGED)
    for host in rig.hosts.values():
        until_answered(host, "munge", "--no-input")
    rig["h0"].start_daemon("slurmctld", "slurmctld", "-c", "-D")
    for node in nodes:
        node.start_daemon("slurmd", "slurmd", "-D")
    idle = ("sinfo", "--noheader", "--states=idle", "--format=%D")
    try:
        until(
            lambda: rig["h0"].run(*idle, check=False).stdout.strip() == str(len(nodes)),
            "idle Slurm nodes",
            DEADLINE_S,
        )
    except AssertionError as error:
        raise Missing(f"{error}: {logs(rig)}") from None


def logs(rig: Rig) -> str:
    """The last lines that Slurm's daemons have written."""
    found = [rig.folder / "log" / f"{host}.{name}.log" for host in rig.hosts for name in DAEMONS]
    return "\n".join(f"{log.name}: {log.read_text()[-600:]}" for log in found if log.exists())


def revive(rig: Rig) -> None:
    """Have the nodes up: one whose slurmd a cut, or a busy machine, kept from answering is down."""

    def down() -> list[str]:
        bad = ("sinfo", "--noheader", "--states=down,drain,fail", "--Node", "--format=%N")
        return sorted(set(rig["h0"].run(*bad, check=False).stdout.split()))

    def are_up() -> bool:
        for name in (names := down()):
            update = ("scontrol", "update", f"nodename={name}", "state=resume")
            rig["h0"].run(*update, check=False)
        return not names

    until(are_up, "Slurm's nodes", 60)
