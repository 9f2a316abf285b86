"""The pods of a launch, followed by the official client in the notebook's process.

If the notebook is killed, the agents' lease ends, and ``ttlSecondsAfterFinished`` removes the Job.
One whose pods still wait ends at its deadline, which is the start's until all agents are there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3
from kubernetes import client, config
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward

from jaxcluster.errors import LaunchError
from jaxcluster.launchers import failures
from jaxcluster.launchers.base import Command, LaunchPlan
from jaxcluster.launchers.commands import Launch, Run, StartedAgent
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.kubernetes.launcher import CONTAINER, LAUNCH

if TYPE_CHECKING:
    from jaxcluster.launchers.kubernetes.launcher import Kubernetes

Object = Mapping[str, Any]
OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # in a pod
INDEX = "batch.kubernetes.io/job-completion-index"
TIMEOUT_S = (10.0, 30.0)  # to connect, to read
FOLLOW_S = 0.25  # an evicted pod says why only until its agent has ended
LOOK_S = 0.2  # how often a stop looks whether its pods have gone
GONE_S = 8.0  # until the pods have gone, after the Job: the next start may need their devices
LOG_NBYTES = 1 << 20
# A container that waits for these waits in vain; a pull only where the registry says so.
NEVER = re.compile(
    r"InvalidImageName|ErrImageNeverPull|CreateContainer\w*Error|RunContainerError"
    r"|(ErrImagePull|ImagePullBackOff).*(not found|unknown|denied|unauthorized|does not exist)"
)
# An admission's refusal stays. A quota that others use becomes free, and a new namespace gets its
# account a moment later.
REFUSED = re.compile(r"forbidden|denied the request|is invalid")
COMES = re.compile(r'exceeded quota|serviceaccount "default" not found')
HINT = (
    "--image, --cpu, --mem and --gpus set what a pod asks for. --pod-template sets its user "
    "(Pod Security): see docs/kubernetes.md"
)


class Api:
    """One namespace of a cluster. Objects come and go as JSON: a template may have newer fields.

    Raises:
      LaunchError: there is no way to a cluster; also of ``ask``, which is refused.
    """

    def __init__(self, launcher: Kubernetes) -> None:
        self.settings = settings = client.Configuration()
        settings.retries = urllib3.Retry(2, connect=0)
        try:
            if launcher.inside:
                config.load_incluster_config(client_configuration=settings)
                default = OWN_NAMESPACE.read_text().strip()
            else:
                file, context = launcher.kubeconfig or None, launcher.context or None
                config.load_kube_config(file, context, client_configuration=settings)
                listed, active = config.list_kube_config_contexts(file)
                chosen = [one for one in listed if one["name"] == context] or [active]
                default = chosen[0]["context"].get("namespace")
        except Exception as error:  # the client's, yaml's, those of a broken file
            raise LaunchError(
                f"No Kubernetes cluster can be reached: {' '.join(str(error).split())}",
                "kubectl get pods must work. For another: --kubeconfig FILE --context NAME",
            ) from None
        self.namespace = str(launcher.namespace or default or "default")
        one = client.ApiClient(settings)
        self.core, self.custom = client.CoreV1Api(one), client.CustomObjectsApi(one)

    def said(self, method: Callable[..., Any], *names: str, **options: Any) -> str:
        """The API server's answer to one of the client's methods."""
        options |= {"_preload_content": False, "_request_timeout": TIMEOUT_S}
        with told():
            answer = method(*names, namespace=self.namespace, **options)
            return str(answer.data.decode(errors="replace"))

    def ask(self, method: Callable[..., Any], *names: str, **options: Any) -> Any:
        """The object or the list that it answers."""
        return json.loads(self.said(method, *names, **options))

    def on_job(self, verb: str, **options: Any) -> Any:
        """Create, get, patch or delete a Job; it may have fields that the client refuses."""
        method = getattr(self.custom, f"{verb}_namespaced_custom_object")
        return self.ask(method, group="batch", version="v1", plural="jobs", **options)

    def log(self, pod: str) -> list[str]:
        """The lines of its agent's; none while, or where, there is none."""
        options = {"container": CONTAINER, "limit_bytes": LOG_NBYTES}
        try:
            return self.said(self.core.read_namespaced_pod_log, pod, **options).splitlines()
        except LaunchError as error:
            if status_of(error) in (401, 403):
                raise
            return []

    def forward(self, pod: str, port: int) -> Any:
        """A socket that leads to a port of a pod. Any thread may use it: it has its own client."""
        core = client.CoreV1Api(client.ApiClient(self.settings))
        method = core.connect_get_namespaced_pod_portforward
        return portforward(method, pod, self.namespace, ports=str(port)).socket(port)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """The API server's words, as a LaunchError."""
    try:
        yield
    except ApiException as error:
        said = error.body or error.reason or ""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            said = json.loads(said)["message"]
        hint = "docs/kubernetes.md#rights has the rights that a start needs."
        if error.status in (400, 404, 422):
            hint = f"--dry-run prints the request. Another namespace: --namespace NAME. {HINT}"
        if error.status == 401 or "system:anonymous" in str(said):
            hint = "Log in again: kubectl get pods must work. Or: --context NAME"
        raise LaunchError(
            f'Kubernetes refuses ({error.status}). It says: "{said}"', hint
        ) from error
    except urllib3.exceptions.HTTPError as error:
        why = re.sub(r"<[^>]*object at 0x\w+>: |\w+\(host=.*?\): ", "", str(error))
        hint = "kubectl get pods must work from here. For another cluster: --context NAME"
        raise LaunchError(f"Kubernetes' API server can't be reached: {why}", hint) from error


