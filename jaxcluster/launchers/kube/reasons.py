"""What the API server says, and what it means: refusals, pods that wait, pods that end. Pure.

Objects are as the API has them, in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxcluster.launchers.base import Reason
from jaxcluster.launchers.kube.template import CONTAINER
from jaxcluster.launchers.reasons import last_line, python_trouble

Object = Mapping[str, Any]

# It is busy or being moved. 409: also a quota of which two have taken at the same time.
MAY_PASS = (409, 429, 500, 502, 503, 504)
INDEX = "batch.kubernetes.io/job-completion-index"
# Reasons of a container that waits, after which waiting is in vain.
_NEVER = (
    "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError",
    "RunContainerError",
)  # fmt: skip
_NOT_THERE = re.compile(
    r"not found|manifest unknown|denied|unauthorized|authentication|forbidden|no basic auth"
    r"|does not exist|invalid reference",
    re.IGNORECASE,
)
_USER = "Name a user for the pods, other than root: --run-as-user 1000"
_FIX_TEMPLATE = "Fix the file of --pod-template. --dry-run prints the resulting manifest."
_NEVER_MADE = {  # why pods can't be made -> what to do
    r"must specify ([\w./, -]+)": "Say what each pod needs ({}): --cpu 4 --mem 16Gi",
    r"violates PodSecurity": f"{_USER}. Or put the securityContext that it asks for into a "
    "--pod-template FILE.",
    r"denied the request": "Put what it asks for into a --pod-template FILE; see --dry-run.",
    # A new namespace's own account, "default", may come a moment later.
    r'serviceaccount "(?!default")[^"]+" not found': "Name an existing one (kubectl get "
    "serviceaccounts, in that namespace): --service-account NAME",
    r"no PriorityClass with name": "kubectl get priorityclasses lists them, for the "
    "--pod-template FILE.",
    # A LimitRange: "maximum cpu usage per Container is 2, but limit is 4".
    r"(?:maximum|minimum|max limit to request ratio) .* per (?:Container|Pod)": "Ask for what that "
    "allows: --cpu 2 --mem 8Gi",
    r"is invalid:": _FIX_TEMPLATE,
}
# https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
_DISRUPTIONS = {
    "PreemptionByScheduler": "it was preempted by a pod of higher priority",
    "DeletionByTaintManager": "its node is not ready, or may no longer run it (a taint)",
    "EvictionByEvictionAPI": "it was evicted, as when a node is drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "its node ended it",
}


class Trouble(Exception):
    """What ends a launch, for the user."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Refused(Trouble):
    """The API server has answered, and with a refusal.

    Attributes:
      status: of HTTP.
      may_pass: whether it may do the same later.
    """

    def __init__(self, status: int, reason: Reason) -> None:
        super().__init__(reason)
        self.status, self.may_pass = status, status in MAY_PASS


class Unreachable(Trouble):
    """The API server has not answered. It may later.

    Attributes:
      was_asked: whether it may have heard the question.
    """

    def __init__(self, reason: Reason, was_asked: bool = True) -> None:
        super().__init__(reason)
        self.was_asked = was_asked


