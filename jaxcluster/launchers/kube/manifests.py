"""The Job and the Service of a launch, as the API server gets them. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import AgentOptions, agent_command
from jaxcluster.launchers.kube.template import CONTAINER, container_of

LAUNCH = "jaxcluster/launch"  # the label by which the objects of one launch are found
CLUSTER = "jaxcluster/cluster"
MADE_BY = {"app.kubernetes.io/managed-by": "jaxcluster"}
# Pods may come minutes after each other: a node is made, an image pulled. Their agents wait for
# the last one as long as the start does. One that is made later, in the place of a lost one, waits
# for the next cell: at least so long.
FIRST_LEASE_S = 600.0
# An agent that is ended by a signal (a drained node, a preemption) says by this status that it has
# not done its work: then the Job makes the pod anew.
SIGNALLED = 143
GRACE_S = 10  # the agent ends its ranks in this time
TTL_S = 300  # a Job that has ended by itself is removed after
SHM = "jaxcluster-shm"
MOST_FAILURES = 100  # pods that are made anew, of one launch

_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(rf"([a-z0-9][a-z0-9.-]{{0,252}}/)?{_VALUE.pattern[1:-2]}")


@dataclass(frozen=True)
class Pod:
    """What each pod is to be.

    Attributes:
      image: with Python, jax and this jaxcluster.
      cpu: cores, requested and at most; as Kubernetes writes it.
      memory: the same.
      gpus: of ``nvidia.com/gpu``.
      resources: of other devices: ``(("amd.com/gpu", "8"),)``.
      tpu: GKE's name of the accelerator.
      topology: of the TPU slice, ``4x4``.
      chips: of TPU, in each pod.
      labels: of the Job and its pods.
      service_account: the pods'.
      run_as_user: a user's number, not root's; the pods then are as ``restrict`` makes them.
      template: what ``template.read`` found; empty for none.
    """

    image: str = ""
    cpu: str = ""
    memory: str = ""
    gpus: int | None = None
    resources: tuple[tuple[str, str], ...] = ()
    tpu: str = ""
    topology: str = ""
    chips: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    service_account: str = ""
    run_as_user: int | None = None
    template: str = ""


def tpu_pods(pod: Pod) -> int | None:
    """How many pods a TPU slice has; None where no slice was asked for.

    Raises:
      UsageError: the chips can't be shared out.
    """
    if not pod.topology:
        return None
    chips = math.prod(int(n) for n in pod.topology.split("x"))
    pods, rest = divmod(chips, chips_each(pod))
    if rest or not pods:
        raise UsageError(
            f"--tpu-topology {pod.topology} has {chips} chips, not a multiple of --tpu-chips "
            f"{chips_each(pod)}.",
            "For example: --tpu-topology 4x4 --tpu-chips 4",
        )
    return pods


def chips_each(pod: Pod) -> int:
    """Of each pod: as asked for, else all of a small slice, and 4 of a larger one, GKE's hosts."""
    if pod.chips is not None:
        return pod.chips
    return min(4, math.prod(int(n) for n in pod.topology.split("x"))) if pod.topology else 4


def check(pod: Pod) -> None:
    """Refuse what the API server would refuse with words of its own, or misread.

    Raises:
      UsageError: naming the option.
    """

    def refuse(told: str, example: str) -> NoReturn:
        raise UsageError(told, f"For example: {example}")

    container, _ = container_of(json.loads(pod.template)["spec"]) if pod.template else ({}, [])
    if not pod.image and not container.get("image"):
        refuse(
            "--launcher kubernetes needs an image, with Python, jax and this jaxcluster in it.",
            "--image registry.example/team/jax:1",
        )
    for flag, value, example in (("--cpu", pod.cpu, "4"), ("--mem", pod.memory, "16Gi")):
        if value and not _QUANTITY.fullmatch(value):
            refuse(
                f"{flag} {value!r} is not a Kubernetes quantity.",
                f"{flag} {example}" + (" (GiB)" if flag == "--mem" else ""),
            )
    for name, count in pod.resources:
        if not _KEY.fullmatch(name) or not re.fullmatch(r"[1-9][0-9]*", count):
            refuse(
                f"--resource {name}={count!r} is not a device and a number.",
                "--resource amd.com/gpu=8",
            )
    for name, value in pod.labels:
        if not _KEY.fullmatch(name) or not _VALUE.fullmatch(value):
            refuse(
                f"--label {name}={value} is not a Kubernetes label.",
                "--label kueue.x-k8s.io/queue-name=team-a",
            )
        if name in (LAUNCH, CLUSTER, *MADE_BY):
            refuse(f"--label can't set {name}: the launcher sets it.", "--label team=a")
    if bool(pod.tpu) != bool(pod.topology):
        refuse(
            "--tpu-type and --tpu-topology belong together.",
            "--tpu-type tpu-v5-lite-podslice --tpu-topology 4x4",
        )
    if pod.chips is not None and not pod.tpu:
        refuse(
            "--tpu-chips needs --tpu-type.", "--tpu-type tpu-v5-lite-podslice --tpu-topology 4x4"
        )


