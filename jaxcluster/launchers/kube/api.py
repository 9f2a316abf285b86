"""One namespace of a Kubernetes cluster, by the official client: objects come and go as JSON.

Of the client we take what knows a cluster: kubeconfigs with their plugins for logins, service
accounts, certificates, proxies, and port-forward. Its models are left out: some versions refuse
fields that are newer than they are, which a pod template may have.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.stream import ws_client

from jaxcluster.launchers.base import Reason
from jaxcluster.launchers.kube import reasons
from jaxcluster.launchers.kube.reasons import Refused, Trouble, Unreachable

OWN = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # in a pod
CONNECT_S, READ_S = 10.0, 30.0
WATCH_S = 240
LOG_NBYTES = 1 << 20
CONNECTIONS = 24  # kept open: logs are read by several threads
CORE, BATCH = "/api/v1", "/apis/batch/v1"
# What is made and deleted, by its plural: where it is, and what messages call it.
KINDS = {"jobs": (BATCH, "the Job"), "services": (CORE, "the Service"), "pods": (CORE, "a pod")}


_HANDSHAKE = re.compile(r"CERTIFICATE_VERIFY_FAILED|WRONG_VERSION_NUMBER|HANDSHAKE", re.IGNORECASE)


class Api:
    """One namespace of a cluster.

    Args:
      task: what the launcher wrote: kubeconfig, context, inside, namespace.

    Raises:
      Trouble: there is no way to a cluster.
    """

    def __init__(self, task: Mapping[str, Any]) -> None:
        self.settings = client.Configuration()
        self.settings.connection_pool_maxsize = CONNECTIONS
        self._logs_in = threading.Lock()
        self.login = ""  # what kept the kubeconfig's program for logins from it
        try:
            if task["inside"]:
                loader = config.incluster_config.InClusterConfigLoader(
                    token_filename=str(OWN / "token"), cert_filename=str(OWN / "ca.crt")
                )
                loader.load_and_set(self.settings)
                default = _text(OWN / "namespace")
            else:
                default = self._load_file(task["kubeconfig"], task["context"])
        except Exception as error:  # the client's, yaml's, those of a broken file
            raise Trouble(
                Reason(
                    f"No Kubernetes cluster can be reached by {_named(task)}: {_why(error)}.",
                    (
                        "kubectl get pods must work. For another cluster: --kubeconfig FILE "
                        "--context NAME"
                    ),
                )
            ) from None
        self.host = str(self.settings.host).rstrip("/")
        self.namespace = str(task["namespace"] or default or "default")
        self.pool = client.ApiClient(self.settings).rest_client.pool_manager

    def _load_file(self, path: str, context: str) -> str:
        """Returns the context's namespace."""
        options = {"config_file": path or None, "context": context or None}
        with _logged() as errors:
            config.load_kube_config(client_configuration=self.settings, **options)
        self.login = " ".join(errors)
        contexts, active = config.list_kube_config_contexts(path or None)
        chosen = [one for one in contexts if one["name"] == context] or [active]
        return str(chosen[0]["context"].get("namespace") or "")

    # -- requests

    def _headers(self) -> dict[str, str]:
        """Who asks; a token that is old is made anew, once for all threads that need it."""
        with self._logs_in:
            found = self.settings.auth_settings().values()
        return {str(one["key"]): str(one["value"]) for one in found if one["in"] == "header"}

    def _path(self, group: str, *names: str) -> str:
        parts = ("namespaces", self.namespace, *names)
        return f"{self.host}{group}/{'/'.join(urllib.parse.quote(part) for part in parts)}"

    def _open(
        self,
        doing: str,
        method: str,
        url: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        read_s: float = READ_S,
    ) -> Any:
        """The API server's answer, of which nothing is read yet.

        Raises:
          Refused: it refuses; its reason is for the user.
          Unreachable: it does not answer.
        """
        headers = {"Accept": "application/json, */*", "Content-Type": "application/json"}
        if query:
            url += f"?{urllib.parse.urlencode(query)}"
        try:
            answer = self.pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body),
                headers={**headers, **self._headers()},
                timeout=urllib3.Timeout(connect=CONNECT_S, read=read_s),
                retries=False,
                preload_content=False,
            )
            if 200 <= answer.status < 300:
                return answer
            told = answer.read().decode(errors="replace")
        except Exception as error:  # urllib3's, ssl's, those of a plugin for logins
            raise self._unreachable(doing, error) from None
        why = reasons.refusal(answer.status, told, doing, self.namespace, self.login)
        raise Refused(answer.status, why)

    def _unreachable(self, doing: str, error: Exception) -> Unreachable:
        never = (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ConnectTimeoutError)
        return Unreachable(
            Reason(
                f"The API server at {self.host} can't be reached to {doing}: {_plain(error)}.",
                "kubectl get pods must work from here. For another cluster: --context NAME",
            ),
            not isinstance(error, never) and not _HANDSHAKE.search(str(error)),
        )

    def _read(self, doing: str, *request: Any, **options: Any) -> bytes:
        answer = self._open(doing, *request, **options)
        try:
            data: bytes = answer.read()
        except Exception as error:
            raise self._unreachable(doing, error) from None
        finally:
            answer.release_conn()
        return data

    def _ask(self, doing: str, *request: Any, **options: Any) -> dict[str, Any]:
        found = json.loads(self._read(doing, *request, **options) or b"{}")
        return dict(found)

    # -- what is made

    def create(self, plural: str, body: Mapping[str, Any]) -> dict[str, Any]:
        group, what = KINDS[plural]
        strict = {"fieldValidation": "Strict"}
        return self._ask(f"make {what}", "POST", self._path(group, plural), strict, body)

    def get(self, plural: str, name: str) -> Mapping[str, Any] | None:
        """The object of a kind in ``KINDS`` that has this name; None if there is none."""
        group, what = KINDS[plural]
        try:
            return self._ask(f"look at {what}", "GET", self._path(group, plural, name))
        except Refused as error:
            if error.status == 404:
                return None
            raise

    def delete(self, plural: str, name: str, uid: str) -> None:
        """This very Job with its pods, or this very pod, with the grace that it has.

        Nothing of another that has its name is deleted. A pod's Job makes another.

        Raises:
          Refused: other than that it is not there, or is another one.
        """
        group, what = KINDS[plural]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        try:
            self._ask(f"delete {what}", "DELETE", self._path(group, plural, name), None, body)
        except Refused as error:
            if error.status not in (404, 409):
                raise

    # -- what is looked at

    def security_level(self) -> str:
        """What Pod Security enforces in the namespace; empty: nothing, or it may not be known."""
        url = f"{self.host}{CORE}/namespaces/{urllib.parse.quote(self.namespace)}"
        try:
            metadata = self._ask("look at the namespace", "GET", url)["metadata"]
        except Trouble:
            return ""
        return str((metadata.get("labels") or {}).get("pod-security.kubernetes.io/enforce", ""))

    def pods(self, launch: str) -> list[Mapping[str, Any]]:
        query = {"labelSelector": launch}
        return list(self._ask("list pods", "GET", self._path(CORE, "pods"), query).get("items", []))

    def watch_pods(self, launch: str, seen: Callable[[Mapping[str, Any]], None]) -> None:
        """Call ``seen`` with each pod as it changes, for some minutes; its last state is its end's.

        Raises:
          Refused: pods may not be watched.
          Unreachable: the API server does not answer, or no more.
        """
        query = {"labelSelector": launch, "watch": "true", "timeoutSeconds": str(WATCH_S)}
        url = self._path(CORE, "pods")
        answer = self._open("watch pods", "GET", url, query, read_s=WATCH_S + READ_S)
        try:
            for line in _lines(answer):
                event = json.loads(line)
                if event.get("type") == "ERROR":  # a Status: 410 of what it knows no more, say
                    raise ValueError(event["object"].get("message", "the watch is over"))
                if event.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                    seen(event["object"])
        except Exception as error:
            raise self._unreachable("watch pods", error) from None
        finally:
            answer.close()

    def events(self, uid: str) -> list[Mapping[str, Any]]:
        """Of one object; none where they may not be read."""
        query = {"fieldSelector": f"involvedObject.uid={uid}"}
        try:
            found = self._ask("list events", "GET", self._path(CORE, "events"), query)
        except Trouble:
            return []
        return list(found.get("items", []))

    def log(self, pod: str, container: str) -> list[str]:
        """The lines of a pod's log; none while there is none.

        Raises:
          Refused: it may not be read.
        """
        query = {"container": container, "limitBytes": str(LOG_NBYTES)}
        try:
            url = self._path(CORE, "pods", pod, "log")
            text = self._read("read the pods' logs", "GET", url, query)
        except Refused as error:
            if error.status == 403:
                raise
            return []
        except Unreachable:
            return []
        return text.decode(errors="replace").splitlines()

    def own_pod(self) -> Mapping[str, str] | None:
        """An ownerReference to the pod in which this runs; None where it may not be known."""
        if _text(OWN / "namespace") != self.namespace:
            return None
        name = os.environ.get("HOSTNAME") or os.uname().nodename
        try:
            pod = self._ask("look at its own pod", "GET", self._path(CORE, "pods", name))
        except Trouble:
            return None
        return {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": reasons.uid(pod)}

    def forward(self, pod: str, port: int) -> Any:
        """A socket that leads to a port of a pod.

        Raises:
          ApiException: it can't be had.
        """
        return ws_client.portforward_call(
            self.settings,
            "GET",
            self._path(CORE, "pods", pod, "portforward"),
            query_params=[("ports", str(port))],
            headers={
                **{name.lower(): value for name, value in self._headers().items()},
                "sec-websocket-protocol": "v4.channel.k8s.io",
            },
        ).socket(port)


def _lines(answer: Any) -> Iterator[bytes]:
    """The lines of an answer that goes on."""
    rest = b""
    for part in answer.stream(amt=None, decode_content=False):
        *whole, rest = (rest + part).split(b"\n")
        yield from filter(None, whole)


@contextlib.contextmanager
def _logged() -> Iterator[list[str]]:
    """What is logged as an error meanwhile: so the client tells of a login that failed."""
    found: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler, root = Handler(logging.ERROR), logging.getLogger()
    root.addHandler(handler)
    try:
        yield found
    finally:
        root.removeHandler(handler)


def _named(task: Mapping[str, Any]) -> str:
    """What was to lead to a cluster."""
    if task["inside"]:
        return "this pod's service account"
    file = f"--kubeconfig {task['kubeconfig']}" if task["kubeconfig"] else ""
    context = f"--context {task['context']}" if task["context"] else ""
    usual = os.environ.get("KUBECONFIG") or "~/.kube/config"
    return " ".join(filter(None, (file, context))) or f"the kubeconfig ({usual})"


def _why(error: Exception) -> str:
    if isinstance(error, TypeError | KeyError | AttributeError | IndexError):
        return "it is not a kubeconfig"
    return " ".join(str(error).split()).rstrip(". ") or type(error).__name__


def _plain(error: Exception) -> str:
    """What urllib3 says, without the objects that say it."""
    text = re.sub(r"^(?:<[^>]*object at 0x\w+>|\w+\(host=[^)]*\)): ", "", str(error))
    return text.rstrip(". ") or type(error).__name__


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