def refusal(status: int, body: str, doing: str, namespace: str, login: str = "") -> Reason:
    """Why the API server did not do something.

    Args:
      status: of HTTP.
      body: of the answer: a Status, in JSON.
      doing: "make the Job".
      login: what kept the kubeconfig's program for logins from its work.
    """
    try:
        message = str(json.loads(body).get("message", ""))
    except (ValueError, AttributeError):
        message = body.strip()[:300]
    said = f'It says: "{message}"'
    right = re.search(
        r'(?P<what>\S+) .*?is forbidden: User "(?P<user>.+?)" cannot (?P<verb>\w+) resource '
        r'"(?P<resource>[\w/]+)"(?: in API group "(?P<group>[\w.]*)")?',
        message,
    )
    is_anonymous = right is not None and right["user"] == "system:anonymous"
    if status == 401 or (status == 403 and is_anonymous):
        # Who asks without a login, or with an old one, is told what nobody may, or nothing.
        why = f" The kubeconfig's login failed: {login.rstrip('. ')}." if login else ""
        return Reason(
            f"The API server does not know this user.{why} {said}",
            "Log in again (kubectl get pods must work), or name another: --context NAME",
        )
    if status == 403 and right is not None:
        resource = right["resource"] + (f".{right['group']}" if right["group"] else "")
        plain, slash, sub = right["resource"].partition("/")
        named = f"{plain}.{right['group']}{slash}{sub}" if right["group"] else right["resource"]
        account = re.fullmatch(r"system:serviceaccount:(\S+):(\S+)", right["user"])
        whom = (
            f"--serviceaccount={account[1]}:{account[2]}"
            if account is not None
            else f"--user={right['user']}"
        )
        return Reason(
            f"{right['user']} may not {right['verb']} {resource} in the namespace {namespace}, "
            f"so jaxcluster can't {doing}. {said}",
            f"An administrator there can type: kubectl -n {namespace} create role "
            f"jaxcluster-{plain} --verb={right['verb']} --resource={named} && kubectl -n "
            f"{namespace} create rolebinding jaxcluster-{plain} --role=jaxcluster-{plain} "
            f"{whom}   (docs/kubernetes.md#rights has the whole role)",
        )
    if status == 403 and "exceeded quota" in message:
        return Reason(
            f"A quota of the namespace {namespace} does not let jaxcluster {doing}. {said}",
            f"kubectl -n {namespace} describe quota shows what is taken.",
        )
    if status == 404 and re.search(r"namespaces? \S+ not found", message):
        return Reason(
            f"There is no namespace {namespace} in this Kubernetes cluster. {said}",
            "Name an existing one (kubectl get namespaces): --namespace NAME",
        )
    if status in (400, 422) and "unknown field" in message:
        return Reason(
            f"The API server does not know a field of the pod. {said}",
            _FIX_TEMPLATE,
        )
    if status in (400, 403, 422):
        return Reason(
            f"The API server did not {doing}. {said}",
            "--dry-run prints the request.",
        )
    if status == 429 or status >= 500:
        return Reason(
            f"The API server could not {doing} (status {status}). {said}", "Try again later."
        )
    return Reason(f"The API server did not {doing}: status {status}. {said}")


def name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def index(pod: Object) -> int | None:
    """Which of the Job's pods it is, or has taken the place of."""
    metadata = pod["metadata"]
    for marks in (metadata.get("annotations") or {}, metadata.get("labels") or {}):
        if str(marks.get(INDEX, "")).isdecimal():
            return int(marks[INDEX])
    return None


def has_ended(pod: Object) -> bool:
    """Whether it runs no more, or is being ended."""
    # Beside its agent a pod may have containers that never end.
    return _is_over(pod) or bool(_agent_end(pod)) or _is_being_ended(pod)


def has_no_agent_left(pod: Object) -> bool:
    """Whether its agent has ended by itself, whatever its other containers do."""
    return _is_over(pod) or (bool(_agent_end(pod)) and not _is_being_ended(pod))


def lingers(pod: Object) -> bool:
    """Whether it counts as running although its agent has failed: a sidecar goes on."""
    has_failed = bool(_agent_end(pod).get("exitCode"))
    return _phase(pod) == "Running" and has_failed and not _is_being_ended(pod)


def runs(pod: Object) -> bool:
    return _phase(pod) == "Running" and not has_ended(pod)


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase", ""))


def _is_over(pod: Object) -> bool:
    return _phase(pod) in ("Failed", "Succeeded")


def _is_being_ended(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _agent_end(pod: Object) -> Object:
    """How the agent's container has ended; {} while it has not."""
    return container_status(pod).get("state", {}).get("terminated") or {}


def container_status(pod: Object) -> Object:
    """The agent's container's."""
    statuses = pod.get("status", {}).get("containerStatuses") or []
    found = [one for one in statuses if one.get("name") == CONTAINER] or statuses[:1]
    return found[0] if found else {}


def condition(thing: Object, kind: str) -> Object:
    conditions = thing.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one.get("type") == kind), {})


