"""The kubernetes launcher, with the real client, against a small API server: its Jobs, its ends.

Agents are stand-ins that announce themselves; ``test_kubernetes`` has real ones. The API server is
one of the tests' own (``rig.kube``): this proves jaxcluster's part, not Kubernetes'.
"""

from __future__ import annotations

import contextlib
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
from rig.kube import Kube, node_here

from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import AgentOptions, Reason
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.kube.launcher import Kubernetes
from jaxcluster.launchers.kube.manifests import Pod

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.any_jax, pytest.mark.timeout(300)]
MARK = "JAXCLUSTER_TEST_KUBE"
DEADLINE_S = 90
AGENT = """#!{python}
import json, os, signal, sys, time
def end(*_):
    os._exit(143 if "--signalled-status=143" in sys.argv else 0)
signal.signal(signal.SIGTERM, end)
print("Welcome to the image.", flush=True)
print(json.dumps({{"jaxcluster-agent": 1, "key": str(os.getpid()), "host": os.environ["HOSTNAME"],
    "endpoint": "tcp://127.0.0.1:1", "pid": os.getpid(), "argv": sys.argv[1:],
    "env": dict(os.environ)}}), flush=True)
time.sleep(1000)
"""
BROKEN = "#!/bin/sh\necho \"$0: No module named 'jaxcluster'\"; exit 1\n"


@dataclass
class Site:
    """A cluster, and launches on it."""

    kube: Kube
    path: Path
    launches: list[Launch] = field(default_factory=list)

    def launch(self, launcher: Kubernetes | None = None, **options: Any) -> Launch:
        launcher = launcher or Kubernetes(pod=Pod("good"), direct=True)
        config = self.path / "config"
        config.write_text(self.kube.kubeconfig())
        if not launcher.inside:
            options.setdefault("kubeconfig", str(config))
        launcher = replace(launcher, **options)
        folder = Path(tempfile.mkdtemp(dir=self.path))
        agent = AgentOptions("main", "ab" * 32, "python3", env=(("XLA_FLAGS", "--a='$(X) $$'"),))
        launch = Launch(launcher, launcher.render(agent, str(folder)))
        self.launches.append(launch)
        return launch


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    path = Path(tempfile.mkdtemp(prefix="jck", dir="/tmp"))
    images = {}
    for image, source in (("good", AGENT), ("broken", BROKEN)):
        (path / image).mkdir()
        (path / image / "python3").write_text(source.format(python=sys.executable))
        (path / image / "python3").chmod(0o755)
        images[image] = {"PATH": f"{path / image}:/usr/bin:/bin"}
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    kube = Kube(listener, [node_here("n1"), node_here("n2")], images)
    made = Site(kube, path)
    try:
        yield made
        for launch in made.launches:
            launch.stop()
        until(lambda: not kube.all("pods"), "the pods go", DEADLINE_S)
        assert not kube.all("jobs") and not kube.all("services")
    finally:
        kube.close()
        monkeypatch.delenv(MARK)
        until(lambda: not processes_with(MARK, mark), "all have ended", DEADLINE_S)
        shutil.rmtree(path)


def refused(launch: Launch, timeout_s: float = DEADLINE_S) -> str:
    with pytest.raises(LaunchError) as caught:
        launch.start(timeout_s)
    return str(caught.value)


