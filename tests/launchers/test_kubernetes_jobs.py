"""The kubernetes launcher, with the real client: its Jobs, what it says, its ends.

Agents are stand-ins that announce themselves; ``test_kubernetes`` has real ones. Each test runs
against a small API server of the tests (``rig.kube``), and against the real one with its
controllers (``rig.realkube``) where that is: so the stand-in answers as that does.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import processes_with, until
from rig.kube import INDEX, Kube, node_here
from rig.realkube import (
    CONTROLLERS,
    SERVER,
    STORE,
    RealKube,
    documented_rights,
    what_is_missing,
)

from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.kubernetes.launcher import Kubernetes

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.any_jax, pytest.mark.timeout(300)]
MARK = "JAXCLUSTER_TEST_KUBE"
DEADLINE_S = 90
MISSING = what_is_missing(SERVER, STORE, CONTROLLERS)
AGENT = """#!{python}
import json, os, signal, socketserver, sys
def end(*_):
    os._exit(143 if "--signalled-status=143" in sys.argv else 0)
signal.signal(signal.SIGTERM, end)
signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))  # as at the end of a lease
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
    endpoint = "tcp://127.0.0.1:%d" % server.server_address[1]
    print("Welcome to the image.", flush=True)
    print(json.dumps({{"jaxcluster-agent": 1, "key": str(os.getpid()), "pid": os.getpid(),
        "host": os.environ["HOSTNAME"], "endpoint": endpoint, "argv": sys.argv[1:],
        "env": dict(os.environ)}}), flush=True)
    server.serve_forever()
