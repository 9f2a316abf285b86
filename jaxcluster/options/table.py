"""Every option of a start, declared once. Pure.

The command line, ``--help``, profiles, the launchers' parts and the page's form are made from
``OPTIONS``; nothing else lists them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxcluster.errors import UsageError
from jaxcluster.options.kinds import (
    COUNT,
    DEVICE_IDS,
    DEVICES,
    HOSTS,
    REPEATED,
    SECONDS,
    SWITCH,
    TEXT,
    TEXTS,
    VARIABLES,
    Kind,
)
from jaxcluster.text import join_words

START = "%jaxcluster start"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# By launcher: what an example of one of its options begins with.
LINES = {
    "local": "-n 4",
    "ssh": "--launcher ssh --hosts h1,h2",
    "slurm": "--launcher slurm --nodes 2",
    "mpi": "--launcher mpi -n 4",
    "tpu": "--launcher tpu --tpu my-pod --zone us-central2-b",
    "kubernetes": "--launcher kubernetes --image team/jax:1",
    "ipp": "--launcher ipp:pbs",
}
# By launcher: a whole start with it.
EXAMPLES = {
    "local": "%jaxcluster start -n 4",
    "ssh": "%jaxcluster start --launcher ssh --hosts h1:2,h2:2",
    "slurm": "%jaxcluster start --launcher slurm --nodes 2 --ntasks-per-node 2",
    "mpi": "%jaxcluster start --launcher mpi --hosts h1:2,h2:2",
    "tpu": "%jaxcluster start --launcher tpu --tpu NAME --zone us-central2-b",
    "kubernetes": "%jaxcluster start --launcher kubernetes --image team/jax:1 --pods 2 --gpus 8",
    "ipp": "%jaxcluster start --launcher ipp:pbs --ipp-profile NAME --nodes 2 -n 4",
}
NAMES = ("local", "auto", "ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp:NAME")
REMOTE = ("ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp")  # those with an agent on each host
LISTED = ("ssh", "mpi", "tpu")  # whose hosts may be named
BY_SSH = ("ssh", "tpu")
NODES = ("slurm", "ipp")
NO_OPTION = r"[^-].*"  # what ssh and gcloud would take for an option of theirs
VISIBLE = r"[^\x00-\x1f\x7f]+"
KUBE_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
SLURM, TPU, MPI, KUBE, IPP = ("slurm",), ("tpu",), ("mpi",), ("kubernetes",), ("ipp",)


@dataclass(frozen=True)
class Field:
    """An option's field in the page's form.

    Attributes:
      label: what stands above it.
      help: what stands below it; "" for the option's own.
      empty: what is seen in it while it is empty; "" stands for "automatic".
      launchers: those with which the form asks for it; () for all that know it.
    """

    label: str
    help: str = ""
    empty: str = ""
    launchers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """One option of a start.

    Attributes:
      flag: as it is typed: ``--hosts``.
      kind: what its values are.
      metavar: what stands for its value in ``--help``; "" for a switch.
      help: what it is for.
      sample: a value, for the example in ``--help``; what else must follow comes behind it.
      launchers: those that know it; () for an option of every start.
      field: in the page's form; None where it has none there.
      short: another flag, which is the one that is shown.
      start: what the example begins with; None for the line of its first launcher.
      argument: what ``make_spec`` calls it; "" if it is the flag's name.
      is_typed_only: whether a profile can't have it.
      pattern: what its text, or each of its texts, must match; "" for any.
    """

    flag: str
    kind: Kind
    metavar: str
    help: str
    sample: str = ""
    launchers: tuple[str, ...] = ()
    field: Field | None = None
    short: str = ""
    start: str | None = None
    argument: str = ""
    is_typed_only: bool = False
    pattern: str = ""

    @property
    def name(self) -> str:
        """The argument of ``make_spec``."""
        return self.argument or self.dest

    @property
    def dest(self) -> str:
        """The flag as a name."""
        return self.flag.lstrip("-").replace("-", "_")

    @property
    def shown(self) -> str:
        """The flag that is shown."""
        return self.short or self.flag

    @property
    def is_repeated(self) -> bool:
        return self.kind in REPEATED

    @property
    def example(self) -> str:
        """What would be typed behind ``start``."""
        start = LINES[(self.launchers or ("local",))[0]] if self.start is None else self.start
        glue = "" if self.sample.startswith("=") else " "
        return f"{start} {self.shown}{glue}{self.sample}".strip()

    def load(self, value: object) -> Any:
        """What ``make_spec`` takes of a value in a file. A launcher's stay text, as if typed.

        Raises:
          ValueError: it is not of this kind; the text says what it must be.
        """
        found = self.kind.load(value)
        return str(found) if self.launchers and self.kind is COUNT else found

    def check(self, value: Any) -> None:
        """Refuse a value that it can't have, as Python's callers may give one.

        Raises:
          UsageError: naming the option, with a line to type.
        """
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        wrong = ""
        if value is not None and self.kind in (COUNT, DEVICES, SECONDS):
            try:
                self.kind.load(value)
            except ValueError as error:
                wrong = f"{self.shown} must be {error}, not {shown}."
        elif value is not None and not self.kind.is_right(value):
            is_secret = self.kind is VARIABLES  # perhaps
            given = type(value).__name__ if is_secret else shown
            wrong = f"{self.shown} must be {self.kind.wanted}, not {given}."
        elif self.kind is TEXTS and self.pattern:
            for one in value:
                if not re.fullmatch(self.pattern, one, re.DOTALL):
                    wrong = f"{self.flag}: {one!r} is not of the form {self.metavar}."
        elif self.pattern and not re.fullmatch(self.pattern, value):
            wrong = f"{self.flag} can't be {shown}."
        if wrong:
            raise UsageError(wrong, f"For example: {START} {self.example}")


OPTIONS = (
    Option("--num-processes", COUNT, "N",
        "how many ranks (default: one for each GPU or TPU chip, else 2 on CPU)", "4", short="-n",
        start="", field=Field("Ranks", "Processes, in all")),
    Option("--devices-per-process", DEVICES, "D",
        "how many devices each rank gets (default on CPU: 1)", "2",
        field=Field("Devices of each", "On CPU as many as you like; “all” of a host's GPUs")),
    Option("--platform", TEXT, "PLATFORM", "cpu, cuda, rocm or tpu (default: what the machine has)",
        "cpu", field=Field("Platform", "What there is, if automatic")),
    Option("--launcher", TEXT, "NAME",
        "default: local (this machine); auto: the job, mpiexec or TPU slice that this runs in",
        "ssh --hosts h1:2,h2:2", start="", field=Field("Where")),
    Option("--name", TEXT, "NAME", "the cluster's name (default: main)",
        "small", start="-n 2", field=Field("Name", "To attach to it by")),
    Option("--env", VARIABLES, "NAME=VALUE",
        "a variable of the processes' environment; may be repeated",
        "XLA_FLAGS=--xla_dump_to=/tmp/dump",
        field=Field("Environment", empty="NAME=VALUE, one per line")),
    Option("--timeout", SECONDS, "S", "seconds that the start may take (60)", "300", start="-n 64",
        argument="timeout_s", field=Field("Time limit", "Seconds for the start", "60")),
    Option("--detach", SWITCH, "", "keep the cluster running when this process ends",
        field=Field("Keep it running when the kernel ends")),
    Option("--local-device-ids", DEVICE_IDS, "0,1",
        "the GPUs or TPU chips of each process; 0/1 for one list per process", "0/1/2/3",
        start="-n 4 --platform cuda"),
    Option("--coordinator-address", TEXT, "HOST:PORT",
        "where JAX's coordinator listens: HOST:PORT or unix:/PATH", "127.0.0.1:8476"),
    Option("--coordinator-bind-address", TEXT, "HOST:PORT",
        "the address that it binds to, if that differs", "0.0.0.0:8476",
        start="-n 4 --coordinator-address h1:8476"),
    Option("--initialization-timeout", COUNT, "S", "seconds that JAX's own initialization may take",
        "600"),
    Option("--heartbeat-timeout-seconds", COUNT, "S",
        "seconds without a heartbeat before JAX gives up on a rank (100)", "300"),
    Option("--profile", TEXT, "NAME",
        "options from [profile.NAME] in a jaxcluster.toml; options you type override them. "
        "%jaxcluster profiles lists them, and what each sets", "team -n 8", start="",
        is_typed_only=True),
    Option("--no-profile", SWITCH, "",
        "no profile, even if there is a default (default = NAME in the user's or site's file)",
        is_typed_only=True),
    Option("--dry-run", SWITCH, "", "print what would be started, and start nothing",
        is_typed_only=True),
    # ---- the launchers' own
    Option("--hosts", HOSTS, "H:N,...", "hosts and their ranks: h1:2,user@h2:2", "h1:2,user@h2:2",
        LISTED, start="--launcher ssh",
        field=Field("Hosts", "With the number of ranks on each", "h1:2,user@h2:2", ("ssh", "mpi"))),
    Option("--hostfile", TEXT, "FILE", "the same, one per line: h1 slots=2", "~/hosts", LISTED,
        start="--launcher mpi"),
    Option("--user", TEXT, "NAME", "for hosts without their own", "ann", BY_SSH, pattern=NO_OPTION),
    Option("--port", COUNT, "PORT", "of sshd, for hosts without their own", "2222", BY_SSH),
    Option("--jump", TEXT, "HOST", "log in through it (ssh -J)", "login.example.org", BY_SSH,
        pattern=NO_OPTION),
    Option("--ssh-config", TEXT, "FILE", "an ssh config (ssh -F)", "~/.ssh/cluster", BY_SSH),
    Option("--ssh-option", TEXTS, "NAME=VALUE", "as for ssh -o; may be repeated",
        "IdentityFile=~/.ssh/key", BY_SSH, pattern=r"[^=]+=.+"),
    Option("--ssh", TEXT, "COMMAND", "the command to use for ssh", "'gcloud compute ssh'", BY_SSH),
    Option("--direct", SWITCH, "", "reach the agents by TCP, not by a tunnel",
        launchers=(*BY_SSH, *KUBE)),
    Option("--ipp-profile", TEXT, "NAME", "an ipyparallel profile with its settings", "pbs -n 4",
        IPP, Field("Its profile", "An ipyparallel profile of yours", "default")),
    Option("--nodes", COUNT, "N", "how many nodes", "2 --ntasks-per-node 4", NODES,
        start="--launcher slurm", field=Field("Nodes", "How many", "1")),
    Option("--ntasks-per-node", COUNT, "N", "ranks on each node", "4", NODES,
        Field("On each node", "How many ranks")),
    Option("--partition", TEXT, "NAME", "as for sbatch", "gpu", SLURM, Field("Partition"),
        pattern=VISIBLE),
    Option("--account", TEXT, "NAME", "as for sbatch", "physics", SLURM, Field("Account"),
        pattern=VISIBLE),
    Option("--qos", TEXT, "NAME", "as for sbatch", "debug", SLURM, pattern=VISIBLE),
    Option("--time", TEXT, "TIME", "the job's limit: 2:00:00 is two hours", "2:00:00",
        (*SLURM, *KUBE), Field("Job's time", "At most: 2:00:00 is two hours", launchers=SLURM)),
    Option("--gres", TEXT, "LIST", "as for sbatch: gpu:4", "gpu:4", SLURM, pattern=VISIBLE),
    Option("--constraint", TEXT, "LIST", "as for sbatch", "h200", SLURM, pattern=VISIBLE),
    Option("--cpus-per-task", COUNT, "N", "as for sbatch", "8", SLURM),
    Option("--sbatch", TEXTS, "OPTION", "another #SBATCH option: exclusive; may be repeated",
        "exclusive", SLURM),
    Option("--new-job", SWITCH, "", "submit a job even inside an allocation", launchers=SLURM),
    Option("--tpu", TEXT, "NAME", "a TPU slice, or its queued resource, as gcloud names it",
        "my-pod --zone us-central2-b", TPU, start="--launcher tpu",
        field=Field("TPU", "As gcloud names it; empty for the one that this runs on", "my-pod"),
        pattern=NO_OPTION),
    Option("--zone", TEXT, "ZONE", "as for gcloud", "us-central2-b", TPU,
        start="--launcher tpu --tpu my-pod", field=Field("Zone")),
    Option("--project", TEXT, "NAME", "as for gcloud", "mine", TPU, Field("Project")),
    Option("--internal-ip", SWITCH, "", "log in to the hosts' internal addresses", launchers=TPU),
    Option("--mpiexec", TEXT, "PATH", "which one", "/opt/mpi/bin/mpiexec", MPI),
    Option("--mpi-args", TEXT, "WORDS", "further arguments for it", "='--bind-to none'", MPI),
    Option("--image", TEXT, "IMAGE", "with Python, jax and this jaxcluster", "team/jax:1", KUBE,
        start="--launcher kubernetes", field=Field("Image", empty="team/jax:1"),
        pattern=r"[^\s-]\S*"),
    Option("--pods", COUNT, "N", "how many pods", "2", KUBE, Field("Pods", "How many", "1")),
    Option("--ranks-per-pod", COUNT, "N", "ranks in each pod", "4", KUBE,
        Field("In each pod", "How many ranks")),
    Option("--gpus", COUNT, "N", "nvidia.com/gpu of each pod", "8", KUBE,
        Field("GPUs", "Of each pod (nvidia.com/gpu)", "none")),
    Option("--cpu", TEXT, "N", "cores of each pod", "32", KUBE),
    Option("--mem", TEXT, "SIZE", "of a node: 64G; of a pod: 64Gi", "64G", (*SLURM, *KUBE),
        Field("Memory", "Of each pod", "64Gi", KUBE), pattern=VISIBLE),
    Option("--resource", TEXTS, "NAME=N", "another device of each pod: amd.com/gpu=8",
        "amd.com/gpu=8", KUBE, pattern=r"[^=]+=.*"),
    Option("--tpu-type", TEXT, "TYPE", "GKE's TPU: tpu-v5-lite-podslice",
        "tpu-v6e-slice --tpu-topology 4x4", KUBE),
    Option("--tpu-topology", TEXT, "AxB", "of the TPU slice: 4x4", "4x4", KUBE,
        start=f"{LINES['kubernetes']} --tpu-type tpu-v6e-slice", pattern=r"[0-9]+(x[0-9]+){1,2}"),
    Option("--tpu-chips", COUNT, "N", "TPU chips of each pod: 4", "4", KUBE,
        start=f"{LINES['kubernetes']} --tpu-type tpu-v6e-slice --tpu-topology 4x4"),
    Option("--namespace", TEXT, "NAME", "as for kubectl", "team-a", KUBE, Field("Namespace"),
        pattern=KUBE_NAME),
    Option("--label", TEXTS, "NAME=VALUE", "of Job and pods, for Kueue; may be repeated", "team=a",
        KUBE, pattern=r"[^=]+=.*"),
    Option("--service-account", TEXT, "NAME", "the pods'", "jax", KUBE, pattern=KUBE_NAME),
    Option("--run-as-user", COUNT, "UID", "the user of the pods, for Pod Security's 'restricted'",
        "1000", KUBE),
    Option("--pod-template", TEXT, "FILE", "a pod to which the rest is added", "pod.yaml", KUBE),
    Option("--kubeconfig", TEXT, "FILE", "as for kubectl", "~/.kube/other", KUBE),
    Option("--context", TEXT, "NAME", "of the kubeconfig", "gke", KUBE),
    Option("--python", TEXT, "PATH", "the hosts' Python", "~/venv/bin/python", REMOTE,
        Field("Python", "Its path on the hosts; else this kernel's, in a pod python3")),
    Option("--sync", TEXT, "FOLDER", "the folder with the code for the hosts; '' for none",
        "~/project", REMOTE),
    Option("--no-sync", SWITCH, "", "don't send code to the hosts", launchers=REMOTE),
)  # fmt: skip
BY_NAME = {option.name: option for option in OPTIONS}
OF_LAUNCHERS = {option.name: option for option in OPTIONS if option.launchers}
IN_PROFILES = {option.name: option for option in OPTIONS if not option.is_typed_only}
COMMON = {name: option for name, option in IN_PROFILES.items() if not option.launchers}
# Those that say how to log in to hosts where agents are already.
LOGIN = tuple(
    option
    for option in OPTIONS
    if "ssh" in option.launchers and option.name not in ("direct", "sync", "no_sync")
)


def find(written: str) -> Option | None:
    """The option of a profile's word: as it is typed, without the dashes."""
    dest = written.replace("-", "_")
    found = (one for one in IN_PROFILES.values() if dest == one.dest or f"-{dest}" == one.short)
    return next(found, None)


