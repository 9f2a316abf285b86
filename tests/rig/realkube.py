"""A real Kubernetes API server with etcd, on loopback: does it take what jaxcluster asks for?

It validates, admits and knows rights as a cluster's does. No controller makes pods of a Job here:
``rig.kube`` does. The programs are those that envtest takes: from KUBEBUILDER_ASSETS, or PATH.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rig.kube import config_for, documented_rules

SERVER, STORE = "kube-apiserver", "etcd"
TOKENS = {"admin": "admin-token", "me": "my-token"}
NAMESPACE = "team-a"
READY_S = 60.0
STEP_S = 0.1


def program(name: str) -> str:
    """Its path; empty: it is not here."""
    beside = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin", name)
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name) or ""


def what_is_missing() -> str:
    """One line, for a test that is skipped; empty: nothing."""
    lacks = [name for name in (SERVER, STORE) if not program(name)]
    where = "put them in PATH or KUBEBUILDER_ASSETS (docs/internals/tests.md)"
    return f"there is no {' and no '.join(lacks)}: {where}" if lacks else ""


class Refusal(Exception):
    """The API server's, for a test that did not expect one."""


class RealKube:
    """The programs, in a folder that goes with them, and a user ``me`` with the docs' rights."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="jcreal", dir="/tmp"))
        self._programs: list[subprocess.Popen[bytes]] = []
        try:
            self._start()
            self._grant(documented_rules())
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        store, peers, self.port = (self._free_port() for _ in range(3))
        key, public = self.folder / "sa.key", self.folder / "sa.pub"
        self._openssl("genrsa", "-out", key, "2048")
        self._openssl("rsa", "-in", key, "-pubout", "-out", public)
        with open(self.folder / "tokens.csv", "w", newline="") as file:
            for number, (user, token) in enumerate(TOKENS.items()):
                groups = ["system:masters"] if user == "admin" else []
                csv.writer(file).writerow([token, user, number, *groups])
        etcd = f"http://127.0.0.1:{store}"
        self._run(
            STORE, f"--data-dir={self.folder}/etcd", f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}", f"--listen-peer-urls=http://127.0.0.1:{peers}",
        )  # fmt: skip
        self._run(
            SERVER, f"--etcd-servers={etcd}", "--bind-address=127.0.0.1",
            f"--secure-port={self.port}", f"--cert-dir={self.folder}/certs",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={public}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
        )  # fmt: skip
        self._wait(lambda: self.ask("GET", "/readyz", raw=True) == b"ok")
        self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        # A pod needs it, and in a cluster a controller makes it.
        self.ask("POST", self.path("serviceaccounts"), {"metadata": {"name": "default"}})

    def _openssl(self, *words: Any) -> None:
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)

    def _free_port(self) -> int:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            return int(probe.getsockname()[1])

    def _run(self, name: str, *options: str) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self._programs.append(
                subprocess.Popen([program(name), *options], cwd=self.folder, stdout=log, stderr=log)
            )

    def _wait(self, is_so: Callable[[], bool]) -> None:
        until = time.monotonic() + READY_S
        while time.monotonic() < until and all(one.poll() is None for one in self._programs):
            try:
                if is_so():
                    return
            except (OSError, Refusal):
                time.sleep(STEP_S)
        logs = sorted(self.folder.glob("*.log"))
        raise RuntimeError("\n".join(f"== {one.name}\n{one.read_text()[-2000:]}" for one in logs))

    def close(self) -> None:
        for one in reversed(self._programs):
            one.kill()
            one.wait()
        shutil.rmtree(self.folder)

    def kubeconfig(self, user: str = "me") -> str:
        """The text of one that leads here."""
        authority = base64.b64encode((self.folder / "certs" / "apiserver.crt").read_bytes())
        server = f"https://127.0.0.1:{self.port}"
        cluster = {"server": server, "certificate-authority-data": authority.decode()}
        return config_for(cluster, TOKENS[user])

    def path(self, plural: str, name: str = "") -> str:
        groups = {"jobs": "/apis/batch/v1", "roles": "/apis/rbac.authorization.k8s.io/v1",
                  "rolebindings": "/apis/rbac.authorization.k8s.io/v1"}  # fmt: skip
        parts = [groups.get(plural, "/api/v1"), "namespaces", NAMESPACE, plural, name]
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
            f"https://127.0.0.1:{self.port}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind, "Authorization": f"Bearer {TOKENS[user]}"},
        )  # fmt: skip
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            data = urllib.request.urlopen(request, None, 30, context=context).read()
        except urllib.error.HTTPError as error:
            raise Refusal(f"{method} {path}: {error.code} {error.read().decode()}") from None
        return data if raw else json.loads(data)

    def _grant(self, rules: list[Mapping[str, Any]]) -> None:
        """Give the user ``me`` these rights and no others."""
        group = "rbac.authorization.k8s.io"
        role = {"apiGroup": group, "kind": "Role", "name": "jaxcluster"}
        me = {"apiGroup": group, "kind": "User", "name": "me"}
        metadata = {"metadata": {"name": "jaxcluster"}}
        self.ask("POST", self.path("roles"), {**metadata, "rules": rules})
        binding = {**metadata, "roleRef": role, "subjects": [me]}
        self.ask("POST", self.path("rolebindings"), binding)

    def label(self, **labels: str | None) -> None:
        """The namespace's: ``enforce`` for Pod Security's; None takes it off."""
        told = {f"pod-security.kubernetes.io/{name}": value for name, value in labels.items()}
        path, merge = f"/api/v1/namespaces/{NAMESPACE}", "application/merge-patch+json"
        self.ask("PATCH", path, {"metadata": {"labels": told}}, merge)