"""
BROKEN = "#!/bin/sh\necho \"$0: No module named 'jaxcluster'\"; exit 1\n"


@dataclass
class Site:
    """A cluster, and launches on it."""

    kube: Kube | RealKube
    path: Path
    launches: list[Launch] = field(default_factory=list)

    def launch(self, image: str = "good", kubeconfig: str = "", **options: Any) -> Launch:
        config = self.path / "config"
        config.write_text(self.kube.kubeconfig())
        launcher = Kubernetes(image=image, kubeconfig=kubeconfig or str(config))
        launcher = replace(launcher, **options)
        folder = tempfile.mkdtemp(dir=self.path)
        env = (("XLA_FLAGS", "--a='$(X) $$'"),)
        agent = AgentOptions("main", "ab" * 32, "python3", env=env)
        launch = launcher.launch(launcher.render(agent, folder))
        self.launches.append(launch)
        return launch

    def pod(self, index: int) -> Any:
        """The one of an index that runs."""
        (found,) = [
            pod for pod in self.kube.all("pods")
            if pod["metadata"]["annotations"][INDEX] == str(index)
            and pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]  # fmt: skip
        return found

    def evict(self, index: int) -> str:
        """As where its node is drained; returns its name."""
        name = str(self.pod(index)["metadata"]["name"])
        if isinstance(self.kube, RealKube):
            self.kube.evict(name)
        else:
            self.kube.evict(index, "EvictionByEvictionAPI", "Eviction API: evicting")
        return name

    def kill(self, index: int) -> None:
        if isinstance(self.kube, RealKube):
            assert self.kube.kubelets is not None
            self.kube.kubelets.kill(self.pod(index))
        else:
            self.kube.kill(index)

    def delete_job(self, name: str) -> None:
        if isinstance(self.kube, RealKube):
            self.kube.discard(name)
        else:
            self.kube.delete("jobs", "team-a", name)

    def job(self) -> Any:
        (found,) = self.kube.all("jobs")
        return found

    def ended(self, kind: str) -> bool:
        return any(one["type"] == kind for one in self.job()["status"].get("conditions") or [])


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, dict[str, str]]]:
    path = Path(tempfile.mkdtemp(prefix="jcki", dir="/tmp"))
    made = {"empty": {"PATH": "/nowhere"}}
    for image, source in (("good", AGENT), ("broken", BROKEN)):
        (path / image).mkdir()
        (path / image / "python3").write_text(source.format(python=sys.executable))
        (path / image / "python3").chmod(0o755)
        made[image] = {"PATH": f"{path / image}:/usr/bin:/bin"}
    made["plain"] = {**made["good"], "USER": "1000"}
    yield made
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def real(images: dict[str, dict[str, str]]) -> Iterator[RealKube]:
    if MISSING:
        pytest.skip(MISSING)
    made = RealKube([node_here("n1"), node_here("n2")], images)
    made.grant(documented_rights())
    yield made
    made.close()
    assert made.kubelets is not None and made.kubelets.failed is None


@pytest.fixture
def stand_in(images: dict[str, dict[str, str]]) -> Iterator[Kube]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    made = Kube(listener, [node_here("n1"), node_here("n2")], dict(images))
    yield made
    made.close()


@pytest.fixture(params=["stand_in", "real"])
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    yield from made_site(request.getfixturevalue(request.param), monkeypatch)


@pytest.fixture
def stand_in_site(stand_in: Kube, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    yield from made_site(stand_in, monkeypatch)


@pytest.fixture
def real_site(real: RealKube, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    yield from made_site(real, monkeypatch)


def made_site(kube: Kube | RealKube, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    path = Path(tempfile.mkdtemp(prefix="jck", dir="/tmp"))
    made = Site(kube, path)
    try:
        yield made
        for launch in made.launches:
            launch.stop()
        until(lambda: not kube.all("pods"), "the pods go", DEADLINE_S)
        until(lambda: not kube.all("jobs") and not kube.all("services"), "all goes", DEADLINE_S)
    finally:
        kube.closed.clear()
        monkeypatch.delenv(MARK)
        if isinstance(kube, Kube):
            for one in kube.containers.values():
                one.process.kill()
        until(lambda: not processes_with(MARK, mark), "all have ended", DEADLINE_S)
        shutil.rmtree(path)


def refused(launch: Launch, timeout_s: float = DEADLINE_S) -> str:
    with pytest.raises(LaunchError) as caught:
        launch.start(timeout_s)
    launch.stop()
    print(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------ a Job's course


def test_a_start_lost_pods_their_successors_and_a_stop(site: Site) -> None:
    launch = site.launch(pods=2)
    ends: list[tuple[tuple[int, ...], Reason]] = []
    launch.on_end = lambda hosts, why: ends.append((hosts, why))
    agents = launch.start(DEADLINE_S)
    assert [agent.facts["number"] for agent in agents] == [0, 1]
    facts = [agent.facts for agent in agents]
    assert facts[0]["argv"][:3] == ["-P", "-m", "jaxcluster.agent"]
    assert facts[0]["env"]["XLA_FLAGS"] == "--a='$(X) $$'"
    (service,), job = site.kube.all("services"), site.job()
    assert service["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert job["spec"]["activeDeadlineSeconds"] == 86400  # once all agents are there

    # By the API server's port-forward, to the agent's own port.
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(agents[1].via)
        way.sendall(b"x" * 100_000)
        assert len(way.recv(100_000, socket.MSG_WAITALL)) == 100_000

    # A node is drained: the pod's end is told with its reason, and the Job's next pod is taken.
    name = site.evict(1)
    until(lambda: ends, "the end is told", DEADLINE_S)
    assert ends[0][0] == (1,) and ends[0][1].has_ended
    assert ends[0][1].message.startswith(f"The pod {name} on the node n")
    assert "EvictionByEvictionAPI: Eviction API: evicting" in ends[0][1].message
    agent = launch.successor(1, "whoever", DEADLINE_S)
    assert agent is not None and agent.host == 1
    assert agent.facts["key"] != facts[1]["key"] and agent.facts["number"] == 1

    # And an agent that is killed. The other host is no concern of it.
    site.kill(1)
    until(lambda: len(ends) > 1, "the second end is told", DEADLINE_S)
    assert ends[1][0] == (1,) and "ended by signal 9" in ends[1][1].message
    again = launch.successor(1, "whoever", DEADLINE_S)
    assert again is not None and again.facts["key"] != agent.facts["key"]

    # An agent that the notebook has given up, whatever for: its pod is ended before.
    fresh = launch.successor(0, "whoever", DEADLINE_S)
    assert fresh is not None and fresh.facts["key"] != facts[0]["key"]
    until(lambda: len(ends) == 3, "the third end is told", DEADLINE_S)
    assert ends[2][0] == (0,)
    launch.stop()
    assert not site.kube.all("jobs") and len(ends) == 3
    assert not Path(agents[0].via).exists()


def test_a_job_that_somebody_deletes_is_told(site: Site) -> None:
    launch = site.launch()
    ends: list[Reason] = []
    launch.on_end = lambda hosts, why: ends.append(why)
    launch.start(DEADLINE_S)
    site.delete_job(site.job()["metadata"]["name"])
    until(lambda: ends, "its end", DEADLINE_S)
    assert "the Job was deleted" in str(ends[0])
    assert not launch.can_succeed(0, "whoever")


def test_a_detached_cluster_s_pods_outlive_their_notebook_where_they_can_be_reached(
    stand_in_site: Site,
) -> None:
    launch = stand_in_site.launch()
    launch.start(DEADLINE_S)
    with pytest.raises(LaunchError, match="--detach leaves them unreachable"):
        launch.detach([stand_in_site.path])
    launch.stop()
    launch = stand_in_site.launch(direct=True)
    launch.start(DEADLINE_S)
    launch.detach([stand_in_site.path])
    launch.leave()
    assert len(stand_in_site.kube.all("pods")) == 1
    held = processes_with(MARK, os.environ[MARK]).values()
    assert any("supervision.keeper" in line for line in held)


def test_a_deadline_is_told(site: Site) -> None:
    launch = site.launch(time="4s")
    ends: list[Reason] = []
    launch.on_end = lambda hosts, why: ends.append(why)
    launch.start(DEADLINE_S)
    until(lambda: ends, "its end", DEADLINE_S)
    assert "at its deadline (--time)" in str(ends[0])


@pytest.mark.parametrize("started", [True, False])
def test_a_notebook_killed_leaves_no_job(site: Site, started: bool) -> None:
    """Agents end with their lease, and the Job then; else it ends at the start's deadline."""
    site.kube.closed |= set() if started else {"n1", "n2"}
    config = site.path / "config"
    config.write_text(site.kube.kubeconfig())
    folder = site.path / "l"
    folder.mkdir()
    source = f"""
import time
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.kubernetes import manifests
from jaxcluster.launchers.kubernetes.launcher import Kubernetes
manifests.TTL_S = 1
one = Kubernetes(pods=2, image="good", kubeconfig={str(config)!r}, direct=True)
agent = AgentOptions("main", "key", "python3", first_lease_s=8.0)
one.launch(one.render(agent, {str(folder)!r})).start(600)
print("up", flush=True)
time.sleep(1000)
"""
    argv = [sys.executable, "-c", source]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as notebook:
        assert notebook.stdout is not None
        if started:
            assert notebook.stdout.readline() == "up\n"
        else:
            until(lambda: len(site.kube.all("pods")) == 2, "the pods", DEADLINE_S)
        notebook.kill()
    if started:  # these have no lease: their end is a lease's
        running = getattr(site.kube, "kubelets", None) or site.kube
        for index in (0, 1):
            running.containers[site.pod(index)["metadata"]["uid"]].signal(signal.SIGUSR1)
    until(lambda: not site.kube.all("jobs"), "the Job goes", DEADLINE_S)