def name_of(agent: AgentOptions, folder: str) -> str:
    """The name of a launch's Job and Service: no other one has it.

    By its name it can be deleted also where the answer to its creation was never heard.
    """
    token = hashlib.sha256(f"{agent.owner_key} {folder}".encode()).hexdigest()[:10]
    return f"jaxcluster-{_plain(agent.cluster)[:24].strip('-') or 'x'}-{token}"


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")


def labels_of(name: str, cluster: str) -> dict[str, str]:
    """What the objects of a launch are marked with."""
    return {**MADE_BY, LAUNCH: name, CLUSTER: _plain(cluster)[:63].strip("-")}


def service(name: str, cluster: str) -> dict[str, Any]:
    """Gives the pods names; GKE asks for one where a TPU slice has several hosts."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LAUNCH: name}}
    metadata = {"name": name, "labels": labels_of(name, cluster)}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def job(
    name: str, pods: int, agent: AgentOptions, pod: Pod, deadline_s: int | None
) -> dict[str, Any]:
    """An Indexed Job: pod i has the ranks of host i, also the one that is made in its place."""
    labels = {**dict(pod.labels), **labels_of(name, agent.cluster)}
    spec: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": MOST_FAILURES,
        "ttlSecondsAfterFinished": TTL_S,
        "template": _pod_template(name, agent, pod, labels),
    }
    if deadline_s is not None:
        spec["activeDeadlineSeconds"] = deadline_s
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _pod_template(
    name: str, agent: AgentOptions, pod: Pod, labels: Mapping[str, str]
) -> dict[str, Any]:
    given = json.loads(pod.template) if pod.template else {"metadata": {}, "spec": {}}
    container, others = container_of(given["spec"])
    spec: dict[str, Any] = {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        # A rank has no business with the API server, unless its user names an account for it.
        **({} if pod.service_account else {"automountServiceAccountToken": False}),
        **given["spec"],
        "restartPolicy": "Never",
        "subdomain": name,
        "containers": [_container(container, agent, pod), *others],
    }
    if pod.service_account:
        spec["serviceAccountName"] = pod.service_account
    if pod.tpu:
        spec["nodeSelector"] = {
            **(spec.get("nodeSelector") or {}),
            "cloud.google.com/gke-tpu-accelerator": pod.tpu,
            "cloud.google.com/gke-tpu-topology": pod.topology,
        }
    if pod.run_as_user is not None:
        restrict(spec, pod.run_as_user)
    volumes = spec.get("volumes") or []
    wants = any(one.get("name") == SHM for one in spec["containers"][0]["volumeMounts"])
    if wants and not any(one.get("name") == SHM for one in volumes):
        spec["volumes"] = [*volumes, {"name": SHM, "emptyDir": {"medium": "Memory"}}]
    metadata = dict(given["metadata"])
    metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    return {"metadata": metadata, "spec": spec}


def restrict(spec: dict[str, Any], user: int | None = None) -> None:
    """Put in a pod's spec what Pod Security's level ``restricted`` asks for.

    What the spec says itself stays, but for the agent's user where one is given.
    https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    """
    asked: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    who = {"runAsNonRoot": True, "runAsUser": user} if user is not None else {}
    spec["securityContext"] = {**asked, **(spec.get("securityContext") or {}), **who}
    for one in [*spec["containers"], *(spec.get("initContainers") or [])]:
        given = one.get("securityContext") or {}
        dropped = {"drop": ["ALL"], **(given.get("capabilities") or {})}
        context = {"allowPrivilegeEscalation": False, **given, "capabilities": dropped}
        own = {name for name in who if name in context and one["name"] == CONTAINER}
        one["securityContext"] = {**context, **{name: who[name] for name in own}}


def _container(given: Mapping[str, Any], agent: AgentOptions, pod: Pod) -> dict[str, Any]:
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
    if wanted := _resources(pod):
        resources = given.get("resources") or {}
        made["resources"] = {
            **resources,
            **{k: {**(resources.get(k) or {}), **wanted} for k in ("requests", "limits")},
        }
    # A pod's own /dev/shm has 64 MiB; this one may take what the pod's memory allows.
    mounts = list(given.get("volumeMounts") or [])
    if not any(one.get("mountPath") == "/dev/shm" for one in mounts):
        mounts.append({"name": SHM, "mountPath": "/dev/shm"})
    made["volumeMounts"] = mounts
    return made


def _resources(pod: Pod) -> dict[str, str]:
    gpus = str(pod.gpus) if pod.gpus is not None else ""
    tpus = str(chips_each(pod)) if pod.tpu else ""
    named = {"cpu": pod.cpu, "memory": pod.memory, "nvidia.com/gpu": gpus, "google.com/tpu": tpus}
    return {**{k: v for k, v in named.items() if v}, **dict(pod.resources)}


def _literal(word: str) -> str:
    """As it stands, although Kubernetes reads ``$(NAME)`` in commands and values."""
    return word.replace("$", "$$")
