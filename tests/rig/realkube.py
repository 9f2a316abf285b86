"""A real Kubernetes API server with etcd and controllers, on loopback or in a host's network.

``rig.kube`` is a stand-in for all of it; this shows whether that is true. Real are: the API server
with its admission, its rights and its validation, the Job controller, the garbage collector and
quotas. Ours are: the scheduler, and kubelets that run a pod's command as a process, without a
container. The programs are those that envtest takes: from KUBEBUILDER_ASSETS, or PATH.
"""

from __future__ import annotations

import base64
import csv
import http.server
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rig.hosts import Host
from rig.kube import Container, Forwarding, Node, Object, in_network, now

T = TypeVar("T")

SERVER, STORE, CONTROLLERS = "kube-apiserver", "etcd", "kube-controller-manager"
RUNS = (
    "job-controller", "garbage-collector-controller", "serviceaccount-controller",
    "ttl-after-finished-controller", "resourcequota-controller", "namespace-controller",
)  # fmt: skip
TOKENS = {"admin": "admin-token", "me": "my-token", "stranger": "stranger-token"}
NAMESPACE = "team-a"
DOCS = Path(__file__).parents[2] / "docs"
READY_S = 60.0
STEP_S = 0.1
MERGE = "application/merge-patch+json"


def program(name: str) -> str:
    """Its path; empty: it is not here."""
    beside = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin", name)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name) or ""


def what_is_missing(*names: str) -> str:
    """One line, for a test that is skipped; empty: nothing."""
    lacks = [name for name in names if not program(name)]
    if not lacks:
        return ""
    return (
        f"there is no {' and no '.join(lacks)}: put them in PATH or KUBEBUILDER_ASSETS "
        "(docs/internals/tests.md)"
    )


def documented_rights() -> list[dict[str, Any]]:
    """The rules of the role in the docs."""
    import yaml  # comes with the client

    text = (DOCS / "kubernetes.md").read_text().partition("## Rights")[2]
    rules = yaml.safe_load(text.partition("```yaml")[2].partition("```")[0])["rules"]
    return list(rules)


class Refusal(Exception):
    """The API server's, for a test that did not expect one."""