# ------------------------------------------------------------------- what can't be, what waits


def test_what_can_never_be_is_told_at_once(site: Site) -> None:
    """Each in turn: the image, its jaxcluster, the namespace, the template, a login."""
    assert "ErrImagePull" in refused(site.launch("nowhere"))
    told = refused(site.launch("broken"))
    assert "No module named 'jaxcluster'" in told and "--python PATH" in told
    assert "team-b" in refused(site.launch(namespace="team-b"))
    template = json.dumps({"metadata": {}, "spec": {"tolerationz": []}})
    told = refused(site.launch(template=template))
    assert 'unknown field "spec.template.spec.tolerationz"' in told and "--pod-template" in told
    text = json.loads(site.kube.kubeconfig())
    text["users"][0]["user"]["token"] = "nobody's"
    (site.path / "stranger").write_text(json.dumps(text))
    assert "Log in again" in refused(site.launch(kubeconfig=str(site.path / "stranger")))
    assert not site.kube.all("jobs")


def starting(launch: Launch, waits: str) -> Callable[[], list[Any]]:
    """A start on a thread, until it says what it waits for; and then its agents."""
    told: list[str] = []
    found: list[list[Any]] = []
    threading.Thread(
        target=lambda: found.append(launch.start(DEADLINE_S, told.append)), daemon=True
    ).start()
    until(lambda: any(waits in text for text in told), waits, DEADLINE_S)
    return lambda: until(lambda: found, "the agents", DEADLINE_S)[0]


def test_what_waits_says_for_what(site: Site) -> None:
    """Too few nodes; then one is there."""
    site.kube.closed.add("n2")
    waits = "1 of 2 pods wait: Unschedulable: 0/2 nodes are available: 2 Insufficient cpu)"
    agents = starting(site.launch(pods=2), waits)
    site.kube.closed.clear()
    assert len(agents()) == 2


def test_a_start_can_be_stopped(site: Site) -> None:
    site.kube.closed |= {"n1", "n2"}
    stopped = threading.Event()
    with pytest.raises(LaunchError, match=r"start was stopped"):
        site.launch().start(DEADLINE_S, lambda text: "wait" in text and stopped.set(), stopped)
    assert not site.kube.all("jobs")


def test_a_quota_that_others_have_taken_is_waited_for(stand_in_site: Site) -> None:
    kube = stand_in_site.kube
    assert isinstance(kube, Kube)
    kube.quota = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8"
    agents = starting(stand_in_site.launch(), "the Job has no pods yet: FailedCreate: Error")
    kube.quota = ""
    assert len(agents()) == 1
    kube.quota = 'error looking up service account team-a/jax: serviceaccount "jax" not found'
    assert "--service-account" in refused(stand_in_site.launch(pods=2))


