"""The kubernetes launcher, with the real client: its Jobs, what it says, its ends.

Agents are stand-ins that announce themselves; ``test_kubernetes`` has real ones. The cluster is a
small one of the tests (``rig.kube``), whose user has the rights of the docs and no others.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers import processes_with, until
from rig import launches
from rig.kube import INDEX, Kube, node_here
from rig.launches import MARK, ends_of, refused, successor

from jaxcluster.errors import LaunchError
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.kubernetes.launcher import Kubernetes

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("kubernetes") is None, reason="no client"),
]
DEADLINE_S = 90
BROKEN = "#!/bin/sh\necho \"$0: No module named 'jaxcluster'\"; exit 1\n"


@dataclass
class Site(launches.Site):
    """A cluster, and launches on it."""

    kube: Kube = None  # type: ignore[assignment]

    def started(self, image: str = "good", kubeconfig: str = "", **options: Any) -> Launch:
        config = self.path / "config"
        config.write_text(self.kube.kubeconfig())
        launcher = Kubernetes(image=image, kubeconfig=kubeconfig or str(config))
        launcher = replace(launcher, **options)
        env = (("XLA_FLAGS", "--a='$(X) $$'"),)
        return self.launch(launcher, "python3", env=env)

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
        return self.kube.evict(index, "EvictionByEvictionAPI", "Eviction API: evicting")

    def delete_job(self, name: str) -> None:
        self.kube.delete("jobs", "team-a", name)

    def job(self) -> Any:
        (found,) = self.kube.all("jobs")
        return found


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, dict[str, str]]]:
    path = Path(tempfile.mkdtemp(prefix="jcki", dir="/tmp"))
    made: dict[str, dict[str, str]] = {}
    for image, source in (("good", launches.AGENT), ("broken", BROKEN)):
        (path / image).mkdir()
        (path / image / "python3").write_text(source.format(python=sys.executable))
        (path / image / "python3").chmod(0o755)
        made[image] = {"PATH": f"{path / image}:/usr/bin:/bin"}
    yield made
    shutil.rmtree(path)


@pytest.fixture
def site(images: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    kube = Kube(listener, [node_here("n1"), node_here("n2")], dict(images))
    with launches.launching(monkeypatch) as plain:
        made = Site(plain.path, plain.launches, kube)
        try:
            yield made
            for launch in made.launches:
                launch.stop()
            until(lambda: not kube.all("pods"), "the pods go", DEADLINE_S)
            until(lambda: not kube.all("jobs") and not kube.all("services"), "all", DEADLINE_S)
        finally:
            kube.close()


# ------------------------------------------------------------------------------ a Job's course


def test_a_start_lost_pods_their_successors_and_a_stop(site: Site) -> None:
    launch = site.started(pods=2)
    ends = ends_of(launch)
    agents = launch.start(DEADLINE_S)
    assert [agent.facts["number"] for agent in agents] == [0, 1]
    facts = [agent.facts for agent in agents]
    assert facts[0]["argv"][:3] == ["-P", "-m", "jaxcluster.hosts.agent"]
    assert facts[0]["env"]["XLA_FLAGS"] == "--a='$(X) $$'"
    (service,), job = site.kube.all("services"), site.job()
    assert service["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert job["spec"]["activeDeadlineSeconds"] == 86400  # once all agents are there

    # By the API server's port-forward, to the agent's own port.
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(agents[1].via)
        way.sendall(b"x" * 100_000)
        assert way.recv(100_000, socket.MSG_WAITALL) == b"X" * 100_000

    # A node is drained: the pod's end is told with its reason, and the Job's next pod is taken.
    name = site.evict(1)
    until(lambda: ends, "the end is told", DEADLINE_S)
    assert ends[0][0] == (1,) and ends[0][1].has_ended
    assert ends[0][1].message.startswith(f"The pod {name} on the node n")
    assert "EvictionByEvictionAPI: Eviction API: evicting" in ends[0][1].message
    agent = successor(launch, 1, DEADLINE_S)
    assert agent is not None and agent.host == 1
    assert agent.facts["key"] != facts[1]["key"] and agent.facts["number"] == 1

    # And an agent that is killed. The other host is no concern of it.
    site.kube.kill(1)
    until(lambda: len(ends) > 1, "the second end is told", DEADLINE_S)
    assert ends[1][0] == (1,) and "ended by signal 9" in ends[1][1].message
    again = successor(launch, 1, DEADLINE_S)
    assert again is not None and again.facts["key"] != agent.facts["key"]

    # An agent that the notebook has given up, whatever for: its pod is ended before.
    fresh = successor(launch, 0, DEADLINE_S)
    assert fresh is not None and fresh.facts["key"] != facts[0]["key"]
    until(lambda: len(ends) == 3, "the third end is told", DEADLINE_S)
    assert ends[2][0] == (0,)
    launch.stop()
    assert not site.kube.all("jobs") and len(ends) == 3
    assert not Path(agents[0].via).exists()


def test_a_job_that_somebody_deletes_is_told(site: Site) -> None:
    launch = site.started()
    ends = ends_of(launch)
    launch.start(DEADLINE_S)
    site.delete_job(site.job()["metadata"]["name"])
    until(lambda: ends, "its end", DEADLINE_S)
    assert "the Job was deleted" in str(ends[0][1])
    assert launch.successor(0, "whoever") is None


def test_a_detached_cluster_s_pods_outlive_their_notebook_where_they_can_be_reached(
    site: Site,
) -> None:
    launch = site.started()
    launch.start(DEADLINE_S)
    with pytest.raises(LaunchError, match="so --detach loses them"):
        launch.detach([site.path])
    launch.stop()
    launch = site.started(direct=True)
    launch.start(DEADLINE_S)
    launch.detach([site.path])
    launch.leave()
    assert len(site.kube.all("pods")) == 1
    held = processes_with(MARK, os.environ[MARK]).values()
    assert any("supervision.keeper" in line for line in held)


def test_a_deadline_is_told(site: Site) -> None:
    launch = site.started(time="4s")
    ends = ends_of(launch)
    launch.start(DEADLINE_S)
    until(lambda: ends, "its end", DEADLINE_S)
    assert "at its deadline (--time)" in str(ends[0][1])


def test_a_notebook_killed_leaves_no_job(site: Site) -> None:
    """Whose pods still wait: it ends at the start's deadline."""
    site.kube.closed |= {"n1", "n2"}
    config = site.path / "config"
    config.write_text(site.kube.kubeconfig())
    source = f"""
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.kubernetes import launcher
from jaxcluster.launchers.kubernetes.launcher import Kubernetes
launcher.TTL_S = 1
one = Kubernetes(pods=2, image="good", kubeconfig={str(config)!r}, direct=True)
agent = AgentOptions("main", "key", "python3", first_lease_s=8.0)
one.launch(one.render(agent, {str(site.path)!r})).start(600)
"""
    with subprocess.Popen([sys.executable, "-c", source]) as notebook:
        until(lambda: len(site.kube.all("pods")) == 2, "the pods", DEADLINE_S)
        notebook.kill()
    until(lambda: not site.kube.all("jobs"), "the Job goes", DEADLINE_S)