class RealKube:
    """The programs, in a folder that goes with them.

    Args:
      images: what is in them: variables of the environment, and ``USER`` where that is not root.
      host: in whose network they run; None for loopback.

    Attributes:
      closed: nodes that take no pods.
    """

    def __init__(
        self, nodes: list[Node], images: Mapping[str, Mapping[str, str]], host: Host | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jcreal", dir="/tmp"))
        self.host = host
        self.address = "127.0.0.1" if host is None else host.address
        self.closed: set[str] = set()
        self._programs: list[subprocess.Popen[bytes]] = []
        self.kubelets: Kubelets | None = None
        try:
            self._start()
            self.kubelets = Kubelets(self, nodes, images)
        except BaseException:
            self.close()
            raise

    # -- the programs

    def _start(self) -> None:
        store, peers, self.port = (self._free_port() for _ in range(3))
        key, public = self.folder / "sa.key", self.folder / "sa.pub"
        self._openssl("genrsa", "-out", key, "2048")
        self._openssl("rsa", "-in", key, "-pubout", "-out", public)
        with open(self.folder / "tokens.csv", "w", newline="") as file:
            for number, (user, token) in enumerate(TOKENS.items()):
                groups = ["system:masters"] if user == "admin" else []
                csv.writer(file).writerow([token, user, number, *groups])
        etcd = f"http://{self.address}:{store}"
        self._run(
            STORE, f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls=http://{self.address}:{peers}",
        )  # fmt: skip
        self._run(
            SERVER, f"--etcd-servers={etcd}", f"--bind-address={self.address}",
            f"--secure-port={self.port}", f"--cert-dir={self.folder}/certs",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={public}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
        )  # fmt: skip
        self._wait(lambda: self.ask("GET", "/readyz", raw=True) == b"ok")
        config = self.folder / "admin.kubeconfig"
        config.write_text(self.kubeconfig(user="admin"))
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        if program(CONTROLLERS):
            self._run(
                CONTROLLERS, f"--kubeconfig={config}", f"--controllers={','.join(RUNS)}",
                f"--bind-address={self.address}", f"--secure-port={self._free_port()}",
                f"--service-account-private-key-file={key}", "--leader-elect=false",
            )  # fmt: skip
            self._wait(lambda: bool(self.ask("GET", self.path("serviceaccounts"))["items"]))
        else:  # a pod needs it, and else the controllers make it
            self.ask("POST", self.path("serviceaccounts"), {"metadata": {"name": "default"}})

    def _openssl(self, *words: Any) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)

    def there(self, do: Callable[[], T]) -> T:
        """What ``do`` returns, done in the network of the programs."""
        return do() if self.host is None else in_network(self.host, do)

    def _free_port(self) -> int:
        with self.there(lambda: socket.create_server((self.address, 0))) as probe:
            return int(probe.getsockname()[1])

    def _run(self, name: str, *options: str) -> None:
        way = () if self.host is None else ("nsenter", f"--net=/proc/{self.host.pid}/ns/net", "--")
        with open(self.folder / f"{name}.log", "wb") as log:
            self._programs.append(
                subprocess.Popen(
                    [*way, program(name), *options],
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def _wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + READY_S
        while True:
            for one in self._programs:
                if one.poll() is not None:
                    raise RuntimeError(f"{one.args} has ended:\n{self.tail()}")
            try:
                if is_so():
                    return
            except (OSError, Refusal):
                if time.monotonic() > until:
                    raise RuntimeError(self.tail()) from None
            time.sleep(STEP_S)

    def tail(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {one.name}\n{one.read_text()[-2000:]}" for one in logs)

    def close(self) -> None:
        if self.kubelets is not None:
            self.kubelets.close()
        for one in reversed(self._programs):
            one.terminate()
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        shutil.rmtree(self.folder)

    # -- the API

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    def kubeconfig(self, namespace: str = NAMESPACE, user: str = "me") -> str:
        """The text of one that leads here."""
        authority = base64.b64encode((self.folder / "certs" / "apiserver.crt").read_bytes())
        cluster = {"server": self.url, "certificate-authority-data": authority.decode()}
        context = {"cluster": "c", "user": "u", "namespace": namespace}
        return json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": TOKENS.get(user, user)}}],
            "contexts": [{"name": "test", "context": context}],
        })  # fmt: skip

    def path(self, plural: str, name: str = "", sub: str = "", namespace: str = NAMESPACE) -> str:
        groups = {"jobs": "/apis/batch/v1", "roles": "/apis/rbac.authorization.k8s.io/v1",
                  "rolebindings": "/apis/rbac.authorization.k8s.io/v1"}  # fmt: skip
        parts = [groups.get(plural, "/api/v1"), "namespaces", namespace, plural, name, sub]
        return "/".join(part for part in parts if part)

    def ask(
        self, method: str, path: str, body: Any = None, kind: str = "application/json",
        user: str = "admin", raw: bool = False,
    ) -> Any:  # fmt: skip
        """What the API server answers.

        Raises:
          Refusal: it refuses.
        """
        request = urllib.request.Request(
            f"{self.url}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind, "Authorization": f"Bearer {TOKENS[user]}"},
        )  # fmt: skip
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            data = self.there(
                lambda: urllib.request.urlopen(request, None, 30, context=context).read()
            )
        except urllib.error.HTTPError as error:
            raise Refusal(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return data if raw else json.loads(data)

    def all(self, plural: str) -> list[Object]:
        return list(self.ask("GET", self.path(plural))["items"])

    def grant(self, rules: list[Mapping[str, Any]]) -> None:
        """Give the user ``me`` these rights and no others."""
        group = "rbac.authorization.k8s.io"
        for plural, made in {
            "roles": {"rules": rules},
            "rolebindings": {
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "jaxcluster"},
                "subjects": [{"apiGroup": group, "kind": "User", "name": "me"}],
            },
        }.items():
            if any(one["metadata"]["name"] == "jaxcluster" for one in self.all(plural)):
                self.ask("DELETE", self.path(plural, "jaxcluster"))
            self.ask("POST", self.path(plural), {"metadata": {"name": "jaxcluster"}, **made})

    def label(self, **labels: str | None) -> None:
        """The namespace's: ``enforce`` for Pod Security's; None takes it off."""
        told = {f"pod-security.kubernetes.io/{name}": value for name, value in labels.items()}
        self.ask("PATCH", f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": told}}, MERGE)

    def discard(self, job: str) -> None:
        """As ``kubectl delete job`` does; by default its pods would stay."""
        self.ask("DELETE", self.path("jobs", job), {"propagationPolicy": "Background"})

    def evict(self, name: str) -> None:
        """As ``kubectl drain`` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.ask("POST", self.path("pods", name, "eviction"), body)


class Kubelets:
    """The nodes, and what gives them pods: one pod at a time on each.

    They poll. What a pod's command writes, and its ports, the API server gets from here.
    """

    def __init__(
        self, kube: RealKube, nodes: list[Node], images: Mapping[str, Mapping[str, str]]
    ) -> None:
        self.kube, self.nodes, self.images = kube, nodes, images
        self.containers: dict[str, Container] = {}  # by the pod's uid
        self.where: dict[str, str] = {}  # the node's name, by the pod's uid
        self.failed: Exception | None = None
        self._over = threading.Event()
        kubelets = self

        class Handler(_Handler):
            owner = kubelets

        certs = kube.folder / "certs"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs / "apiserver.crt", certs / "apiserver.key")
        self._server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
        self._server.socket.close()
        listener = kube.there(lambda: socket.create_server((kube.address, 0), backlog=64))
        port = listener.getsockname()[1]
        self._server.socket = context.wrap_socket(
            listener, server_side=True, do_handshake_on_connect=False
        )
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        for node in nodes:
            self._register(node.name, port)
        self._loop = threading.Thread(target=self._poll, daemon=True)
        self._loop.start()

    def _register(self, name: str, port: Any) -> None:
        self.kube.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
        status = {
            "addresses": [{"type": "InternalIP", "address": self.kube.address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        self.kube.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)

    def close(self) -> None:
        self._over.set()
        self._loop.join()
        self._server.shutdown()
        self._server.server_close()
        for one in self.containers.values():
            one.signal(signal.SIGKILL)
            one.process.kill()
            one.process.wait()

    def kill(self, pod: Object, number: int = signal.SIGKILL) -> None:
        """Send a signal to a pod's agent."""
        self.containers[pod["metadata"]["uid"]].signal(number)

    def _poll(self) -> None:
        while not self._over.wait(STEP_S):
            try:
                for pod in self.kube.ask("GET", "/api/v1/pods")["items"]:
                    self._look_at(pod)
            except Exception as error:
                # A pod has gone or changed meanwhile, or the API server ends.
                if not re.search(r": 40[49] |refused|reset|timed out", str(error)):
                    self.failed = error

    def _look_at(self, pod: Object) -> None:
        uid, status = pod["metadata"]["uid"], pod["status"]
        if uid in self.containers:
            return self._watch(pod, self.containers[uid])
        if pod["metadata"].get("deletionTimestamp"):
            return self._gone(pod)
        if not pod["spec"].get("nodeName"):
            return self._schedule(pod)
        if status.get("phase") == "Pending" and not status.get("containerStatuses"):
            self._run(pod)

    def _tell(self, pod: Object, **status: Any) -> None:
        metadata = pod["metadata"]
        path = self.kube.path("pods", metadata["name"], "status", metadata["namespace"])
        self.kube.ask("PATCH", path, {"status": status}, MERGE)

    def _gone(self, pod: Object) -> None:
        metadata = pod["metadata"]
        path = self.kube.path("pods", metadata["name"], namespace=metadata["namespace"])
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        self.kube.ask("DELETE", path, body)
        self.where.pop(metadata["uid"], None)

    def _schedule(self, pod: Object) -> None:
        metadata = pod["metadata"]
        taken = {self.where[uid] for uid in self.containers} | self.kube.closed
        free = [node for node in self.nodes if node.name not in taken]
        if free:
            body = {
                "metadata": {"name": metadata["name"]},
                "target": {"apiVersion": "v1", "kind": "Node", "name": free[0].name},
            }
            path = self.kube.path("pods", metadata["name"], "binding", metadata["namespace"])
            self.kube.ask("POST", path, body)
            self._run({**pod, "spec": {**pod["spec"], "nodeName": free[0].name}})
        elif not pod["status"].get("conditions"):
            count = len(self.nodes)
            told = f"0/{count} nodes are available: {count} Insufficient cpu."
            self._tell(pod, conditions=[_condition("PodScheduled", "False", "Unschedulable", told)])

    def _run(self, pod: Object) -> None:
        """Start its first container's command, or say why it can't."""
        metadata, spec = pod["metadata"], pod["spec"]
        (node,) = [one for one in self.nodes if one.name == spec["nodeName"]]
        main = spec["containers"][0]
        image = self.images.get(main["image"])
        context = {**(spec.get("securityContext") or {}), **(main.get("securityContext") or {})}
        if image is None:
            return self._waits(pod, "ErrImagePull", f"{main['image']}: not found")
        user = context.get("runAsUser", image.get("USER", 0))
        if context.get("runAsNonRoot") and not int(user):
            told = "container has runAsNonRoot and image will run as root"
            return self._waits(pod, "CreateContainerConfigError", f"{told} (pod: x, container: y)")
        env = {
            **image, "HOSTNAME": spec["hostname"],
            **{one["name"]: _value(one, metadata) for one in main.get("env", [])},
        }  # fmt: skip
        words = [w.replace("$$", "$") for w in main.get("command", []) + main.get("args", [])]
        log = self.kube.folder / f"{metadata['uid']}.log-of-pod"
        with open(log, "wb") as file:
            process = node.run(words, env, spec["hostname"], file)
        self.where[metadata["uid"]] = node.name
        self.containers[metadata["uid"]] = Container(process, log)
        ready = [_condition(kind, "True") for kind in ("PodScheduled", "Ready")]
        running = {"running": {"startedAt": now()}}
        self._tell(
            pod, phase="Running", startTime=now(), conditions=ready, podIP=node.address,
            podIPs=[{"ip": node.address}], containerStatuses=[_status(main, running)],
        )  # fmt: skip

    def _waits(self, pod: Object, reason: str, message: str) -> None:
        waiting = {"waiting": {"reason": reason, "message": message}}
        main = pod["spec"]["containers"][0]
        self._tell(pod, startTime=now(), containerStatuses=[_status(main, waiting)])

    def _watch(self, pod: Object, container: Container) -> None:
        metadata, status = pod["metadata"], pod["status"]
        code = container.process.poll()
        if code is None:
            if not metadata.get("deletionTimestamp"):
                return
            if container.killed_at is None:
                container.killed_at = time.monotonic()
                container.signal(signal.SIGTERM)
            elif time.monotonic() > container.killed_at + metadata["deletionGracePeriodSeconds"]:
                container.signal(signal.SIGKILL)
            return
        code = 128 - code if code < 0 else code
        ended = {"reason": "Error" if code else "Completed", "exitCode": code,
                 "startedAt": status.get("startTime") or now(), "finishedAt": now()}  # fmt: skip
        main = pod["spec"]["containers"][0]
        # The conditions that others have set stay: why it was evicted, say.
        kept = [one for one in status.get("conditions") or [] if one["type"] != "Ready"]
        try:
            self._tell(
                pod, phase="Failed" if code else "Succeeded",
                conditions=[*kept, _condition("Ready", "False", "PodFailed")],
                containerStatuses=[_status(main, {"terminated": ended})],
            )  # fmt: skip
        finally:
            del self.containers[metadata["uid"]]


def _value(variable: Object, metadata: Object) -> str:
    """An environment's: as it stands, or the pod's label that it names."""
    if (source := variable.get("valueFrom")) is None:
        return str(variable.get("value", "")).replace("$$", "$")
    path = source["fieldRef"]["fieldPath"]
    return str(metadata["labels"][path.partition("'")[2].rstrip("']")])


def _condition(kind: str, status: str, reason: str = "", message: str = "") -> Object:
    told = {"reason": reason, "message": message}
    return {"type": kind, "status": status, "lastTransitionTime": now(),
            **{name: text for name, text in told.items() if text}}  # fmt: skip


def _status(container: Object, state: Object) -> Object:
    return {
        "name": container["name"], "image": container["image"], "imageID": "", "state": state,
        "ready": "running" in state, "started": "running" in state, "restartCount": 0,
    }  # fmt: skip


class _Handler(Forwarding):
    """A kubelet's own server, of which the API server asks for logs and ports."""

    owner: Kubelets

    def do_GET(self) -> None:
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        _, what, namespace, pod, *_ = url.path.split("/")
        kube = self.owner.kube
        found = kube.ask("GET", kube.path("pods", pod, namespace=namespace))
        uid = found["metadata"]["uid"]
        if what == "containerLogs":
            log = kube.folder / f"{uid}.log-of-pod"
            data = log.read_bytes() if log.exists() else b""
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        elif what == "portForward" and uid in self.owner.where:
            name = self.owner.where[uid]
            (node,) = [one for one in self.owner.nodes if one.name == name]
            self.forward(node, int(query.get("port") or query["ports"]))
        else:
            self.send_error(404)
