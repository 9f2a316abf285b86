"""A small Kubernetes for the tests: an API server, a Job controller, a scheduler, and kubelets.

It is no Kubernetes: it proves what jaxcluster asks for and makes of the answers, not how a cluster
behaves. The API server speaks HTTP to the real client, checks what is made against Kubernetes' own
schemas, and has rights, quotas, events, evictions, uids, owners and port-forward. A node runs one
pod at a time, as a process of the node's.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import ctypes
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tornado import httpserver, web, websocket

from rig.hosts import Host

T = TypeVar("T")
KINDS = {
    "pods": ("v1", "Pod"), "services": ("v1", "Service"), "jobs": ("batch/v1", "Job"),
    "events": ("v1", "Event"),
}  # fmt: skip
SPACE = r"/(?:api/v1|apis/batch/v1)/namespaces/([^/]+)"
FORWARD = rf"{SPACE}/pods/([^/]+)/portforward"
PATH = rf"{SPACE}/(pods|services|jobs|events)(?:/([^/]+))?(?:/(\w+))?"
VERBS = {"GET": "get", "POST": "create", "DELETE": "delete", "PATCH": "patch"}
INDEX = "batch.kubernetes.io/job-completion-index"
SCHEMAS = "1.30"
STEP_S = 0.1
LINGER_S = 1.0  # from a pod's signal on, until its kubelet has told of its end
BACKOFF_S = 0.5  # until a pod is made anew; Kubernetes takes 10 s and more

Object = dict[str, Any]


@dataclass
class Node:
    """Where one pod at a time runs.

    Attributes:
      run: starts a pod's command with this environment and host name, output to a file.
      connect: to a port of the pod.
    """

    name: str
    address: str
    run: Callable[[list[str], Mapping[str, str], str, Any], subprocess.Popen[bytes]]
    connect: Callable[[int], socket.socket]


@dataclass
class Container:
    """A pod that a node runs."""

    process: subprocess.Popen[bytes]
    log: Path
    killed_at: float | None = None

    def end(self, grace_s: float) -> None:
        """End it, by force once its time is over."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
            self.signal(signal.SIGTERM)
        elif time.monotonic() > self.killed_at + grace_s:
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To its first process: the last one of those that carry it in."""
        try:
            one = psutil.Process(self.process.pid)
            while (children := one.children()) and one.name() in ("nsenter", "unshare"):
                one = children[0]
            one.send_signal(number)
        except psutil.Error:
            pass


def config_for(cluster: Mapping[str, Any], token: str) -> str:
    """The text of a kubeconfig."""
    context = {"cluster": "c", "user": "u", "namespace": "team-a"}
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
    })  # fmt: skip


class Kube:
    """The cluster. Tests set what goes wrong.

    Attributes:
      images: what is in them: variables of the environment.
      namespaces: those that are there.
      rights: what its user may, (verb, resource): what the docs say that a start needs.
      quota: why no pod may be made, by a quota or an admission; empty for none.
      closed: nodes that take no pods.
      token: whoever has none is anonymous, whoever has another nobody.
    """

    def __init__(
        self,
        listener: socket.socket,
        nodes: list[Node],
        images: Object,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.nodes, self.images = nodes, images
        self.namespaces = {"default", "team-a"}
        rules = documented_rules()
        self.rights = {(v, r) for rule in rules for v in rule["verbs"] for r in rule["resources"]}
        self.quota = ""
        self.closed: set[str] = set()
        self.token = "t"
        self.requests: list[tuple[str, str]] = []
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.containers: dict[str, Container] = {}  # by the pod's uid
        self.times: dict[str, float] = {}  # by uid: a Job's start, a pod's end
        self.lock = threading.RLock()
        self._folder = tempfile.TemporaryDirectory(prefix="jckube")
        self._over = threading.Event()
        self._loop = asyncio.new_event_loop()
        listener.setblocking(False)
        threading.Thread(target=self._serve, args=(listener, context), daemon=True).start()
        address, port = listener.getsockname()[:2]
        self.url = f"http{'s' if context else ''}://{address}:{port}"
        threading.Thread(target=self._control, daemon=True).start()

    def kubeconfig(self) -> str:
        """The text of one."""
        return config_for({"server": self.url}, "t")

    def _serve(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        asyncio.set_event_loop(self._loop)
        own = {"cluster": self}
        app = web.Application([(FORWARD, _Forward, own), (PATH, _Api, own)], log_function=str)
        server = httpserver.HTTPServer(app, ssl_options=context)
        server.add_sockets([listener])
        self._loop.run_forever()
        server.stop()
        self._loop.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._over.set()
        with self.lock:
            for one in self.containers.values():
                one.signal(signal.SIGKILL)
                one.process.kill()
                one.process.wait()
        self._folder.cleanup()

    # -- for tests

    def all(self, plural: str) -> list[Object]:
        with self.lock:
            return [copy.deepcopy(o) for (kind, _, _), o in self.objects.items() if kind == plural]

    def pod(self, index: int) -> Object | None:
        """The one that runs."""
        for pod in self.all("pods"):
            running = pod["status"]["phase"] == "Running"
            if running and pod["metadata"]["annotations"].get(INDEX) == str(index):
                return pod
        return None

    def evict(self, index: int, reason: str, message: str) -> str:
        """End a pod as the cluster does for reasons of its own; returns its name."""
        with self.lock:
            pod = self.pod(index)
            assert pod is not None
            name = str(pod["metadata"]["name"])
            real = self.objects["pods", pod["metadata"]["namespace"], name]
            real["status"].setdefault("conditions", []).append(
                {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
            )
            self.delete("pods", pod["metadata"]["namespace"], name)
        return name

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a pod's agent."""
        pod = self.pod(index)
        assert pod is not None
        self.containers[pod["metadata"]["uid"]].signal(number)

    def add(self, plural: str, namespace: str, made: Object) -> Object:
        """Make an object, as its creator wants it."""
        api, kind = KINDS[plural]
        metadata = made.setdefault("metadata", {})
        metadata.update(namespace=namespace, uid=str(uuid.uuid4()), creationTimestamp=now())
        made = {"apiVersion": api, "kind": kind, "status": {}, **made}
        with self.lock:
            self.objects[plural, namespace, metadata["name"]] = made
        return made

    def delete(self, plural: str, namespace: str, name: str) -> None:
        """As a user does: a pod first gets its signal."""
        with self.lock:
            found = self.objects[plural, namespace, name]
            if plural == "pods" and found["metadata"]["uid"] in self.containers:
                found["metadata"].setdefault("deletionTimestamp", now())
            else:
                del self.objects[plural, namespace, name]

    # -- the cluster's own work

    def _control(self) -> None:
        while not self._over.wait(STEP_S):
            with self.lock:
                self._collect()
                for job in [o for (kind, _, _), o in self.objects.items() if kind == "jobs"]:
                    self._control_job(job)
                for key, pod in list(self.objects.items()):
                    if key[0] == "pods":
                        self._control_pod(pod)

    def _collect(self) -> None:
        """What has lost its owner goes."""
        uids = {o["metadata"]["uid"] for o in self.objects.values()}
        for (plural, namespace, name), one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences", [])
            if owners and not any(owner["uid"] in uids for owner in owners):
                self.delete(plural, namespace, name)

    def _control_job(self, job: Object) -> None:
        spec, status, metadata = job["spec"], job["status"], job["metadata"]
        if status.get("conditions"):
            over = self.times.get(metadata["uid"], time.time())
            if time.time() > over + spec["ttlSecondsAfterFinished"]:
                self.delete("jobs", metadata["namespace"], metadata["name"])
            return
        started = self.times.setdefault(metadata["uid"], time.time())
        mine = [
            (int(o["metadata"]["annotations"][INDEX]), o)
            for (kind, _, _), o in self.objects.items()
            if kind == "pods"
            and any(r["uid"] == metadata["uid"] for r in o["metadata"].get("ownerReferences", []))
        ]
        if time.time() - started > spec.get("activeDeadlineSeconds", 1e9):
            late = {"reason": "DeadlineExceeded", "message": "late"}
            status["conditions"] = [{"type": "Failed", "status": "True", **late}]
            for _, pod in mine:
                self.delete("pods", metadata["namespace"], pod["metadata"]["name"])
            self.times[metadata["uid"]] = time.time()
            return
        done = {i for i, pod in mine if pod["status"].get("phase") == "Succeeded"}
        if len(done) == spec["completions"]:
            status["conditions"] = [{"type": "Complete", "status": "True"}]
            self.times[metadata["uid"]] = time.time()
        active = {i for i, pod in mine if pod["status"].get("phase") in ("Pending", "Running")}
        for index in set(range(spec["completions"])) - done - active:
            ends = [self.times.get(p["metadata"]["uid"], 0.0) for i, p in mine if i == index]
            if time.time() > max(ends, default=0.0) + BACKOFF_S:
                self._make_pod(job, index)

    def _make_pod(self, job: Object, index: int) -> None:
        metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        namespace = metadata["namespace"]
        if refusal := self.quota:
            name = f"{metadata['name']}-{index}-{uuid.uuid4().hex[:5]}"
            message = f'Error creating: pods "{name}" is forbidden: {refusal}'
            self.tell(job, "FailedCreate", message)
            return
        template["spec"]["hostname"] = f"{metadata['name']}-{index}"
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"]}
        made = {
            "metadata": {
                **template["metadata"],
                "name": f"{metadata['name']}-{index}-{uuid.uuid4().hex[:5]}",
                "annotations": {**template["metadata"].get("annotations", {}), INDEX: str(index)},
                "ownerReferences": [{**owner, "uid": metadata["uid"], "controller": True}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self.add("pods", namespace, made)

    def tell(self, one: Object, reason: str, message: str, kind: str = "Warning") -> None:
        """An event."""
        about = {"uid": one["metadata"]["uid"], "name": one["metadata"]["name"]}
        event = {
            "metadata": {"name": f"{about['name']}.{reason}"},
            "involvedObject": about, "reason": reason, "message": message, "type": kind,
            "lastTimestamp": now(),
        }  # fmt: skip
        self.add("events", one["metadata"]["namespace"], event)

    def _control_pod(self, pod: Object) -> None:
        container = self.containers.get(pod["metadata"]["uid"])
        if container is not None:
            self._watch(pod, container)
        elif pod["status"].get("phase") == "Pending" and "node" not in pod["status"]:
            self._schedule(pod)

    def _schedule(self, pod: Object) -> None:
        status = pod["status"]
        busy = {o["spec"].get("nodeName") for o in self.objects.values()
                if o["metadata"]["uid"] in self.containers}  # fmt: skip
        free = [n for n in self.nodes if n.name not in busy | self.closed]
        if not free:
            message = (
                f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient cpu."
            )
            why = {"reason": "Unschedulable", "message": message}
            status["conditions"] = [{"type": "PodScheduled", "status": "False", **why}]
            return
        status["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        (main, *_) = [c for c in pod["spec"]["containers"] if c["name"] == "jaxcluster"]
        if main["image"] not in self.images:
            waiting = {"reason": "ErrImagePull", "message": f"{main['image']}: not found"}
            status["containerStatuses"] = [{"name": main["name"], "state": {"waiting": waiting}}]
            return
        self._run(pod, main, free[0])

    def _run(self, pod: Object, main: Object, node: Node) -> None:
        metadata, status = pod["metadata"], pod["status"]
        env = {
            **self.images[main["image"]],
            "HOSTNAME": pod["spec"]["hostname"],
            "JOB_COMPLETION_INDEX": metadata["annotations"][INDEX],
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "KUBERNETES_SERVICE_PORT": "443",
            **{e["name"]: e["value"].replace("$$", "$") for e in main.get("env", [])},
        }
        words = [w.replace("$$", "$") for w in main.get("command", []) + main.get("args", [])]
        log = Path(self._folder.name, metadata["uid"])
        pod["spec"]["nodeName"] = node.name
        with open(log, "wb") as file:
            process = node.run(words, env, pod["spec"]["hostname"], file)
        self.containers[metadata["uid"]] = Container(process, log)
        status.update(phase="Running", podIP=node.address)
        status["containerStatuses"] = [{"name": main["name"], "state": {"running": {}}}]

    def _watch(self, pod: Object, container: Container) -> None:
        metadata, status = pod["metadata"], pod["status"]
        code = container.process.poll()
        if code is None:
            if metadata.get("deletionTimestamp"):
                container.end(pod["spec"].get("terminationGracePeriodSeconds", 30))
            return
        if time.monotonic() < (container.killed_at or 0.0) + LINGER_S:
            return
        del self.containers[metadata["uid"]]
        if metadata.get("deletionTimestamp"):
            del self.objects["pods", metadata["namespace"], metadata["name"]]
            return
        code = 128 - code if code < 0 else code
        ended = {"reason": "Error" if code else "Completed", "exitCode": code}
        status["phase"] = "Failed" if code else "Succeeded"
        self.times[metadata["uid"]] = time.time()
        status["containerStatuses"] = [{"name": "jaxcluster", "state": {"terminated": ended}}]


def documented_rules() -> list[Object]:
    """The rules of the role in the docs."""
    import yaml  # comes with the client

    text = (Path(__file__).parents[2] / "docs/kubernetes.md").read_text().partition("## Rights")[2]
    return list(yaml.safe_load(text.partition("```yaml")[2].partition("```")[0])["rules"])


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class _Refusal(web.HTTPError):
    def __str__(self) -> str:
        return str(self.log_message)


class _Asked(web.RequestHandler):
    """What is asked of the API server."""

    def initialize(self, cluster: Kube) -> None:
        self.cluster = cluster

    def prepare(self) -> None:
        self.verb = VERBS[self.request.method or ""]
        self.cluster.requests.append((self.request.method or "", self.request.path))

    def write_error(self, status: int, **more: Any) -> None:
        """As a Status of Kubernetes."""
        why = str(more["exc_info"][1])
        self.finish({"kind": "Status", "status": "Failure", "message": why, "code": status})

    def refuse_stranger(self, verb: str, resource: str, namespace: str, name: str | None) -> None:
        """Who has no right to it, or no token."""
        told = self.request.headers.get("Authorization", "")
        scheme, _, token = told.partition(" ")
        if told and (scheme.lower(), token) != ("bearer", self.cluster.token):
            raise _Refusal(401, "Unauthorized")
        user = "me" if told else "system:anonymous"
        if told and (verb, resource) in self.cluster.rights:
            return
        group = "batch" if resource == "jobs" else ""
        full = f"{resource.partition('/')[0]}.{group}".rstrip(".") + (f' "{name}"' if name else "")
        raise _Refusal(
            403,
            f'{full} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API '
            f'group "{group}" in the namespace "{namespace}"',
        )

    def find(self, namespace: str, plural: str, name: str) -> Object:
        found = self.cluster.objects.get((plural, namespace, name))
        if found is None:
            raise _Refusal(404, f'{plural} "{name}" not found')
        return found


class _Api(_Asked):
    """Objects, and pods' logs."""

    def get(self, *where: str | None) -> None:
        query = {name: values[-1].decode() for name, values in self.request.arguments.items()}
        self.finish(self._do(*where, query, json.loads(self.request.body or b"{}")))  # type: ignore[arg-type, misc]

    post = delete = patch = get

    def _do(
        self, namespace: str, plural: str, name: str | None, sub: str | None,
        query: Mapping[str, str], body: Object,
    ) -> Object | bytes:  # fmt: skip
        cluster, verb = self.cluster, self.verb if name or self.verb != "get" else "list"
        self.refuse_stranger(verb, f"{plural}/{sub}" if sub else plural, namespace, name)
        with cluster.lock:
            if verb == "create":
                return self._create(namespace, plural, query, body)
            if name is None:
                return self._list(namespace, plural, query)
            found = self.find(namespace, plural, name)
            if verb == "delete":
                wanted = (body.get("preconditions") or {}).get("uid")
                if wanted not in (None, found["metadata"]["uid"]):
                    raise _Refusal(409, "the UID in the precondition does not match")
                cluster.delete(plural, namespace, name)
                if plural == "pods":
                    return copy.deepcopy(found)
                return {"kind": "Status", "status": "Success"}
            if verb == "patch":  # a merge patch of a spec
                merged = {**found["spec"], **body["spec"]}
                found["spec"] = {name: value for name, value in merged.items() if value is not None}
                return copy.deepcopy(found)
        if sub == "log":
            name = query.get("container")
            if name and name not in [one["name"] for one in found["spec"]["containers"]]:
                raise _Refusal(400, f"container {name} is not valid for pod {found['metadata']}")
            log = Path(cluster._folder.name, found["metadata"]["uid"])
            return log.read_bytes() if log.exists() else b""
        return copy.deepcopy(found)

    def _create(
        self, namespace: str, plural: str, query: Mapping[str, str], body: Object
    ) -> Object:
        if namespace not in self.cluster.namespaces:
            raise _Refusal(404, f'namespaces "{namespace}" not found')
        if (plural, namespace, body["metadata"]["name"]) in self.cluster.objects:
            what = "jobs.batch" if plural == "jobs" else plural
            raise _Refusal(409, f'{what} "{body["metadata"]["name"]}" already exists')
        if query.get("fieldValidation") == "Strict" and (wrong := _schema_error(body)):
            what = f'{body["kind"]} in version "{body["apiVersion"].rpartition("/")[2]}" cannot be '
            raise _Refusal(
                400, f"{what}handled as a {body['kind']}: strict decoding error: {wrong}"
            )
        return copy.deepcopy(self.cluster.add(plural, namespace, body))

    def _list(self, namespace: str, plural: str, query: Mapping[str, str]) -> Object:
        labels = dict(w.split("=") for w in query.get("labelSelector", "").split(",") if w)
        fields = dict(w.split("=") for w in query.get("fieldSelector", "").split(",") if w)
        items = [
            copy.deepcopy(one)
            for (kind, space, _), one in self.cluster.objects.items()
            if (kind, space) == (plural, namespace)
            and labels.items() <= (one["metadata"].get("labels") or {}).items()
            and fields.get("involvedObject.uid") in (None, one.get("involvedObject", {}).get("uid"))
            and fields.get("type") in (None, one.get("type"))
        ]
        for one in items:
            del one["apiVersion"], one["kind"]
        return {"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}


class _Forward(_Asked, websocket.WebSocketHandler):
    """A port of a pod, as v4.channel.k8s.io has it: before all data a byte for the channel."""

    async def prepare(self) -> None:  # type: ignore[override]
        super().prepare()
        namespace, name = self.path_args
        self.refuse_stranger("get", "pods/portforward", namespace, name)
        found = self.find(namespace, "pods", name)
        if found["metadata"]["uid"] not in self.cluster.containers:
            raise _Refusal(400, "the pod does not run")
        (self.node,) = [n for n in self.cluster.nodes if n.name == found["spec"]["nodeName"]]

    def select_subprotocol(self, offered: list[str]) -> str:
        return "v4.channel.k8s.io"

    async def open(self, *_: str) -> None:  # type: ignore[override]
        port = int(self.get_argument("ports"))
        for channel in (b"\0", b"\1"):
            self.write_message(channel + struct.pack("<H", port), binary=True)
        loop = asyncio.get_running_loop()
        try:
            there = await loop.run_in_executor(None, self.node.connect, port)
        except OSError as error:
            told = f"can't connect to port {port} of the pod: {error}"
            self.write_message(b"\1" + told.encode(), binary=True)
            return
        reader, self.there = await asyncio.open_connection(sock=there)
        self.back = asyncio.create_task(self._pump(reader))

    async def _pump(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, websocket.WebSocketClosedError):
            while data := await reader.read(30000):
                await self.write_message(b"\0" + data, binary=True)
        self.close(1000)

    def on_message(self, message: str | bytes) -> None:
        if isinstance(message, bytes) and message[:1] == b"\0":
            self.there.write(message[1:])

    def on_close(self) -> None:
        if hasattr(self, "there"):
            self.there.close()


def _schema_error(body: Object) -> str:
    """What Kubernetes' own schemas say against it; nothing where they are not installed."""
    try:
        import kubernetes_validate
    except ImportError:
        return ""
    try:
        kubernetes_validate.validate(body, SCHEMAS, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = "".join(f"[{at}]" if isinstance(at, int) else f".{at}" for at in error.path)[1:]
        return re.sub(
            r".*\('(\w+)' was unexpected\)", rf'unknown field "{where}.\1"', str(error.message)
        )
    return ""


# ------------------------------------------------------------------------- nodes


def in_network(host: Host, do: Callable[[], T]) -> T:
    """What ``do`` returns, done by a thread of this process in a host's network."""
    done: list[T] = []
    failed: list[OSError] = []

    def work() -> None:
        with open(f"/proc/{host.pid}/ns/net") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), 0x40000000):
                failed.append(OSError(ctypes.get_errno(), "setns"))
                return
        try:
            done.append(do())
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


def listener_on(host: Host) -> socket.socket:
    """A socket of this process that listens in a host's network."""
    return in_network(host, lambda: socket.create_server((host.address, 0), backlog=64))


# A pod's own name leads to its address, as a kubelet has it.
POD = """hostname "$0" && mount -n -t tmpfs tmpfs /dev/shm &&
mount -n -t tmpfs -o mode=700 tmpfs /mnt && (cat /etc/hosts; echo "$1 $0") >/mnt/.hosts &&
mount -n --bind /mnt/.hosts /etc/hosts && shift && exec "$@" """


def node_on(host: Host) -> Node:
    """A node whose pods have processes, a host name, ``/dev/shm`` and ``/mnt`` of their own."""

    def run(words: list[str], env: Mapping[str, str], name: str, log: Any) -> Any:
        own = ("unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")
        argv = [*own, "--", "sh", "-c", POD, name, host.address, *words]
        return host.popen(*argv, env=env, cwd="/", stdout=log, stderr=log)

    return Node(
        f"node-{host.name}",
        host.address,
        run,
        lambda port: in_network(host, lambda: socket.create_connection((host.address, port), 10)),
    )


def node_here(name: str) -> Node:
    """A node whose pods are plain processes of this machine."""

    def run(words: list[str], env: Mapping[str, str], name: str, log: Any) -> Any:
        return subprocess.Popen(
            words,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    return Node(name, "127.0.0.1", run, lambda port: socket.create_connection(("127.0.0.1", port)))