def why_pending(pod: Object, events: Sequence[Object] = ()) -> str:
    """What a pod that does not run waits for, in the cluster's own words."""
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        told = scheduled.get("message") or scheduled.get("reason") or ""
        if told:
            return f"{scheduled.get('reason', 'not scheduled')}: {told}".rstrip(". ")
    waiting = _waiting(pod)
    if reason := waiting.get("reason", ""):
        quiet = reason in ("ContainerCreating", "PodInitializing")
        told = "" if quiet else waiting.get("message", "")
        if quiet and (event := _last_warning(events)):
            return event
        if quiet:
            pulling = [e for e in events if e.get("reason") == "Pulling"]
            pulled = [e for e in events if e.get("reason") == "Pulled"]
            if pulling and not pulled:
                return "its image is being pulled"
        return f"{reason}: {told}".rstrip(": .")
    return _last_warning(events) or "it has not been scheduled yet"


def _waiting(pod: Object) -> Object:
    """Of the container, or of the init container that is before it."""
    status = pod.get("status", {})
    for one in [*(status.get("initContainerStatuses") or []), container_status(pod)]:
        found: Object = one.get("state", {}).get("waiting") or {}
        if found and found.get("reason") != "PodInitializing":
            return found
    return container_status(pod).get("state", {}).get("waiting") or {}


def _last_warning(events: Sequence[Object]) -> str:
    warnings = [one for one in events if one.get("type") == "Warning"]
    if not warnings:
        return ""
    last = max(warnings, key=when)
    return f"{last.get('reason', '')}: {last.get('message', '')}".strip(": .")


def when(event: Object) -> str:
    """An event's time; RFC 3339 sorts as text."""
    found = event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event.get("metadata", {}).get("creationTimestamp") or "")


