"""``--pod-template``: a file with a pod, to which what an agent needs is added."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxcluster.errors import UsageError

CONTAINER = "jaxcluster"  # the agent's, where the template has several
EXAMPLE = "kind: Pod, and under spec: what your cluster wants (tolerations, nodeSelector, volumes)"
# What a Job sets itself, or what the agents depend on.
OURS = ("restartPolicy", "hostname", "subdomain", "activeDeadlineSeconds")


def read(path: Path) -> str:
    """The pod template of a file, ``{"metadata": ..., "spec": ...}``, as JSON.

    It may be a Pod, a PodTemplate, or these two fields alone; YAML or JSON.

    Raises:
      UsageError: it can't be read, or it is no pod. It names file and line.
    """
    import yaml  # comes with the client

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"--pod-template {path} can't be read: {why}.", EXAMPLE) from None
    try:
        found = [one for one in yaml.safe_load_all(text) if one is not None]
        packed = [json.dumps(one) for one in found]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise UsageError(f"--pod-template {path}{line}: {problem}.", EXAMPLE) from None
    except (TypeError, ValueError) as error:  # a date, or a set
        raise UsageError(f"--pod-template {path}: {error}.", EXAMPLE) from None
    if len(found) != 1:
        raise UsageError(
            f"--pod-template {path} has {len(found)} documents. It must have one, a pod.", EXAMPLE
        )
    return json.dumps(checked(json.loads(packed[0]), str(path)))


def checked(found: Any, name: str) -> dict[str, Any]:
    """The template's ``metadata`` and ``spec``.

    Raises:
      UsageError: it is no pod, or has what the launcher itself must set.
    """

    def refuse(why: str) -> UsageError:
        return UsageError(f"--pod-template {name} {why}.", EXAMPLE)

    if not isinstance(found, dict):
        raise refuse(f"is not a pod: it is {_kind_of(found)}")
    kind = found.get("kind", "Pod")
    if kind == "PodTemplate":
        found = found.get("template")
    elif kind != "Pod":
        raise refuse(f"is not a pod: its kind is {kind}")
    if not isinstance(found, dict) or not isinstance(found.get("spec"), dict):
        raise refuse("is not a pod: it has no spec")
    metadata, spec = found.get("metadata") or {}, found["spec"]
    unknown = sorted(found.keys() - {"apiVersion", "kind", "metadata", "spec", "status"})
    if unknown:
        raise refuse(f"is not a pod: a pod has no field {unknown[0]!r}")
    if not isinstance(metadata, dict):
        raise refuse(f"is not a pod: its metadata are {_kind_of(metadata)}")
    for field in ("labels", "annotations"):
        if not isinstance(metadata.get(field) or {}, dict):
            raise refuse(f"is not a pod: its {field} are {_kind_of(metadata[field])}")
    containers = spec.get("containers") or []
    if not isinstance(containers, list) or not all(isinstance(one, dict) for one in containers):
        raise refuse("is not a pod: its containers are not a list of containers")
    for field in ("volumes", "initContainers", "tolerations"):
        if not isinstance(spec.get(field) or [], list):
            raise refuse(f"is not a pod: its {field} are {_kind_of(spec[field])}")
    for field in ("volumeMounts", "env"):
        if not all(isinstance(one.get(field) or [], list) for one in containers):
            raise refuse(f"is not a pod: a container's {field} are not a list")
    if found_ours := [field for field in OURS if field in spec]:
        raise refuse(f"sets {found_ours[0]}, which the launcher sets")
    if len(containers) > 1 and not any(one.get("name") == CONTAINER for one in containers):
        raise UsageError(
            f"--pod-template {name} has {len(containers)} containers, and none is called "
            f"{CONTAINER!r}.",
            f"Give the container for the ranks this name: {CONTAINER}",
        )
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    return {"metadata": kept, "spec": spec}


def _kind_of(value: Any) -> str:
    names = {list: "a list", dict: "a mapping", str: "text", type(None): "nothing"}
    return names.get(type(value), "a number")


def container_of(spec: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(the container that is to run the agent, the others)."""
    containers = [dict(one) for one in spec.get("containers") or []]
    if len(containers) == 1:
        return containers[0], []
    ours = [one for one in containers if one.get("name") == CONTAINER]
    return (ours[0] if ours else {}), [one for one in containers if one.get("name") != CONTAINER]