def test_a_start_a_lost_pod_its_successor_and_a_stop(site: Site) -> None:
    stranger = site.kube.add("jobs", "team-a", {
        "metadata": {"name": "mine", "labels": {"app.kubernetes.io/managed-by": "jaxcluster"}},
        "spec": {"completions": 0, "template": {}, "suspend": True},
    })  # fmt: skip
    launch = site.launch(pods=2)
    ends: list[tuple[tuple[int, ...], Reason]] = []
    launch.on_end = lambda hosts, why: ends.append((hosts, why))
    agents = launch.start(DEADLINE_S)
    assert sorted(agent.facts["number"] for agent in agents) == [0, 1]
    facts = {agent.facts["number"]: agent.facts for agent in agents}
    assert facts[0]["argv"][:3] == ["-P", "-m", "jaxcluster.agent"]
    assert facts[0]["env"]["XLA_FLAGS"] == "--a='$(X) $$'"
    (service,) = site.kube.all("services")
    (job,) = [one for one in site.kube.all("jobs") if one["metadata"]["name"] != "mine"]
    assert service["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]

    # A node is drained: the pod's end is told with its reason, and the Job's next pod is taken.
    name = site.kube.evict(1, "EvictionByEvictionAPI", "Eviction API: evicting")
    until(lambda: ends, "the end is told", DEADLINE_S)
    ((hosts, why),) = ends
    assert hosts == (1,) and why.has_ended
    assert why.message.startswith(f"The pod {name} on the node n")
    assert "it was evicted, as when a node is drained (EvictionByEvictionAPI:" in why.message
    agent = launch.successor(1, "whoever", DEADLINE_S)
    assert agent is not None and agent.host == 1
    assert agent.facts["key"] != facts[1]["key"] and agent.facts["number"] == 1

    # And an agent that is killed. The other host is no concern of it.
    site.kube.kill(1)
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
    assert not site.kube.all("pods") and not site.kube.all("services")
    assert [one["metadata"]["uid"] for one in site.kube.all("jobs")] == [
        stranger["metadata"]["uid"]
    ]
    site.kube.delete("jobs", "team-a", "mine")
    assert len(ends) == 3


def test_what_can_never_be_is_told_at_once(site: Site) -> None:
    """Each in turn: the image, its jaxcluster, its Python, the namespace, rights, the template."""
    kube = site.kube
    assert "The image nowhere can't be pulled (ErrImagePull)" in refused(
        site.launch(pod=Pod("nowhere"))
    )
    told = refused(site.launch(pod=Pod("broken")))
    assert told.startswith("python3 in the image broken has no jaxcluster.")
    assert "pip install jaxcluster" in told
    kube.images["empty"] = {"PATH": "/nowhere"}
    told = refused(site.launch(pod=Pod("empty")))
    assert told.startswith("There is no Python python3 in the image empty.")
    assert "There is no namespace team-b" in refused(site.launch(namespace="team-b"))
    template = {"metadata": {}, "spec": {"tolerationz": []}}
    told = refused(site.launch(pod=Pod("good", template=json.dumps(template))))
    assert "does not know a field of the pod" in told and "--pod-template" in told
    assert not kube.all("jobs")
    for verb, resource, doing in (
        ("create", "jobs", "make the Job"),
        ("create", "services", "make the Service"),
        ("get", "pods/log", "read the pods' logs"),
    ):
        kube.forbidden = {(verb, resource)}
        launch = site.launch()
        told = refused(launch)
        assert f"may not {verb} {resource}" in told and doing in told, told
        assert "kubectl -n team-a create role" in told
        kube.forbidden = set()
        # What was made before goes, too.
        until(lambda: not kube.all("jobs"), f"{resource}: the Job goes", DEADLINE_S)


def test_what_waits_says_for_what(site: Site) -> None:
    """Too few nodes; then one is there. A quota; then it has room."""
    site.kube.closed = {"n2"}

    def starts(launch: Launch, waits: str) -> Callable[[], list[Any]]:
        told: list[str] = []
        found: list[list[Any]] = []
        threading.Thread(
            target=lambda: found.append(launch.start(DEADLINE_S, told.append)), daemon=True
        ).start()
        until(lambda: any(waits in text for text in told), waits, DEADLINE_S)
        return lambda: until(lambda: found, "the agents", DEADLINE_S)[0]

    launch = site.launch(pods=2)
    waits = "(1 of 2 pods wait: Unschedulable: 0/2 nodes are available: 2 Insufficient cpu)"
    agents = starts(launch, waits)
    site.kube.closed = set()
    assert len(agents()) == 2
    launch.stop()
    site.kube.quota = (
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: "
        "requests.nvidia.com/gpu=8, limited: requests.nvidia.com/gpu=8"
    )
    waits = "the Job has no pods yet: FailedCreate: Error creating: pods"
    agents = starts(site.launch(), waits)
    site.kube.quota = ""
    assert len(agents()) == 1


def test_no_way_to_a_cluster(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    told = refused(site.launch(context="nowhere"))
    assert (
        "No Kubernetes cluster can be reached by --kubeconfig" in told
        and "--context nowhere" in told
    )
    told = refused(site.launch(kubeconfig="/nowhere/config"))
    assert "by --kubeconfig /nowhere/config: " in told
    broken = site.path / "broken.yaml"
    broken.write_text("a: b: c")
    assert "mapping values are not allowed here" in refused(site.launch(kubeconfig=str(broken)))
    right = site.kube.url
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        site.kube.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        told = refused(site.launch())
    assert "can't be reached to make the Job: Failed to establish" in told
    assert "object at" not in told and "kubectl get pods" in told
    site.kube.url = right
    for launch in site.launches:
        launch.stop()
    assert "could not be deleted" not in capfd.readouterr().err  # what was never made


def test_a_login_that_fails(site: Site) -> None:
    """A token that has expired; a program for logins that fails, and one that waits."""
    site.kube.token = "another"
    told = refused(site.launch())
    assert "The API server does not know this user." in told and "Log in again" in told
    site.kube.token = "t"

    def with_program(script: str) -> Launch:
        made = json.loads(site.kube.kubeconfig())
        program = {"command": "sh", "args": ["-c", script], "interactiveMode": "IfAvailable"}
        program["apiVersion"] = "client.authentication.k8s.io/v1"
        made["users"][0]["user"] = {"exec": program}
        path = site.path / f"config-{uuid.uuid4().hex}"
        path.write_text(json.dumps(made))
        return site.launch(kubeconfig=str(path))

    told = refused(with_program("echo 'SSO token has expired' >&2; exit 255"))
    assert "login failed: exec: process returned 255. SSO token has expired" in told
    assert "kubectl -n team-a create role" not in told  # no right is missing
    told = refused(with_program("read answer; echo 'nobody answers' >&2; exit 1"))
    assert "nobody answers" in told
    launch, said = with_program("exec sleep 1000"), list[str]()

    def give_up() -> None:
        with contextlib.suppress(LaunchError):
            launch.start(DEADLINE_S, said.append)

    start = threading.Thread(target=give_up)
    start.start()
    waits = "(the kubeconfig's login has not answered yet)"
    until(lambda: any(waits in text for text in said), waits, DEADLINE_S)
    launch.stop()  # it can be given up meanwhile
    start.join(DEADLINE_S)
    assert not start.is_alive()


def test_what_the_pods_are_refused_for_good(site: Site) -> None:
    """It is an event of the Job's, and no pod has it."""
    site.kube.quota = "exceeded quota: q, requested: cpu=8, used: cpu=0, limited: cpu=4"
    told = refused(site.launch())
    assert "One pod asks for 8 of cpu, and the quota is 4 for all" in told
    site.kube.quota = 'error looking up service account team-a/jax: serviceaccount "jax" not found'
    assert "--service-account NAME" in refused(site.launch())


def test_a_namespace_that_admits_restricted_pods_alone(site: Site) -> None:
    """A start reads the namespace's label; where it may not, the hint says what to type."""
    site.kube.level = "restricted"
    site.launch().start(DEADLINE_S)
    (pod,) = site.kube.all("pods")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    site.launches[0].stop()
    site.kube.forbidden = {("get", "namespaces")}
    told = refused(site.launch())
    assert "violates PodSecurity" in told and "--run-as-user 1000" in told
    site.launch(pod=Pod("good", run_as_user=1000)).start(DEADLINE_S)


def test_a_notebook_killed_leaves_no_job(site: Site) -> None:
    config = site.path / "config"
    config.write_text(site.kube.kubeconfig())
    folder = site.path / "l"
    folder.mkdir()
    source = f"""
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.kube.launcher import Kubernetes
from jaxcluster.launchers.kube.manifests import Pod
one = Kubernetes(pods=3, pod=Pod("good"), kubeconfig={str(config)!r}, direct=True)
agent = AgentOptions("main", "key", "python3")
Launch(one, one.render(agent, {str(folder)!r})).start(600)
"""
    with subprocess.Popen([sys.executable, "-c", source]) as notebook:
        until(lambda: len(site.kube.all("pods")) == 3, "the pods", DEADLINE_S)
        notebook.kill()
        until(lambda: not site.kube.all("jobs"), "the Job goes", DEADLINE_S)


def test_the_process_that_looks_after_it_killed_leaves_no_job(site: Site) -> None:
    launch = site.launch()
    ends: list[Reason] = []
    launch.on_end = lambda hosts, why: ends.append(why)
    launch.start(DEADLINE_S)
    mark = os.environ[MARK]
    (pid,) = [p for p, line in with_lines(mark) if "import main" in line and "guard" not in line]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not site.kube.all("jobs"), "the Job goes", DEADLINE_S)
    until(lambda: ends, "the end is told", DEADLINE_S)


def with_lines(mark: str) -> list[tuple[int, str]]:
    found = []
    for pid in processes_with(MARK, mark):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        found.append((pid, line))
    return found


def test_a_job_that_ends_is_told(site: Site) -> None:
    """At its deadline, and where somebody deletes it; the API server may be away in between."""
    launch = site.launch(deadline_s=299)
    ends: list[Reason] = []
    launch.on_end = lambda hosts, why: ends.append(why)
    launch.start(DEADLINE_S)
    assert "ends the Job of this cluster in" in launch.launcher.warning(launch.plan)[0]
    site.kube.expire(site.kube.all("jobs")[0]["metadata"]["name"])
    until(lambda: any("at its deadline" in str(why) for why in ends), "its end", DEADLINE_S)

    launch = site.launch()
    launch.on_end = lambda hosts, why: ends.append(why)
    launch.start(DEADLINE_S)
    site.kube.down = True
    until(
        lambda: "can't be reached" in launch.launcher.waiting(launch.plan),
        "it is noticed",
        DEADLINE_S,
    )
    ends.clear()
    site.kube.down = False
    name = json.loads(Path(launch.plan.files[0].path).read_text())["metadata"]["name"]
    site.kube.delete("jobs", "team-a", name)
    until(lambda: any("was deleted" in str(why) for why in ends), "told", DEADLINE_S)
