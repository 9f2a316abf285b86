"""``--launcher kubernetes``: its options, and the Job and the Service that are made for them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    DIRECT,
    MEM,
    TIME,
    AgentOptions,
    Launcher,
    LaunchPlan,
    agent_command,
)
from jaxcluster.options.table import COUNT, PATH, TEXT, TEXTS, Field, Option
from jaxcluster.plan.shares import place_on
from jaxcluster.text import seconds

if TYPE_CHECKING:
    from jaxcluster.launchers.kubernetes.pods import PodLaunch

NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DEADLINE_S = 24 * 3600  # for Jobs that Kubernetes does not end with the notebook
LAUNCH = "jaxcluster/launch"  # the label by which the pods of one launch are found
CLUSTER = "jaxcluster/cluster"
MADE_BY = {"app.kubernetes.io/managed-by": "jaxcluster"}
CONTAINER = "jaxcluster"  # the agent's
# Pods may come minutes after each other. A pod that replaces a lost one waits for the next cell.
# So an agent waits at least this long for its first connection.
FIRST_LEASE_S = 600.0
# An agent that a signal ends (a drained node, a preemption) has not done its work. It exits with
# this status, and the Job makes another pod.
SIGNALLED = 143
GRACE_S = 10  # the agent ends its ranks in this time
TTL_S = 60  # until a Job whose agents have ended is removed
SHM = {"name": "jaxcluster-shm", "mountPath": "/dev/shm"}
MOST_FAILURES = 100  # pods of one launch that the Job replaces


@dataclass(frozen=True)
class Kubernetes(Launcher):
    """``--launcher kubernetes``; each field is the value of the option of its name."""

    num_processes: int | None = None
    pods: int | None = None
    ranks_per_pod: int | None = None
    image: str = ""
    cpu: str = ""
    mem: str = ""
    gpus: int | None = None
    tpu_type: str = ""
    tpu_topology: str = ""
    tpu_chips: int | None = None
    label: tuple[str, ...] = ()
    pod_template: str = ""
    namespace: str = ""
    time: str = ""
    kubeconfig: str = ""
    context: str = ""
    direct: bool = False
    template: str = ""  # what is in ``pod_template``, as JSON
    inside: bool = False  # this process is in a pod itself

    name = "kubernetes"
    start = "--launcher kubernetes --image team/jax:1"
    example = "%jaxcluster start --launcher kubernetes --image team/jax:1 --pods 2 --gpus 8"
    python = "python3"  # no other machine's path to a Python means anything in an image
    options = (
        Option("--image", TEXT, "IMAGE", "image with Python, jax, this jaxcluster", "team/jax:1",
            field=Field("Image", empty="team/jax:1"),
            pattern=r"[^\s-]\S*"),
        Option("--pods", COUNT, "N", "how many pods", "2", field=Field("Pods", "How many", "1")),
        Option("--ranks-per-pod", COUNT, "N", "ranks in each pod", "4",
            field=Field("In each pod", "How many ranks")),
        Option("--gpus", COUNT, "N", "nvidia.com/gpu of each pod", "8",
            field=Field("GPUs", "Of each pod (nvidia.com/gpu)", "none")),
        Option("--cpu", TEXT, "N", "cores of each pod", "32"),
        MEM,
        Option("--tpu-type", TEXT, "TYPE", "GKE's TPU: tpu-v5-lite-podslice",
            "tpu-v6e-slice --tpu-topology 4x4"),
        Option("--tpu-topology", TEXT, "AxB", "the TPU slice's topology: 4x4", "4x4",
            pattern=r"[0-9]+(x[0-9]+){1,2}"),
        Option("--tpu-chips", COUNT, "N", "TPU chips of each pod: 4", "4"),
        TIME,
        Option("--namespace", TEXT, "NAME", "as for kubectl", "team-a", field=Field("Namespace"),
            pattern=NAME),
        Option("--label", TEXTS, "NAME=VALUE", "a label of Job and pods (Kueue); may be repeated",
            "team=a", pattern=r"[^=]+=.*"),
        Option("--pod-template", PATH, "FILE", "a pod in YAML to which the options are added; it "
            "may set a user or other devices", "pod.yaml"),
        Option("--kubeconfig", PATH, "FILE", "as for kubectl", "~/.kube/other"),
        Option("--context", TEXT, "NAME", "a context of the kubeconfig", "gke"),
        DIRECT,
    )  # fmt: skip

    @property
    def chips(self) -> int:
        """Chips of each pod: as asked for, else all of a small slice, or 4 of a larger one."""
        return self.tpu_chips or min(4, self._chips)

    @property
    def _chips(self) -> int:
        return math.prod(int(n) for n in self.tpu_topology.split("x"))

    @property
    def forwards(self) -> bool:
        """Whether the pods are reached through the API server."""
        return not (self.inside or self.direct)

    @property
    def lasts_s(self) -> int | None:
        """When Kubernetes ends the Job, after its start; None for never."""
        if not self.time:
            return None if self.inside else DEADLINE_S
        with contextlib.suppress(ValueError, OverflowError):
            if not self.time.isdecimal() and (found := int(seconds(self.time))) > 0:
                return found
        hint = "For example: --time 2:00:00 or --time 2h"
        raise UsageError(f"--time {self.time!r} is not a time.", hint)

    def prepared(self, environ: Mapping[str, str]) -> Kubernetes:
        if importlib.util.find_spec("kubernetes") is None:
            raise LauncherUnavailable(
                "--launcher kubernetes needs the Kubernetes client, which is not installed.",
                "pip install 'jaxcluster[kubernetes]'",
            )
        file = self.pod_template
        template = read_template(Path(file)) if file else self.template
        named = self.kubeconfig or self.context
        inside = bool(environ.get("KUBERNETES_SERVICE_HOST")) and not named
        return replace(self, template=template, inside=inside)

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        self._check()
        hosts = self._chips // self.chips if self.tpu_topology else None
        if hosts is not None and self.pods not in (None, hosts):
            told = f"--pods {self.pods}: the TPU slice {self.tpu_topology} has {hosts} hosts of "
            raise UsageError(f"{told}{self.chips} chips.", "Leave out --pods.")
        pods = hosts or self.pods or 1
        # Until all agents are there, the Job is given no more time than the start.
        deadline_s = math.ceil(agent.first_lease_s)
        # By its name it can be deleted also where the answer to its creation was never heard.
        name = f"jaxcluster-{_plain(agent.cluster, 24) or 'x'}-{agent.token(folder)}"
        made = job(name, pods, agent, self, deadline_s)
        own = service(name, made["metadata"]["labels"])
        example = "--pods 2 --ranks-per-pod 2"
        ranks = place_on(pods, "pod", self.ranks_per_pod, self.num_processes, example)
        where = self.namespace or f"that of {'this pod' if self.inside else 'the context'}"
        ends = f"after {self.lasts_s} s" if self.lasts_s is not None else "with the notebook's pod"
        notes = (
            f"namespace: {where}",
            f"once the agents are there, the Job ends at the latest {ends}",
        )
        return LaunchPlan(
            self.name, pods, ranks=ranks, objects=(made, own), notes=notes, folder=folder,
            agent=agent,
        )  # fmt: skip

    def _check(self) -> None:
        """Refuse what the API server would take, and mean otherwise, or has no words for."""
        spec = json.loads(self.template)["spec"] if self.template else {}
        told, example = "", "--tpu-type tpu-v5-lite-podslice --tpu-topology 4x4 --tpu-chips 4"
        if not self.image and not split(spec)[0].get("image"):
            told = "--launcher kubernetes needs an image, with Python, jax and this jaxcluster."
            example = "--image registry.example/team/jax:1"
        elif bool(self.tpu_type) != bool(self.tpu_topology) or (
            self.tpu_chips and not self.tpu_type
        ):
            told = "--tpu-type, --tpu-topology and --tpu-chips belong together."
        elif self.tpu_topology and self._chips % self.chips:
            told = f"--tpu-topology {self.tpu_topology} has {self._chips} chips, not a multiple of "
            told += f"--tpu-chips {self.chips}."
        if told:
            raise UsageError(told, f"For example: {example}")

    def launch(self, plan: LaunchPlan, **options: Any) -> PodLaunch:
        from jaxcluster.launchers.kubernetes.pods import PodLaunch

        return PodLaunch(self, plan, **options)


# ---------------------------------------------------------------------------- Job and Service


def _plain(text: str, length: int) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:length].strip("-")


def job(
    name: str, pods: int, agent: AgentOptions, pod: Kubernetes, deadline_s: int
) -> dict[str, Any]:
    """An Indexed Job: pod i has the ranks of host i, also the one that is made in its place."""
    ours = {**MADE_BY, LAUNCH: name, CLUSTER: _plain(agent.cluster, 63)}
    given = {name: value for name, _, value in (word.partition("=") for word in pod.label)}
    labels = {**given, **ours}
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": MOST_FAILURES,
        "ttlSecondsAfterFinished": TTL_S,
        "activeDeadlineSeconds": deadline_s,
        "template": _pod_template(name, agent, pod, labels),
    }
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def service(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Gives the pods names; GKE asks for one where a TPU slice has several hosts."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LAUNCH: name}}
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def _pod_template(
    name: str, agent: AgentOptions, pod: Kubernetes, labels: Mapping[str, str]
) -> dict[str, Any]:
    given = json.loads(pod.template) if pod.template else {"metadata": {}, "spec": {}}
    container, others = split(given["spec"])
    spec: dict[str, Any] = {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        # A rank has no business with the API server, unless the template names an account for it.
        "automountServiceAccountToken": "serviceAccountName" in given["spec"],
        **given["spec"],
        "restartPolicy": "Never",
        "subdomain": name,
        "containers": [_container(container, agent, pod), *others],
    }
    if pod.tpu_type:
        spec["nodeSelector"] = {
            **(spec.get("nodeSelector") or {}),
            "cloud.google.com/gke-tpu-accelerator": pod.tpu_type,
            "cloud.google.com/gke-tpu-topology": pod.tpu_topology,
        }
    volumes = spec.get("volumes") or []
    shm = {"name": SHM["name"], "emptyDir": {"medium": "Memory"}}
    if SHM in spec["containers"][0]["volumeMounts"] and shm["name"] not in [
        one.get("name") for one in volumes
    ]:
        spec["volumes"] = [*volumes, shm]
    theirs = given["metadata"].get("labels") or {}
    return {"metadata": {**given["metadata"], "labels": {**theirs, **labels}}, "spec": spec}


def _container(given: Mapping[str, Any], agent: AgentOptions, pod: Kubernetes) -> dict[str, Any]:
    words = [
        *agent_command(replace(agent, env=())),
        f"--first-lease={max(FIRST_LEASE_S, agent.first_lease_s):g}",
        f"--signalled-status={SIGNALLED}",
    ]
    # Whatever the template calls it: its log and its state are asked for by this name.
    made: dict[str, Any] = {**given, "name": CONTAINER}
    # An entry point of the template's own gets the agent's words, and has to end with exec "$@".
    made["args" if given.get("command") else "command"] = [_literal(word) for word in words]
    if not given.get("command"):
        made.pop("args", None)
    if pod.image:
        made["image"] = pod.image
    if agent.env:
        ours = [{"name": k, "value": _literal(v)} for k, v in agent.env]
        names = {one["name"] for one in ours}
        made["env"] = [*(e for e in given.get("env") or [] if e.get("name") not in names), *ours]
    counts = {"nvidia.com/gpu": pod.gpus, "google.com/tpu": pod.chips if pod.tpu_type else None}
    wanted = {"cpu": pod.cpu, "memory": pod.mem}
    wanted |= {name: str(count) for name, count in counts.items() if count is not None}
    if wanted := {name: value for name, value in wanted.items() if value}:
        resources = given.get("resources") or {}
        asked = {k: {**(resources.get(k) or {}), **wanted} for k in ("requests", "limits")}
        made["resources"] = {**resources, **asked}
    # A pod's own /dev/shm has 64 MiB; this one may take what the pod's memory allows.
    mounts = list(given.get("volumeMounts") or [])
    there = any(one.get("mountPath") == "/dev/shm" for one in mounts)
    made["volumeMounts"] = mounts if there else [*mounts, SHM]
    return made


def _literal(word: str) -> str:
    """As it stands, although Kubernetes reads ``$(NAME)`` in commands and values."""
    return word.replace("$", "$$")


# ------------------------------------------------------------------------------ --pod-template


def split(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the container that is to run the agent, the others)."""
    found = [dict(one) for one in spec.get("containers") or []]
    ours = [one for one in found if one.get("name") == CONTAINER] or found[:1]
    return (ours[0] if ours else {}), [one for one in found if one not in ours[:1]]


def read_template(path: Path) -> str:
    """The pod template of a file, ``{"metadata": ..., "spec": ...}``, as JSON.

    It may be a Pod, or these two fields alone; YAML or JSON. The API server says
    what else is wrong with it.

    Raises:
      UsageError: it can't be read, is no pod, or does not say which container is the agent's.
    """
    import yaml  # comes with the client

    try:
        found = yaml.safe_load(path.expanduser().read_text())
        spec, metadata = found["spec"], found.get("metadata") or {}
        kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
        names = [one.get("name") for one in spec.get("containers") or []]
        text = json.dumps({"metadata": kept, "spec": spec})
    except OSError as error:
        why = f"can't be read: {error.strerror}"
    except (yaml.YAMLError, TypeError, KeyError, AttributeError, ValueError) as error:
        why = f"is not a pod with a spec, in YAML: {' '.join(str(error).split())}"
    else:
        if len(names) < 2 or CONTAINER in names:
            return text
        why = f"has {len(names)} containers, and none is called {CONTAINER!r}"
    raise UsageError(f"--pod-template {path} {why}.", "kind: Pod, and under spec: what is wanted")