def status_of(error: LaunchError) -> int:
    """HTTP's status, with which the API server has refused; 0 if it has not answered."""
    return int(error.__cause__.status or 0) if isinstance(error.__cause__, ApiException) else 0


class PodLaunch(Launch):
    """A Job, its pods and the ways to them."""

    api: Api
    uid: str  # the Job's

    def __init__(self, launcher: Kubernetes, plan: LaunchPlan, **options: Any) -> None:
        super().__init__(launcher, plan, **options)
        self.settings, self.name = launcher, str(plan.objects[0]["metadata"]["name"])
        self.mine = {"label_selector": f"{LAUNCH}={self.name}"}
        self.pods: dict[str, Object] = {}  # as they were last, by uid
        self.current: dict[int, str] = {}  # the uid of the pod whose agent is ours, by index
        self.lost: set[str] = set()  # uids of those that have ended
        self.ways: dict[int, Way] = {}
        self.may_be_there = False  # the Job, so that it is to be deleted
        self.trouble = ""  # with the API server, while pods are followed

    # -- to the agents

    def _bring_up(self, *wait: Any) -> list[StartedAgent]:
        self.api = Api(self.settings)
        self._make()
        threading.Thread(target=self._follow, name="jaxcluster-pods", daemon=True).start()
        coming = self._coming(range(self.plan.num_hosts))
        found = self._await(coming, self.plan.num_hosts, *wait)
        spec = {"activeDeadlineSeconds": self.settings.lasts_s}  # from here on it may take its time
        self.api.on_job("patch", name=self.name, body={"spec": spec})
        return found

    def _make(self) -> None:
        (job, service), api = self.plan.objects, self.api
        with contextlib.suppress(LaunchError):  # no right to it, or it is of another namespace
            if self.settings.inside:
                name = os.environ.get("HOSTNAME", "")
                job = _owned(job, "v1", api.ask(api.core.read_namespaced_pod, name), "Pod")
        api.ask(api.core.list_namespaced_pod, **self.mine)  # it can be reached
        self.may_be_there = True
        try:
            made = api.on_job("create", body=job, field_validation="Strict")
        except LaunchError as error:
            self.may_be_there = not 400 <= status_of(error) < 500
            raise
        self.uid = _uid(made)
        service = _owned(service, "batch/v1", made, "Job")
        api.ask(api.core.create_namespaced_service, body=service)

    def _coming(self, numbers: Sequence[int]) -> Iterator[list[StartedAgent]]:
        """The agents of these indexes so far, each in another pod than its last one was."""
        found: dict[int, StartedAgent] = {}
        while True:
            found.update({n: a for n in {*numbers} - {*found} if (a := self._look_for(n))})
            yield [found[number] for number in numbers if number in found]

    def _late(self) -> Reason:
        return Reason(f"{self._waits_for()}.".lstrip("."), f"Wait longer: --timeout 600   {HINT}")

    def _look_for(self, number: int) -> StartedAgent | None:
        """The agent of an index's pod, if it runs and has announced itself.

        Raises:
          LaunchError: a start waits for a pod that can't have one.
        """
        with self._lock:
            pods = [pod for pod in self.pods.values() if _index(pod) == number]
        for pod in pods:
            uid, name, state = _uid(pod), str(pod["metadata"]["name"]), _state(pod)
            waits = state.get("waiting") or {}
            why = f"{waits.get('reason')}: {waits.get('message')}"
            if NEVER.match(why) and not self._is_up:
                told = f'The pod {name} can\'t start. Kubernetes says: "{why}"'
                raise LaunchError(told, f"{HINT}. Its Python: --python PATH")
            has_ended = _has_ended(pod)
            if uid == self.current.get(number) or not {"running", "terminated"} & {*state}:
                continue
            if self._is_up and has_ended:
                continue
            run = Run(Command((name,), (number,)), host=f"the pod {name}")
            for line in self.api.log(name):
                run.take(line)
            if not has_ended and run.agents:
                self.current[number], facts = uid, run.agents[0].facts
                via = self._way(number, name, facts) if self.settings.forwards else ""
                return StartedAgent(number, {**facts, "number": number}, via)
            if has_ended and not (_is_deleted(pod) or _disruption(pod)):
                raise self._no_agent(pod, run)
        return None

    def _no_agent(self, pod: Object, run: Run) -> LaunchError:
        """Why its agent has ended before the start was over."""
        if run.trouble is not None:  # it has said why itself
            return LaunchError(run.trouble.message, run.trouble.hint or HINT)
        assert self.plan.agent is not None
        message = str(_state(pod).get("terminated", {}).get("message", ""))
        line, hint = failures.cause([*run.out, *message.splitlines()], self.plan.agent.python)
        told = f"The pod {pod['metadata']['name']} has started no agent: {_why_ended(pod)}."
        return LaunchError(f'{told} Its last line: "{line}"', hint or HINT)

    def _waits_for(self) -> str:
        """The reason why pods wait, in Kubernetes' words.

        Raises:
          LaunchError: they can't ever be made.
        """
        with self._lock:
            there = [pod for pod in self.pods.values() if not _has_ended(pod)]
        waiting = [pod for pod in there if "running" not in _state(pod)]
        if self.trouble or (there and not waiting):
            return self.trouble
        if not waiting and self._job_end() and not self._is_up:
            raise LaunchError(f"No agent has come: {self._job_end()}.")
        said = ""
        with contextlib.suppress(LaunchError):  # without the right to it there are fewer words
            uid = _uid(waiting[0]) if waiting else self.uid
            about = {"field_selector": f"involvedObject.uid={uid},type=Warning"}
            events = self.api.ask(self.api.core.list_namespaced_event, **about)["items"]
            for last in sorted(events, key=_when)[-1:]:
                said = f"{last.get('reason')}: {last.get('message')}".rstrip(".")
        if waiting:
            told = _condition(waiting[0], "PodScheduled").get("message")
            told = told or _state(waiting[0]).get("waiting", {}).get("reason")
            why = said or told or "not scheduled yet"
            return f"{len(waiting)} of {self.plan.num_hosts} pods wait: {why}"
        if not self._is_up and REFUSED.search(said) and not COMES.search(said):
            raise LaunchError(f'The pods can\'t be made. Kubernetes says: "{said}"', HINT)
        return ": ".join(filter(None, ["the Job has no pods yet", said]))

    # -- while they run

    def _follow(self) -> None:
        """On a thread: know every pod's last state, and tell of ends."""
        while True:
            try:
                listed = self.api.ask(self.api.core.list_namespaced_pod, **self.mine)["items"]
                self.trouble = ""
                there = {_uid(pod) for pod in listed}
                gone = [pod for uid, pod in self.pods.items() if uid not in there]
                for pod in gone:
                    pod["metadata"]["deletionTimestamp"] = "now"
                self._see([*listed, *gone])
            except LaunchError as error:  # it may pass: the agents need no API server
                self.trouble = error.message
            if self._over.wait(FOLLOW_S):
                return

    def _see(self, pods: Sequence[Object]) -> None:
        for pod in pods:
            with self._lock:
                self.pods[_uid(pod)] = pod
            numbers = [n for n, uid in self.current.items() if uid == _uid(pod)]
            if not numbers or not _has_ended(pod) or _uid(pod) in self.lost:
                continue
            self.lost.add(_uid(pod))
            self._close(numbers[0])
            node = pod["spec"].get("nodeName", "")
            where = f" on the node {node}" if node else ""
            # A Job at its deadline says so after it has deleted its pods.
            looks = 1 if _disruption(pod) or not _is_deleted(pod) else 5
            ends = (self._job_end() for n in range(looks) if not n or not self._over.wait(0.25))
            why = next(filter(None, ends), "") or _why_ended(pod)
            told = f"The pod {pod['metadata']['name']}{where} has ended: {why}."
            if self._is_up and self.on_end is not None and not self._over.is_set():
                self.on_end((numbers[0],), Reason(told, has_ended=True))

    def _job_end(self) -> str:
        """Why the whole Job is over; empty while it is not."""
        try:
            job = self.api.on_job("get", name=self.name)
        except LaunchError as error:
            return "the Job was deleted" if status_of(error) == 404 else ""
        # FailureTarget (Kubernetes 1.31): it is going to be Failed, once its pods have ended.
        failed = _condition(job, "Failed") or _condition(job, "FailureTarget")
        if failed.get("reason") == "DeadlineExceeded":
            return "the Job is over, at its deadline (--time)"
        return f"the Job has failed ({failed['reason']}: {failed.get('message')})" if failed else ""

    def successor(self, number: int, name: str) -> Callable[..., StartedAgent] | None:
        """A function that ends the last pod, if it runs, and waits for the next pod's agent."""
        last = self.pods[self.current[number]]

        def start(*wait: Any) -> StartedAgent:
            if not _is_over(last):  # also where a container beside its agent goes on
                name, body = last["metadata"]["name"], {"preconditions": {"uid": _uid(last)}}
                with contextlib.suppress(LaunchError):
                    self.api.ask(self.api.core.delete_namespaced_pod, name, body=body)
            return self._await(self._coming([number]), 1, *wait)[0]

        return None if self._job_end() else start

    def detach(self, found_by: Sequence[Path]) -> None:
        if self.settings.forwards:
            raise LaunchError(
                "Ports to the pods are forwarded until this notebook ends, so --detach loses them.",
                "Reach them at their own addresses (--direct), or start from inside the cluster.",
            )
        super().detach(found_by)

    # -- port-forward

    def _way(self, number: int, pod: str, facts: Object) -> str:
        """A Unix socket here that leads to a pod's agent, as ``kubectl port-forward``'s port."""
        self._close(number)
        port = int(str(facts["endpoint"]).rpartition(":")[2])
        self.ways[number] = way = Way(f"{self.plan.folder}/pod-{number}.sock", self.api, pod, port)
        threading.Thread(target=way.serve_forever, name="jaxcluster-forward", daemon=True).start()
        return way.path

    def _close(self, number: int) -> None:
        if (way := self.ways.pop(number, None)) is not None:
            way.shutdown()
            way.server_close()
            Path(way.path).unlink(missing_ok=True)

    # -- the end

    def stop(self) -> None:
        """Delete the Job, and with it what it made; say how, where that fails."""
        self._over.set()
        for number in list(self.ways):
            self._close(number)
        if self.may_be_there:
            self.may_be_there = False
            try:
                self.api.on_job("delete", name=self.name, propagation_policy="Background")
                pods = self.api.core.list_namespaced_pod
                until = time.monotonic() + GONE_S
                while self.api.ask(pods, **self.mine)["items"] and time.monotonic() < until:
                    time.sleep(LOOK_S)
            except LaunchError as error:
                if status_of(error) != 404:
                    typed = f"kubectl -n {self.api.namespace} delete job {self.name}"
                    print(f"A Job may be left. {error}\nTo end it: {typed}", file=sys.stderr)
        super().stop()


