"""``--launcher kubernetes``: its options, and what is to be made for them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import DIRECT, MEM, TIME, AgentOptions, Launcher, LaunchPlan
from jaxcluster.launchers.kubernetes import manifests
from jaxcluster.options.table import COUNT, PATH, TEXT, TEXTS, Field, Option
from jaxcluster.plan.shares import place_on
from jaxcluster.text import seconds

if TYPE_CHECKING:
    from jaxcluster.launchers.kubernetes.pods import PodLaunch

NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
DEADLINE_S = 24 * 3600  # where nothing of the cluster's own ends the Job with the notebook


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
        Option("--pod-template", PATH, "FILE", "a pod to which the options are added: its user, "
            "other devices", "pod.yaml"),
        Option("--kubeconfig", PATH, "FILE", "as for kubectl", "~/.kube/other"),
        Option("--context", TEXT, "NAME", "a context of the kubeconfig", "gke"),
        DIRECT,
    )  # fmt: skip

    @property
    def chips(self) -> int:
        """Of each pod: as asked for, else all of a small slice, and 4 of a larger one."""
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
        template = manifests.read_template(Path(file)) if file else self.template
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
        name = manifests.name_of(agent, folder)
        job = manifests.job(name, pods, agent, self, deadline_s)
        service = manifests.service(name, job["metadata"]["labels"])
        example = "--pods 2 --ranks-per-pod 2"
        ranks = place_on(pods, "pod", self.ranks_per_pod, self.num_processes, example)
        where = self.namespace or f"that of {'this pod' if self.inside else 'the context'}"
        ends = f"after {self.lasts_s} s" if self.lasts_s is not None else "with the notebook's pod"
        notes = (
            f"namespace: {where}",
            f"once the agents are there, the Job ends at the latest {ends}",
        )
        return LaunchPlan(
            self.name, pods, ranks=ranks, objects=(job, service), notes=notes, folder=folder,
            agent=agent,
        )  # fmt: skip

    def _check(self) -> None:
        """Refuse what the API server would take, and mean otherwise, or has no words for."""
        spec = json.loads(self.template)["spec"] if self.template else {}
        told, example = "", "--tpu-type tpu-v5-lite-podslice --tpu-topology 4x4 --tpu-chips 4"
        if not self.image and not manifests.split(spec)[0].get("image"):
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
