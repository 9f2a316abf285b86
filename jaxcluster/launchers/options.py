"""The options of ``%jaxcluster start`` that belong to one launcher: which, and what they mean.

``add_to`` puts all of them into the start command's parser; ``launcher_of`` makes a launcher of
what was typed, and refuses an option that this launcher does not know.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import Launcher
from jaxcluster.launchers.hosts import Host, parse_hosts, read_hostfile
from jaxcluster.launchers.kube.launcher import Kubernetes, seconds_of
from jaxcluster.launchers.kube.manifests import Pod, pairs
from jaxcluster.launchers.mpi import MPI
from jaxcluster.launchers.slurm import Slurm
from jaxcluster.launchers.ssh import SSH
from jaxcluster.launchers.through_ipp import ThroughIPP
from jaxcluster.launchers.tpu import TPU
from jaxcluster.launchers.wishes import wish_of
from jaxcluster.text import join_words

NAMES = ("local", "auto", "ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp:NAME")
REMOTE = ("ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp")  # those with an agent on each host
KUBE = ("kubernetes",)


@dataclass(frozen=True)
class Option:
    """One option: its flag, whose it is, and how it is read.

    Attributes:
      flag: e.g. ``--hosts``.
      launchers: the launchers that know it.
      metavar: what stands for its value; empty for a switch.
      help: for ``--help``.
      read: makes a value of an argument; a ValueError says that it is none.
      repeated: whether it may be given several times.
    """

    flag: str
    launchers: tuple[str, ...]
    metavar: str
    help: str
    read: Callable[[str], object] = str
    repeated: bool = False

    @property
    def dest(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")


def _count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise ValueError
    return number


WHOLE: tuple[Callable[[str], object], ...] = (int, _count)  # how options read whole numbers


OPTIONS = (
    Option("--hosts", ("ssh", "mpi", "tpu"), "H:N,...", "hosts and their ranks: h1:2,user@h2:2"),
    Option("--hostfile", ("ssh", "mpi", "tpu"), "FILE", "the same, one per line: h1 slots=2"),
    Option("--python", REMOTE, "PATH", "the hosts' Python"),
    Option("--user", ("ssh", "tpu"), "NAME", "for hosts without their own"),
    Option("--port", ("ssh", "tpu"), "PORT", "of sshd, for hosts without their own", _count),
    Option("--jump", ("ssh", "tpu"), "HOST", "log in through it (ssh -J)"),
    Option("--ssh-config", ("ssh", "tpu"), "FILE", "an ssh config (ssh -F)"),
    Option(
        "--ssh-option", ("ssh", "tpu"), "NAME=VALUE", "as for ssh -o; may be repeated", str, True
    ),
    Option("--ssh", ("ssh", "tpu"), "COMMAND", "the command to use for ssh"),
    Option("--direct", ("ssh", "tpu", *KUBE), "", "reach the agents by TCP, not by a tunnel"),
    Option("--nodes", ("slurm", "ipp"), "N", "how many nodes", _count),
    Option("--ntasks-per-node", ("slurm", "ipp"), "N", "ranks on each node", _count),
    Option("--partition", ("slurm",), "NAME", "as for sbatch"),
    Option("--account", ("slurm",), "NAME", "as for sbatch"),
    Option("--qos", ("slurm",), "NAME", "as for sbatch"),
    Option("--time", ("slurm", "kubernetes"), "TIME", "the job's limit: 2:00:00 is two hours"),
    Option("--gres", ("slurm",), "LIST", "as for sbatch: gpu:4"),
    Option("--constraint", ("slurm",), "LIST", "as for sbatch"),
    Option("--cpus-per-task", ("slurm",), "N", "as for sbatch", _count),
    Option("--mem", ("slurm", "kubernetes"), "SIZE", "of a node: 64G; of a pod: 64Gi"),
    Option(
        "--sbatch",
        ("slurm",),
        "OPTION",
        "another #SBATCH option: exclusive; may be repeated",
        str,
        True,
    ),
    Option("--new-job", ("slurm",), "", "submit a job even inside an allocation"),
    Option("--tpu", ("tpu",), "NAME", "a TPU slice, or its queued resource, as gcloud names it"),
    Option("--zone", ("tpu",), "ZONE", "as for gcloud"),
    Option("--project", ("tpu",), "NAME", "as for gcloud"),
    Option("--internal-ip", ("tpu",), "", "log in to the hosts' internal addresses"),
    Option("--mpiexec", ("mpi",), "PATH", "which one"),
    Option("--mpi-args", ("mpi",), "WORDS", "further arguments for it"),
    Option("--image", KUBE, "IMAGE", "with Python, jax and this jaxcluster"),
    Option("--namespace", KUBE, "NAME", "as for kubectl"),
    Option("--pods", KUBE, "N", "how many pods", _count),
    Option("--ranks-per-pod", KUBE, "N", "ranks in each pod", _count),
    Option("--gpus", KUBE, "N", "nvidia.com/gpu of each pod", _count),
    Option("--cpu", KUBE, "N", "cores of each pod"),
    Option("--resource", KUBE, "NAME=N", "another device of each pod: amd.com/gpu=8", str, True),
    Option("--tpu-type", KUBE, "TYPE", "GKE's TPU: tpu-v5-lite-podslice"),
    Option("--tpu-topology", KUBE, "AxB", "of the TPU slice: 4x4"),
    Option("--tpu-chips", KUBE, "N", "TPU chips of each pod: 4", _count),
    Option("--label", KUBE, "NAME=VALUE", "of Job and pods, for Kueue; may be repeated", str, True),
    Option("--service-account", KUBE, "NAME", "the pods'"),
    Option("--pod-template", KUBE, "FILE", "a pod to which the rest is added"),
    Option("--kubeconfig", KUBE, "FILE", "as for kubectl"),
    Option("--context", KUBE, "NAME", "of the kubeconfig"),
    Option("--ipp-profile", ("ipp",), "NAME", "an ipyparallel profile with its settings"),
    Option("--sync", REMOTE, "FOLDER", "the folder with the code for the hosts; '' for none"),
    Option("--no-sync", REMOTE, "", "don't send code to the hosts"),
)
BY_DEST = {option.dest: option for option in OPTIONS}
EXAMPLES = {
    "local": "%jaxcluster start -n 4",
    "ssh": "%jaxcluster start --launcher ssh --hosts h1:2,h2:2",
    "slurm": "%jaxcluster start --launcher slurm --nodes 2 --ntasks-per-node 2",
    "mpi": "%jaxcluster start --launcher mpi --hosts h1:2,h2:2",
    "tpu": "%jaxcluster start --launcher tpu --tpu NAME --zone us-central2-b",
    "kubernetes": "%jaxcluster start --launcher kubernetes --image team/jax:1 --pods 2 --gpus 8",
    "ipp": "%jaxcluster start --launcher ipp:pbs --ipp-profile NAME --nodes 2 -n 4",
}


def add_to(parser: argparse.ArgumentParser) -> None:
    """All options of all launchers; what was not typed is None."""
    for option in OPTIONS:
        told = f"{option.help} ({', '.join(option.launchers)})"
        if not option.metavar:
            parser.add_argument(option.flag, action="store_const", const="yes", help=told)
            add_taken_back(parser, option, option.dest)
        else:
            action = "append" if option.repeated else "store"
            parser.add_argument(option.flag, metavar=option.metavar, action=action, help=told)


def add_taken_back(parser: argparse.ArgumentParser, option: Option, dest: str) -> None:
    """``--no-detach`` and its like: what a profile has switched on is not wanted."""
    if not option.dest.startswith("no_"):
        parser.add_argument(
            f"--no-{option.flag[2:]}",
            action="store_const",
            const=False,
            dest=dest,
            help=argparse.SUPPRESS,
        )


def add_way_to(parser: argparse.ArgumentParser) -> None:
    """Those that say how to log in to hosts where agents are already."""
    for option in OPTIONS:
        if "ssh" in option.launchers and option.dest not in ("direct", "sync", "no_sync"):
            action = "append" if option.repeated else "store"
            told = option.help.replace(" and their ranks: h1:2,user@h2:2", ": h1 or user@h1,h2")
            parser.add_argument(option.flag, metavar=option.metavar, action=action, help=told)


def taken_from(parsed: argparse.Namespace) -> dict[str, str | list[str]]:
    """What was typed of them, by ``Option.dest``; taken out of ``parsed``."""
    found = {dest: vars(parsed).pop(dest, None) for dest in BY_DEST}
    return {dest: value for dest, value in found.items() if value is not None}


def launcher_of(
    name: str | None, typed: dict[str, str | list[str]], num_processes: int | None = None
) -> tuple[Launcher | None, str]:
    """(the launcher that was asked for, the hosts' Python or nothing); None stands for local.

    Args:
      name: what stands behind ``--launcher``; None where it was not typed.
      typed: what ``taken_from`` found; in Python, keyword arguments of the same names.
      num_processes: ``-n``.

    Raises:
      UsageError: there is no such launcher, it does not know an option, or a value is none.
    """
    kind, rest = check(name or "local", typed)
    given = {dest: _read(BY_DEST[dest], value) for dest, value in typed.items()}
    # No other machine's path to a Python means anything in an image.
    python = str(given.pop("python", "python3" if kind == "kubernetes" else ""))
    wish_of(given)
    makers = {
        "ssh": _ssh, "slurm": _slurm, "mpi": _mpi, "tpu": _tpu, "kubernetes": _kubernetes,
        "ipp": _ipp,
    }  # fmt: skip
    make = makers.get(kind)
    if make is None:
        return None, ""
    return make(_Given(given), num_processes, rest), python


def check(name: str, typed: Mapping[str, str | list[str]]) -> tuple[str, str]:
    """(which launcher, what stands behind its colon), if it knows these options.

    Raises:
      UsageError: there is no such launcher, or it does not know an option.
    """
    kind, colon, rest = name.partition(":")
    if kind not in EXAMPLES or (colon and kind != "ipp") or (kind == "ipp" and not rest):
        close = [n for n in difflib.get_close_matches(name, NAMES, n=1) if n != name]
        wrong = f"There is no launcher {name!r}"
        if kind == "ipp":
            wrong = "ipp needs the name of one of ipyparallel's launchers"
        elif close:
            wrong += f" (did you mean {close[0]}?)"
        example = EXAMPLES["ipp" if kind == "ipp" else "ssh"]
        raise UsageError(f"{wrong}.", f"There are: {', '.join(NAMES)}. For example: {example}")
    _refuse_foreign(kind, typed)
    return kind, rest


def _refuse_foreign(kind: str, typed: Mapping[str, str | list[str]]) -> None:
    """Each launcher has its options; one that another knows is named with those."""
    for dest in typed:
        option = BY_DEST.get(dest)
        if option is not None and kind in option.launchers:
            continue
        word = option.flag if option is not None else f"--{dest.replace('_', '-')}"
        mine = [o.flag for o in OPTIONS if kind in o.launchers]
        of = f"; it is one of {join_words(option.launchers)}" if option is not None else ""
        raise UsageError(
            f"--launcher {kind} does not know {word}{of}.",
            (f"It takes: {' '.join(mine)}. " if mine else "") + f"For example: {EXAMPLES[kind]}",
        )


def _read(option: Option, value: str | list[str]) -> object:
    """The value of one option.

    Raises:
      UsageError: it is none.
    """
    if isinstance(value, list):
        return tuple(value)
    if option.metavar and not value.strip() and option.flag != "--sync":
        raise UsageError(f"{option.flag} has no value.", f"{option.flag} {option.metavar}")
    try:
        return option.read(value)
    except ValueError:
        raise UsageError(
            f"{option.flag} must be a whole number from 1 up, not {value!r}.",
            f"For example: {option.flag} 2",
        ) from None


class _Given:
    """What was given, with types; each is asked for as what it is."""

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values

    def text(self, dest: str) -> str:
        return str(self._values.get(dest, ""))

    def number(self, dest: str) -> int | None:
        value = self._values.get(dest)
        return value if isinstance(value, int) else None

    def several(self, dest: str) -> tuple[str, ...]:
        value = self._values.get(dest, ())
        return tuple(map(str, value)) if isinstance(value, tuple) else ()

    def arguments(self, dest: str) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(self.text(dest)))
        except ValueError as error:
            raise UsageError(f"{BY_DEST[dest].flag}: {error}.", "Close the quotes.") from None

    def switch(self, dest: str) -> bool:
        return bool(self._values.get(dest))


def _home(path: str) -> str:
    """No shell stands between us and the launcher's command."""
    return os.path.expanduser(path)


def _hosts(given: _Given, kind: str) -> tuple[Host, ...]:
    hosts, file = given.text("hosts"), given.text("hostfile")
    if hosts and file:
        raise UsageError("--hosts and --hostfile can't be used together.", "Leave out one of them.")
    if file:
        return read_hostfile(Path(file))
    if not hosts and kind == "ssh":
        raise UsageError("--launcher ssh needs hosts.", f"For example: {EXAMPLES['ssh']}")
    return parse_hosts(hosts) if hosts else ()


def _ssh(given: _Given, num_processes: int | None, rest: str) -> Launcher:
    return SSH(_hosts(given, "ssh"), num_processes, **_login(given))


def _tpu(given: _Given, num_processes: int | None, rest: str) -> Launcher:
    hosts, name = _hosts(given, "tpu"), given.text("tpu")
    if hosts and name:
        raise UsageError("--tpu and --hosts can't be used together.", "Leave out one of them.")
    if name.startswith("-"):
        raise UsageError(f"--tpu can't be {name!r}.", EXAMPLES["tpu"])
    for dest in ("zone", "project", "internal_ip"):
        if given.text(dest) and not name:
            raise UsageError(f"{BY_DEST[dest].flag} goes with --tpu NAME.", EXAMPLES["tpu"])
    return TPU(
        hosts,
        num_processes,
        **_login(given),
        tpu=name,
        zone=given.text("zone"),
        project=given.text("project"),
        internal_ip=given.switch("internal_ip"),
    )


def _login(given: _Given) -> dict[str, Any]:
    """How ssh is to log in: what ``SSH`` and ``TPU`` have in common."""
    for option in given.several("ssh_option"):
        if "=" not in option.strip("="):
            raise UsageError(
                f"--ssh-option: {option!r} is not of the form NAME=VALUE.",
                "For example: --ssh-option IdentityFile=~/.ssh/cluster",
            )
    port = given.number("port")
    if port is not None and port > 65535:
        raise UsageError(f"--port: {port} is not a port from 1 to 65535.", "--port 2222")
    for dest in ("jump", "user"):
        if given.text(dest).startswith("-"):
            raise UsageError(f"--{dest} can't be {given.text(dest)!r}.", EXAMPLES["ssh"])
    return {
        "ssh": given.arguments("ssh") or ("ssh",),
        "config": _home(given.text("ssh_config")),
        "options": given.several("ssh_option"),
        "jump": given.text("jump"),
        "user": given.text("user") or None,
        "port": port,
        "direct": given.switch("direct"),
    }


def _slurm(given: _Given, num_processes: int | None, rest: str) -> Launcher:
    return Slurm(
        num_processes,
        nodes=given.number("nodes"),
        ntasks_per_node=given.number("ntasks_per_node"),
        partition=given.text("partition"),
        account=given.text("account"),
        qos=given.text("qos"),
        time=given.text("time"),
        gres=given.text("gres"),
        constraint=given.text("constraint"),
        cpus_per_task=given.number("cpus_per_task"),
        mem=given.text("mem"),
        extra=given.several("sbatch"),
        new_job=given.switch("new_job"),
    )


def _mpi(given: _Given, num_processes: int | None, rest: str) -> Launcher:
    return MPI(
        _hosts(given, "mpi"),
        num_processes,
        mpiexec=_home(given.text("mpiexec")) or "mpiexec",
        extra=given.arguments("mpi_args"),
    )


def _kubernetes(given: _Given, num_processes: int | None, rest: str) -> Launcher:
    time = given.text("time")
    return Kubernetes(
        num_processes,
        given.number("pods"),
        given.number("ranks_per_pod"),
        Pod(
            image=given.text("image"),
            cpu=given.text("cpu"),
            memory=given.text("mem"),
            gpus=given.number("gpus"),
            resources=pairs(given.several("resource"), "--resource", "amd.com/gpu=8"),
            tpu=given.text("tpu_type"),
            topology=given.text("tpu_topology"),
            chips=given.number("tpu_chips"),
            labels=pairs(given.several("label"), "--label", "kueue.x-k8s.io/queue-name=team-a"),
            service_account=given.text("service_account"),
        ),
        namespace=given.text("namespace"),
        deadline_s=seconds_of(time) if time else None,
        kubeconfig=_home(given.text("kubeconfig")),
        context=given.text("context"),
        direct=given.switch("direct"),
        pod_template=_home(given.text("pod_template")),
    )


def _ipp(given: _Given, num_processes: int | None, rest: str) -> Launcher:
    return ThroughIPP(
        rest,
        profile=given.text("ipp_profile"),
        agents=given.number("nodes") or 1,
        num_processes=num_processes,
        ranks_each=given.number("ntasks_per_node"),
    )
