"""``--launcher kubernetes``: what is to be made, as manifests, and the command that makes it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    AgentOptions,
    Command,
    End,
    Launcher,
    LaunchPlan,
    PlannedFile,
    Reason,
)
from jaxcluster.launchers.hosts import place_on
from jaxcluster.launchers.kube import manifests, template
from jaxcluster.launchers.kube.manifests import Pod
from jaxcluster.launchers.reasons import how_it_ended, last_line
from jaxcluster.launchers.shared_options import DIRECT, MEM, TIME
from jaxcluster.options.table import Field, Option
from jaxcluster.options.value_types import COUNT, PATH, TEXT, TEXTS
from jaxcluster.supervision.starting import ROOT

MODULE = "jaxcluster.launchers.kube.process"
NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
# Its options; the others are the pod's, of which some have a name of their own there.
OF_LAUNCHER = (
    "pods", "ranks_per_pod", "namespace", "time", "kubeconfig", "context", "direct", "pod_template",
)  # fmt: skip
OF_POD = {
    "mem": "memory", "resource": "resources", "tpu_type": "tpu", "tpu_topology": "topology",
    "tpu_chips": "chips", "label": "labels",
}  # fmt: skip
DEADLINE_S = 24 * 3600  # where nothing of the cluster's own ends the Job with the notebook
WARN_S = 600.0  # before the deadline
LOOK_S = 30.0
STOP_S = 30.0  # for the deletion
TOLD = "jaxcluster-kubernetes"  # a line of the process's that is for explain()
LEFT = "could not be deleted"  # in such a line: the Job is there still
LOGIN = "the kubeconfig's login has not answered yet"
# What it writes into the launch's folder.
WAITING, STARTED_AT, SEEN = "waiting", "deadline", "pod-{}.json"


@dataclass(frozen=True)
class Kubernetes(Launcher):
    """``--launcher kubernetes``.

    Attributes:
      num_processes: ``-n``; None where ``ranks_per_pod`` or the pods' devices decide it.
      pods: how many; None means 1, or as many as a TPU slice has hosts.
      ranks_per_pod: how many ranks each pod gets.
      namespace: empty for that of the context, or of the notebook's own pod.
      deadline_s: after which Kubernetes ends the Job, however it is; None for none of the user's.
      kubeconfig: a file; empty for the usual ones.
      context: of the kubeconfig; empty for its current one.
      direct: whether pods are reached at their own addresses also from outside of the cluster.
      pod_template: a file; ``prepared`` reads it.
      inside: whether this process is in a pod itself; ``prepared`` fills it in.
      here: this machine's Python.
    """

    num_processes: int | None = None
    pods: int | None = None
    ranks_per_pod: int | None = None
    pod: Pod = field(default_factory=Pod)
    namespace: str = ""
    deadline_s: int | None = None
    kubeconfig: str = ""
    context: str = ""
    direct: bool = False
    pod_template: str = ""
    inside: bool = False
    here: str = sys.executable

    name = "kubernetes"
    start = "--launcher kubernetes --image team/jax:1"
    example = "%jaxcluster start --launcher kubernetes --image team/jax:1 --pods 2 --gpus 8"
    python = "python3"  # no other machine's path to a Python means anything in an image
    options = (
        Option("--image", TEXT, "IMAGE", "image with Python, jax, this jaxcluster", "team/jax:1",
            start="--launcher kubernetes", field=Field("Image", empty="team/jax:1"),
            pattern=r"[^\s-]\S*"),
        Option("--pods", COUNT, "N", "how many pods", "2", field=Field("Pods", "How many", "1")),
        Option("--ranks-per-pod", COUNT, "N", "ranks in each pod", "4",
            field=Field("In each pod", "How many ranks")),
        Option("--gpus", COUNT, "N", "nvidia.com/gpu of each pod", "8",
            field=Field("GPUs", "Of each pod (nvidia.com/gpu)", "none")),
        Option("--cpu", TEXT, "N", "cores of each pod", "32"),
        MEM,
        Option("--resource", TEXTS, "NAME=N", "another device of each pod: amd.com/gpu=8",
            "amd.com/gpu=8", pattern=r"[^=]+=.*"),
        Option("--tpu-type", TEXT, "TYPE", "GKE's TPU: tpu-v5-lite-podslice",
            "tpu-v6e-slice --tpu-topology 4x4"),
        Option("--tpu-topology", TEXT, "AxB", "the TPU slice's topology: 4x4", "4x4",
            start=f"{start} --tpu-type tpu-v6e-slice", pattern=r"[0-9]+(x[0-9]+){1,2}"),
        Option("--tpu-chips", COUNT, "N", "TPU chips of each pod: 4", "4",
            start=f"{start} --tpu-type tpu-v6e-slice --tpu-topology 4x4"),
        TIME,
        Option("--namespace", TEXT, "NAME", "as for kubectl", "team-a", field=Field("Namespace"),
            pattern=NAME),
        Option("--label", TEXTS, "NAME=VALUE", "a label of Job and pods (Kueue); may be repeated",
            "team=a", pattern=r"[^=]+=.*"),
        Option("--service-account", TEXT, "NAME", "the pods' service account", "jax", pattern=NAME),
        Option("--run-as-user", COUNT, "UID",
            "the user of the pods, for Pod Security's 'restricted'", "1000"),
        Option("--pod-template", PATH, "FILE", "a pod to which the rest is added", "pod.yaml"),
        Option("--kubeconfig", PATH, "FILE", "as for kubectl", "~/.kube/other"),
        Option("--context", TEXT, "NAME", "a context of the kubeconfig", "gke"),
        DIRECT,
    )  # fmt: skip

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        own = {name: given.pop(name) for name in OF_LAUNCHER if name in given}
        pod = {OF_POD.get(name, name): value for name, value in given.items()}
        for name in {"resources", "labels"} & {*pod}:
            pod[name] = tuple(tuple(one.split("=", 1)) for one in pod[name])
        if "time" in own:
            own["deadline_s"] = seconds_of(own.pop("time"))
        return super().of({**own, "pod": Pod(**pod)}, num_processes)

    def prepared(self, environ: Mapping[str, str]) -> Kubernetes:
        if importlib.util.find_spec("kubernetes") is None:
            raise LauncherUnavailable(
                "--launcher kubernetes needs the Kubernetes client, which is not installed.",
                "pip install 'jaxcluster[k8s]'",
            )
        read = self.pod
        if self.pod_template:
            read = replace(read, template=template.read(Path(self.pod_template)))
        named = self.kubeconfig or self.context
        inside = bool(environ.get("KUBERNETES_SERVICE_HOST")) and not named
        return replace(self, pod=read, inside=inside)

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        manifests.check(self.pod)
        pods = self._count()
        deadline_s = self.deadline_s
        if deadline_s is None and not self.inside:
            deadline_s = DEADLINE_S
        name = manifests.name_of(agent, folder)
        through = not (self.inside or self.direct)
        task = {
            "name": name,
            "pods": pods,
            "namespace": self.namespace,
            "kubeconfig": self.kubeconfig,
            "context": self.context,
            "inside": self.inside,
            "forward": through,
            "deadline_s": DEADLINE_S,  # where the notebook's pod can't own the Job
            "python": agent.python,
        }
        made = {
            "job": manifests.job(name, pods, agent, self.pod, deadline_s),
            "service": manifests.service(name, agent.cluster),
            "task": task,
        }
        files = tuple(
            PlannedFile(f"{folder}/{what}.json", json.dumps(value, indent=1) + "\n")
            for what, value in made.items()
        )
        command = Command(
            self._argv("main", folder),
            tuple(range(pods)),
            agent.python,
            keeps_stdin=True,
            cancel=self._argv("remove", folder),
            stdin_s=STOP_S,
            term_s=5.0,
        )
        example, notes = "--pods 2 --ranks-per-pod 2", self._notes(through)
        ranks = place_on(pods, "pod", self.ranks_per_pod, self.num_processes, example)
        return LaunchPlan("kubernetes", pods, (command,), (), ranks, files, notes, agent)

    def _argv(self, function: str, *words: str) -> tuple[str, ...]:
        source = f"import sys; sys.path.append({ROOT!r}); from {MODULE} import {function}; "
        return (self.here, "-P", "-c", f"{source}{function}(*sys.argv[1:])", *words)

    def _notes(self, through: bool) -> tuple[str, ...]:
        where = self.namespace or (
            "the one of this notebook's pod"
            if self.inside
            else "the one of the kubeconfig's context"
        )
        way = "by port-forward" if through else "at their own addresses"
        check = (
            "to check the objects: kubectl create --dry-run=server -f FILE; start makes them itself"
        )
        return (f"namespace: {where}", f"the agents are reached {way}", check)

    def _count(self) -> int:
        pods, slice_ = self.pods, manifests.tpu_pods(self.pod)
        if slice_ is not None and pods not in (None, slice_):
            raise UsageError(
                f"--pods {pods}: the TPU slice {self.pod.topology} has {slice_} hosts of "
                f"{manifests.chips_each(self.pod)} chips.",
                "Leave out --pods.",
            )
        return slice_ or pods or 1

    # -- what Kubernetes says

    def waiting(self, plan: LaunchPlan) -> str:
        return _read(plan, WAITING)

    def warning(self, plan: LaunchPlan) -> tuple[str, float]:
        try:
            left_s = float(_read(plan, STARTED_AT)) - time.time()
        except ValueError:  # it has none
            return "", LOOK_S
        if left_s > WARN_S:
            return "", min(LOOK_S, left_s - WARN_S)
        return (
            f"Kubernetes ends the Job of this cluster in {left_s / 60:.0f} minutes, at its "
            "deadline (--time). To keep the variables: %jaxcluster checkpoint NAME",
            0.0,
        )

    def evidence(self, plan: LaunchPlan, end: End) -> tuple[str, ...]:
        return (_read(plan, WAITING),)

    def explain(self, end: End, hosts: Sequence[str] = ()) -> Reason:
        for line in end.errors:  # the first: what is told later came of it
            with contextlib.suppress(ValueError, TypeError, KeyError):
                return Reason(*json.loads(line)[TOLD])
        said = last_line(end.errors)
        if end.code is None:
            waits = " ".join(filter(None, end.evidence))
            if waits == LOGIN:
                return Reason(
                    f"Kubernetes: {LOGIN}.",
                    "kubectl get pods must work in a terminal: does it wait for something there?",
                )
            return Reason(
                f"Kubernetes: {waits or said or 'the Job is being made'}.",
                "Wait longer: --timeout 600",
            )
        evidence = f' It says: "{said}"' if said else ""
        return Reason(f"The process that looks after the Job {how_it_ended(end.code)}.{evidence}")

    def left_behind(self, end: End, cancelled: int | None) -> Reason | None:
        """The Job, where neither the process nor, after it, the cancel command could delete it."""
        if cancelled == 0:
            return None
        for line in end.errors:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                if LEFT in (told := json.loads(line)[TOLD])[0]:
                    return Reason(*told)
        if cancelled is None:  # none was made, or the guard has done it and does not say how
            return None
        return Reason(
            "A Job of this start may be left over: the process that deletes it "
            f"{how_it_ended(cancelled)}.",
            "kubectl get jobs -l app.kubernetes.io/managed-by=jaxcluster",
        )

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command | None:
        """Waits for the pod that the Job makes in the place of one that has ended."""
        folder = str(_folder(plan))
        return Command(
            self._argv("successor", folder, str(number)), (number,),
            plan.commands[0].python, keeps_stdin=True,
        )  # fmt: skip


def _folder(plan: LaunchPlan) -> Path:
    return Path(plan.files[0].path).parent


def _read(plan: LaunchPlan, name: str) -> str:
    try:
        return (_folder(plan) / name).read_text().strip()
    except OSError:
        return ""


def seconds_of(text: str) -> int:
    """Of ``2:00:00``, ``90m`` or ``12h``.

    Raises:
      UsageError: it is not one of these.
    """
    if found := re.fullmatch(r"(?:([0-9]+)-)?([0-9]+):([0-5]?[0-9]):([0-5]?[0-9])", text):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    elif found := re.fullmatch(r"([0-9]+)([dhms])", text):
        days, hours, minutes, seconds = (int(found[1]) if found[2] == u else 0 for u in "dhms")
    else:
        days = hours = minutes = seconds = 0
    if not (total := ((days * 24 + hours) * 60 + minutes) * 60 + seconds):
        raise UsageError(
            f"--time {text!r} is not a time.", "For example: --time 2:00:00 or --time 2h"
        )
    return total