class Way(socketserver.ThreadingUnixStreamServer):
    """A Unix socket whose connections lead to a port of a pod."""

    daemon_threads, request_queue_size = True, 8

    def __init__(self, path: str, api: Api, pod: str, port: int) -> None:
        super().__init__(path, socketserver.BaseRequestHandler)
        self.path, self._connect = path, partial(api.forward, pod, port)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Join a connection to a pod's port, on a new thread."""
        with contextlib.closing(self._connect()) as there:
            there.setblocking(True)
            back = threading.Thread(target=_pump, args=(there, request), daemon=True)
            back.start()
            _pump(request, there)
            back.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The connection is closed, and the notebook's end tries again."""


def _pump(source: Any, sink: Any) -> None:
    """Pass bytes from one socket to the other until one ends; then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


# ---------------------------------------------------------------------------- what a pod says


def _owned(thing: Object, version: str, owner: Object, kind: str) -> Object:
    """A thing that is removed with its owner."""
    found = {"apiVersion": version, "kind": kind, "name": owner["metadata"]["name"]}
    owners = [{**found, "uid": _uid(owner)}]
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": owners}}


def _uid(thing: Object) -> str:
    return str(thing["metadata"]["uid"])


def _index(pod: Object) -> int:
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def _state(pod: Object) -> Object:
    """The state of the agent's container: waiting, running or terminated."""
    found = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one.get("state") or {} for one in found if one["name"] == CONTAINER), {})