@pytest.mark.parametrize("right", ["create jobs", "create services", "get pods/log", "patch jobs"])
def test_a_missing_right_is_told(stand_in_site: Site, right: str) -> None:
    kube = stand_in_site.kube
    assert isinstance(kube, Kube)
    verb, resource = right.split()
    kube.forbidden = {(verb, resource)}
    told = refused(stand_in_site.launch())
    assert f'cannot {verb} resource "{resource}"' in told and "#rights" in told
    kube.forbidden = set()


def test_a_job_that_can_not_be_deleted_is_told_with_what_to_type(
    stand_in_site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = stand_in_site.kube
    assert isinstance(kube, Kube)
    launch = stand_in_site.launch()
    launch.start(DEADLINE_S)
    kube.forbidden = {("delete", "jobs")}
    launch.stop()
    name = stand_in_site.job()["metadata"]["name"]
    assert f"To end it: kubectl -n team-a delete job {name}" in capsys.readouterr().err
    stand_in_site.delete_job(name)


def test_no_way_to_a_cluster(stand_in_site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    site = stand_in_site
    assert "nowhere" in refused(site.launch(context="nowhere"))
    assert "There is no way to a" in refused(site.launch(kubeconfig="/nowhere/config"))
    (site.path / "broken.yaml").write_text("a: b: c")
    assert "mapping values" in refused(site.launch(kubeconfig=str(site.path / "broken.yaml")))
    kube = site.kube
    assert isinstance(kube, Kube)
    right = kube.url
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        kube.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        told = refused(site.launch())
    assert "can't be reached: " in told and "object at" not in told and "kubectl get pods" in told
    kube.url = right
    assert "To end it" not in capfd.readouterr().err  # what was never made


# ------------------------------------------------------------------- with the real one alone

TEMPLATE = {
    "metadata": {"annotations": {"note": "kept"}},
    "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"zone": "a"}},
}
PODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpus": {"cpu": "8", "mem": "64Gi", "gpus": 8, "label": ("team=a",)},
    "tpu": {"tpu_type": "tpu-v5-lite-podslice", "tpu_topology": "4x4"},
    "template": {"template": json.dumps(TEMPLATE), "service_account": "default"},
    "user": {"run_as_user": 1000},
}


@pytest.mark.parametrize("name", PODS)
def test_what_a_dry_run_prints_can_be_made_as_it_is(real_site: Site, name: str) -> None:
    """Objects and pods: validated strictly and admitted, by a user who has the documented role."""
    kube = real_site.kube
    assert isinstance(kube, RealKube)
    pods = None if name == "tpu" else 2
    launcher = Kubernetes(image="team/jax:1", pods=pods, kubeconfig="x", **PODS[name])
    job, service = launcher.render(AgentOptions("main", "PUBLIC-KEY", "python3"), "/f").objects
    strict = "?dryRun=All&fieldValidation=Strict"
    for plural, one in (("jobs", job), ("services", service)):
        assert kube.ask("POST", kube.path(plural) + strict, one, user="me")["metadata"]["uid"]
    if name == "user":
        kube.label(enforce="restricted")
    try:
        pod = {"metadata": {"name": "p"}, "spec": job["spec"]["template"]["spec"]}
        done = kube.ask("POST", kube.path("pods") + strict, pod)
        assert done["spec"]["containers"][0]["name"] == "jaxcluster"
    finally:
        kube.label(enforce=None)


def test_pod_security_refuses_pods_that_say_no_user(real_site: Site) -> None:
    kube = real_site.kube
    assert isinstance(kube, RealKube)
    kube.label(enforce="restricted")
    try:
        told = refused(real_site.launch("plain"))
        assert "violates PodSecurity" in told and "--run-as-user 1000" in told
        assert real_site.launch("plain", run_as_user=1000).start(DEADLINE_S)
    finally:
        kube.label(enforce=None)


LIMITS = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "q"},
          "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}  # fmt: skip


def test_what_an_admission_refuses_is_told(real_site: Site) -> None:
    kube = real_site.kube
    assert isinstance(kube, RealKube)
    assert "quantities must match" in refused(real_site.launch(cpu="many"))
    label = ("a b=x",)
    assert "metadata.labels: Invalid value" in refused(real_site.launch(label=label))
    kube.ask("POST", kube.path("limitranges"), LIMITS)
    try:
        assert "maximum cpu usage per Container is 2" in refused(real_site.launch(cpu="4"))
    finally:
        kube.ask("DELETE", kube.path("limitranges", "q"))
    assert "--service-account" in refused(real_site.launch(service_account="jax"))
    none = '{"metadata": {}, "spec": {"priorityClassName": "none"}}'
    assert "no PriorityClass" in refused(real_site.launch(template=none))