def why_no_pods(job: Object, events: Sequence[Object]) -> str:
    """Why a Job has not made its pods, where something says so: a quota, a queue, a policy."""
    queue = (job["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name")
    if job.get("spec", {}).get("suspend"):
        told = sorted((e for e in events if e.get("message")), key=when)
        last = f": {told[-1]['message']}".rstrip(".") if told else ""
        return (
            f"the Job waits in the queue {queue}{last}" if queue else f"the Job is suspended{last}"
        )
    return _last_warning(events)


def never_made(why: str) -> Reason | None:
    """Why a Job's pods can't ever be made, from what ``why_no_pods`` says; None where they may.

    What a quota has given to others comes back; what an admission refuses stays refused.
    """
    said = f'The pods of the Job can\'t be created. Kubernetes says: "{why}"'
    if "exceeded quota" in why:
        if (more := _more_than_all(why)) is None:
            return None
        return Reason(
            said,
            f"One pod asks for {more[1]} of {more[0]}, and the quota is {more[2]} for all: ask for "
            "less (--cpu, --mem, --gpus), or another --namespace",
        )
    for pattern, hint in _NEVER_MADE.items():
        if found := re.search(pattern, why):
            return Reason(said, hint.format(*map(str.strip, found.groups())))
    return None


_UNITS = {"m": 1e-3, "": 1, **{u: 1e3**i for i, u in enumerate("kMGTP", 1)},
          **{f"{u}i": 1024.0**i for i, u in enumerate("KMGTP", 1)}}  # fmt: skip


def _more_than_all(why: str) -> tuple[str, str, str] | None:
    """(what, how much a pod asks for, the quota) where one pod is more than the whole quota."""

    def amounts(word: str) -> dict[str, str]:
        found = re.search(rf"{word}: (\S+=\S+?)(?:, \w+: |$)", why)
        return dict(p.split("=", 1) for p in found[1].split(",")) if found else {}

    def number(text: str) -> float | None:
        found = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", text)
        unit = _UNITS.get(found[2]) if found else None
        return float(found[1]) * unit if found and unit is not None else None

    all_of = amounts("limited")
    for what, asked in amounts("requested").items():
        one, limit = number(asked), number(all_of.get(what, ""))
        if one is not None and limit is not None and one > limit:
            return what, asked, all_of[what]
    return None


def never_pulls(events: Sequence[Object], image: str) -> Reason | None:
    """Why an image can't ever be pulled, where its pod says only that it is tried again."""
    for event in events:
        message = str(event.get("message", ""))
        is_pull = event.get("reason") == "Failed" and message.startswith("Failed to pull image")
        if is_pull and _NOT_THERE.search(message):
            return _not_pulled(image, "ErrImagePull", message)
    return None


def _not_pulled(image: str, reason: str, message: str) -> Reason:
    return Reason(
        f'The image {image} can\'t be pulled ({reason}). Kubernetes says: "{message}"',
        "Is its name right (--image), and may this namespace pull it "
        "(imagePullSecrets, in a --pod-template)?",
    )


def never_runs(pod: Object, image: str) -> Reason | None:
    """Why a pod that waits can't ever run; None where it may."""
    waiting = _waiting(pod)
    reason, message = waiting.get("reason", ""), str(waiting.get("message", "")).strip()
    said = f'Kubernetes says: "{message or reason}"'
    if reason in ("ErrImagePull", "ImagePullBackOff") and _NOT_THERE.search(message):
        return _not_pulled(image, reason, message)
    if reason == "InvalidImageName":
        return Reason(f"{image} is not the name of an image. {said}", "--image REGISTRY/NAME:TAG")
    if reason in _NEVER:
        if (trouble := _no_python(message, image)) is not None:
            return trouble
        hint = f"{_USER}." if "runAsNonRoot" in message else "See --dry-run."
        return Reason(f"The pod {name(pod)} can't start ({reason}). {said}", hint)
    return None


def _no_python(message: str, image: str) -> Reason | None:
    found = re.search(r'exec: \\?"(?P<python>[^"\\]+)\\?": (?P<why>[^:"]+)', message)
    if found is None:
        return None
    return Reason(
        f"There is no Python {found['python']} in the image {image}. "
        f'Kubernetes says: "{found["why"].strip()}"',
        "Name the right one: --python PATH",
    )


def why_ended(pod: Object | None) -> str:
    """Why a pod has ended or is being ended, for "The pod X has ended: ..."."""
    if pod is None:
        return "it was deleted"
    status = pod.get("status", {})
    disruption = condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        reason = str(disruption.get("reason", ""))
        told = _DISRUPTIONS.get(reason, reason)
        message = str(disruption.get("message", "")).rstrip(".")
        return f"{told} ({reason}: {message})" if message else f"{told} ({reason})"
    if status.get("reason"):  # Evicted, NodeLost, ...
        message = str(status.get("message", "")).rstrip(".")
        return f"{status['reason']}: {message}" if message else str(status["reason"])
    ended = _agent_end(pod)
    if ended.get("reason") == "OOMKilled":
        return "it used more memory than its limit (OOMKilled)"
    if _is_being_ended(pod):
        return "it is being deleted"
    if ended.get("signal"):
        return f"its agent was ended by signal {ended['signal']}"
    code = ended.get("exitCode")
    if code is not None and code > 128:
        return f"its agent was ended by signal {code - 128}"
    return f"its agent ended with code {code}" if code is not None else "no reason is given"


def why_failed(pod: Object, log: Sequence[str], image: str, python: str) -> Reason:
    """Why a pod ended before its agent was there."""
    ended = _agent_end(pod)
    message = str(ended.get("message", ""))
    trouble = _no_python(message, image) or python_trouble(log, python, f"in the image {image}")
    if trouble is not None:
        return trouble
    said = last_line(log) or last_line(message.splitlines())
    evidence = f' Its last line: "{said}"' if said else ""
    hint = "--mem 16Gi" if ended.get("reason") == "OOMKilled" else ""
    return Reason(f"The pod {name(pod)} has started no agent: {why_ended(pod)}.{evidence}", hint)


def job_end(job: Object) -> Reason | None:
    """Why the whole Job is over; None while it is not."""
    # FailureTarget (Kubernetes 1.31): it is going to be Failed, once its pods have ended.
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    if failed.get("status") == "True":
        reason, message = str(failed.get("reason", "")), str(failed.get("message", ""))
        if reason == "DeadlineExceeded":
            return Reason("Kubernetes ended the Job at its deadline.", "Ask for longer: --time 48h")
        return Reason(f'Kubernetes ended the Job ({reason}). It says: "{message}"')
    if condition(job, "Complete").get("status") == "True":
        return Reason("All agents of the Job have ended.")
    return None