# ------------------------------------------------------------------- what can't be, what waits


def test_what_can_never_be_is_told_at_once(site: Site) -> None:
    """Each in turn: the image, its jaxcluster, the namespace, the template, a login."""
    assert "ErrImagePull" in refused(site.started("nowhere"))
    told = refused(site.started("broken"))
    assert "No module named 'jaxcluster'" in told and "--python PATH" in told
    assert "team-b" in refused(site.started(namespace="team-b"))
    template = json.dumps({"metadata": {}, "spec": {"tolerationz": []}})
    told = refused(site.started(template=template))
    assert 'unknown field "spec.template.spec.tolerationz"' in told and "--pod-template" in told
    text = json.loads(site.kube.kubeconfig())
    text["users"][0]["user"]["token"] = "nobody's"
    (site.path / "stranger").write_text(json.dumps(text))
    assert "Log in again" in refused(site.started(kubeconfig=str(site.path / "stranger")))
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
    waits = "1 of 2 pods wait: 0/2 nodes are available: 2 Insufficient cpu.)"
    agents = starting(site.started(pods=2), waits)
    site.kube.closed.clear()
    assert len(agents()) == 2


def test_a_start_can_be_stopped(site: Site) -> None:
    site.kube.closed |= {"n1", "n2"}
    stopped = threading.Event()
    with pytest.raises(LaunchError, match=r"start was stopped"):
        site.started().start(DEADLINE_S, lambda text: "wait" in text and stopped.set(), stopped)
    assert not site.kube.all("jobs")


def test_a_quota_that_others_have_taken_is_waited_for(site: Site) -> None:
    kube = site.kube
    kube.quota = "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8"
    agents = starting(site.started(), "the Job has no pods yet: FailedCreate: Error")
    kube.quota = ""
    assert len(agents()) == 1
    kube.quota = 'error looking up service account team-a/jax: serviceaccount "jax" not found'
    told = refused(site.started(pods=2))  # at once
    assert "can't be made" in told and "--pod-template" in told


@pytest.mark.parametrize("right", ["create jobs", "create services", "get pods/log", "patch jobs"])
def test_a_missing_right_is_told(site: Site, right: str) -> None:
    kube = site.kube
    verb, resource = right.split()
    kube.rights.remove((verb, resource))
    told = refused(site.started())
    assert f'cannot {verb} resource "{resource}"' in told and "#rights" in told
    kube.rights.add((verb, resource))


def test_a_job_that_can_not_be_deleted_is_told_with_what_to_type(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    kube = site.kube
    launch = site.started()
    launch.start(DEADLINE_S)
    kube.rights.remove(("delete", "jobs"))
    launch.stop()
    name = site.job()["metadata"]["name"]
    assert f"To end it: kubectl -n team-a delete job {name}" in capsys.readouterr().err
    site.delete_job(name)


def test_no_way_to_a_cluster(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    assert "nowhere" in refused(site.started(context="nowhere"))
    assert "cluster can be reached" in refused(site.started(kubeconfig="/nowhere/config"))
    (site.path / "broken.yaml").write_text("a: b: c")
    assert "mapping values" in refused(site.started(kubeconfig=str(site.path / "broken.yaml")))
    kube = site.kube
    right = kube.url
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        kube.url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        told = refused(site.started())
    assert "can't be reached: " in told and "object at" not in told and "kubectl get pods" in told
    kube.url = right
    assert "To end it" not in capfd.readouterr().err  # what was never made
