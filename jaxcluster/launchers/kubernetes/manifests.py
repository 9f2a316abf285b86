"""The Job and the Service of a launch, as the API server gets them. Pure, but for a template."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import AgentOptions, agent_command

if TYPE_CHECKING:
    from jaxcluster.launchers.kubernetes.launcher import Kubernetes

LAUNCH = "jaxcluster/launch"  # the label by which the pods of one launch are found
CLUSTER = "jaxcluster/cluster"
MADE_BY = {"app.kubernetes.io/managed-by": "jaxcluster"}
CONTAINER = "jaxcluster"  # the agent's
# Pods may come minutes after each other, and one that is made in the place of a lost one waits for
# the next cell: an agent waits for its first connection at least so long.
FIRST_LEASE_S = 600.0
# An agent that is ended by a signal (a drained node, a preemption) says by this status that it has
# not done its work: then the Job makes the pod anew.
SIGNALLED = 143
GRACE_S = 10  # the agent ends its ranks in this time
TTL_S = 60  # a Job whose agents have ended is removed after
SHM = {"name": "jaxcluster-shm", "mountPath": "/dev/shm"}
MOST_FAILURES = 100  # pods that are made anew, of one launch


def name_of(agent: AgentOptions, folder: str) -> str:
    """The name of a launch's Job and Service: no other one has it.

    By its name it can be deleted also where the answer to its creation was never heard.
    """
    token = hashlib.sha256(f"{agent.owner_key} {folder}".encode()).hexdigest()[:10]
    return f"jaxcluster-{_plain(agent.cluster, 24) or 'x'}-{token}"


def _plain(text: str, length: int) -> str:
    return re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:length].strip("-")


def job(
    name: str, pods: int, agent: AgentOptions, pod: Kubernetes, deadline_s: int | None
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
        **({"activeDeadlineSeconds": deadline_s} if deadline_s is not None else {}),
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

    It may be a Pod, or these two fields alone; YAML or JSON. What else is wrong with it, the API
    server says.

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