def _condition(thing: Object, kind: str) -> Object:
    """A condition that holds; PodScheduled also where it does not."""
    for one in (thing.get("status") or {}).get("conditions") or []:
        if one.get("type") == kind and (one.get("status") == "True" or kind == "PodScheduled"):
            return dict(one)
    return {}


def _is_deleted(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _is_over(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or _is_deleted(pod)


def _has_ended(pod: Object) -> bool:
    """Whether its agent has; a container beside it may go on."""
    return _is_over(pod) or "terminated" in _state(pod)


def _disruption(pod: Object) -> str:
    """Why the cluster itself ended it, so that the Job's next pod may well run; else ""."""
    status = pod.get("status") or {}
    found = status if status.get("reason") else _condition(pod, "DisruptionTarget")  # Evicted, ...
    return f"{found['reason']}: {found.get('message', '')}".rstrip(": .") if found else ""


def _why_ended(pod: Object) -> str:
    """Why a pod has ended or is being ended, for "The pod X has ended: ..."."""
    ended = _state(pod).get("terminated") or {}
    if (why := _disruption(pod)) or ended.get("reason") == "OOMKilled":
        return why or "it used more memory than its limit (OOMKilled: --mem)"
    code = ended.get("exitCode")
    if code is None or _is_deleted(pod):
        return "it was deleted"
    return f"its agent {failures.how_it_ended(128 - code if code > 128 else code)}"


def _when(event: Object) -> str:
    """An event's time; RFC 3339 sorts as text."""
    found = event.get("lastTimestamp") or event.get("eventTime")
    return str(found or event.get("metadata", {}).get("creationTimestamp") or "")