def kind_of(launcher: object) -> str:
    """``ipp`` of ``ipp:pbs``; ``local`` where none was named."""
    return str(launcher or "local").partition(":")[0]


def check_launcher(name: str, given: Iterable[str]) -> tuple[str, str]:
    """(which launcher, what stands behind its colon), if it knows these options.

    Args:
      given: the options' names.

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
    for one in given:
        option = OF_LAUNCHERS.get(one)
        if option is not None and kind in option.launchers:
            continue
        flag = option.flag if option is not None else f"--{one.replace('_', '-')}"
        mine = [o.flag for o in OPTIONS if kind in o.launchers]
        of = f"; it is one of {join_words(option.launchers)}" if option is not None else ""
        raise UsageError(
            f"--launcher {kind} does not know {flag}{of}.",
            (f"It takes: {' '.join(mine)}. " if mine else "") + f"For example: {EXAMPLES[kind]}",
        )
    return kind, rest


def check_platform(platform: str) -> None:
    """Refuse a platform that there is not.

    Raises:
      UsageError: it is not one of ``PLATFORMS``.
    """
    if platform not in PLATFORMS:
        raise UsageError(
            f"There is no platform {platform!r}: it is cpu, cuda, rocm or tpu.",
            f"Try: {START} --platform {'cuda' if platform == 'gpu' else 'cpu'}",
        )
