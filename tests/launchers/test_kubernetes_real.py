"""The kubernetes launcher against a real kube-apiserver and etcd: a check before each release.

``rig.realkube`` says what of it is real. Without these programs the tests skip. The last ones show
that the stand-in, with which all other tests run, answers as the real one does.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers import until
from rig.kube import Kube, node_here
from rig.realkube import (
    CONTROLLERS,
    NAMESPACE,
    SERVER,
    STORE,
    RealKube,
    documented_rights,
    what_is_missing,
)

from jaxcluster.errors import LaunchError
from jaxcluster.launchers.base import AgentOptions, Reason
from jaxcluster.launchers.commands import Launch
from jaxcluster.launchers.kube import api as api_module
from jaxcluster.launchers.kube import manifests, reasons
from jaxcluster.launchers.kube.launcher import Kubernetes
from jaxcluster.launchers.kube.manifests import LAUNCH, Pod

pytest.importorskip("kubernetes")
pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(what_is_missing(SERVER, STORE)), reason=what_is_missing(SERVER, STORE)),
]
with_controllers = pytest.mark.skipif(
    bool(what_is_missing(CONTROLLERS)), reason=what_is_missing(CONTROLLERS)
)
DEADLINE_S = 60
AGENT = """#!{python}
import json, os, signal, socketserver, sys
def end(*_):
    os._exit(143 if "--signalled-status=143" in sys.argv else 0)
signal.signal(signal.SIGTERM, end)
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
    endpoint = "tcp://127.0.0.1:%d" % server.server_address[1]
    print(json.dumps({{"jaxcluster-agent": 1, "key": str(os.getpid()), "pid": os.getpid(),
        "host": os.environ["HOSTNAME"], "endpoint": endpoint}}), flush=True)
    server.serve_forever()
"""
Images = dict[str, dict[str, str]]


@pytest.fixture(scope="module")
def images() -> Iterator[Images]:
    """``good`` runs as root, ``plain`` as another user."""
    folder = Path(tempfile.mkdtemp(prefix="jckr", dir="/tmp"))
    python = folder / "python3"
    python.write_text(AGENT.format(python=sys.executable))
    python.chmod(0o755)
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    yield {"good": path, "plain": {**path, "USER": "1000"}}
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def cluster(images: Images) -> Iterator[RealKube]:
    made = RealKube([node_here("n1"), node_here("n2")], images)
    yield made
    made.close()
    assert made.kubelets is not None and made.kubelets.failed is None


@dataclass
class Site:
    kube: RealKube
    path: Path
    launches: list[Launch] = field(default_factory=list)

    def launch(self, pod: Pod | None = None, **options: Any) -> Launch:
        config = self.path / "config"
        config.write_text(self.kube.kubeconfig(user=options.pop("user", "me")))
        options.setdefault("kubeconfig", str(config))
        launcher = Kubernetes(pod=pod or Pod("good"), **options)
        folder = tempfile.mkdtemp(dir=self.path)
        made = Launch(launcher, launcher.render(AgentOptions("main", "ab" * 32, "python3"), folder))
        self.launches.append(made)
        return made

    def refused(self, pod: Pod | None = None, **options: Any) -> LaunchError:
        launch = self.launch(pod, **options)
        with pytest.raises(LaunchError) as caught:
            launch.start(DEADLINE_S)
        launch.stop()
        print(caught.value)
        return caught.value

    def waits(self, pod: Pod) -> str:
        """What a start waits for that can't have its pods yet."""
        launch, said = self.launch(pod), list[str]()

        def start() -> None:
            with pytest.raises(LaunchError):
                launch.start(DEADLINE_S, said.append)

        thread = threading.Thread(target=start)
        thread.start()
        until(lambda: any("no pods yet: " in text for text in said), "why", DEADLINE_S)
        launch.stop()
        thread.join(DEADLINE_S)
        return said[-1]


@pytest.fixture
def site(cluster: RealKube) -> Iterator[Site]:
    path = Path(tempfile.mkdtemp(prefix="jck", dir="/tmp"))
    cluster.grant(documented_rights())
    made = Site(cluster, path)
    yield made
    for launch in made.launches:
        launch.stop()
    until(lambda: not cluster.all("pods"), "the pods go", DEADLINE_S)
    until(lambda: not cluster.all("services"), "the Services go", DEADLINE_S)
    assert not cluster.all("jobs")
    cluster.label(enforce=None)
    shutil.rmtree(path)


# --------------------------------------------------------------------------- what --dry-run prints


TEMPLATE = {
    "metadata": {"annotations": {"note": "kept"}},
    "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"zone": "a"}},
}
PODS = {
    "plain": Pod("team/jax:1"),
    "gpus": Pod("team/jax:1", cpu="8", memory="64Gi", gpus=8, labels=(("team", "a"),)),
    "tpu": Pod("team/jax:1", tpu="tpu-v5-lite-podslice", topology="4x4"),
    "template": Pod("team/jax:1", template=json.dumps(TEMPLATE), service_account="default"),
    "user": Pod("team/jax:1", run_as_user=1000),
}


@pytest.mark.parametrize("name", PODS)
def test_what_a_dry_run_prints_can_be_made_as_it_is(site: Site, name: str) -> None:
    """Objects and pods: validated strictly and admitted, by a user who has the documented role."""
    launcher = Kubernetes(pod=PODS[name], pods=None if name == "tpu" else 2, kubeconfig="x")
    plan = launcher.render(AgentOptions("main", "PUBLIC-KEY", "python3"), "/f")
    made = {Path(file.path).stem: json.loads(file.text) for file in plan.files}
    strict = "?dryRun=All&fieldValidation=Strict"
    for plural, what in (("jobs", "job"), ("services", "service")):
        done = site.kube.ask("POST", site.kube.path(plural) + strict, made[what], user="me")
        assert done["metadata"]["uid"]
    if name == "user":
        site.kube.label(enforce="restricted")
    pod = {"metadata": {"name": "p"}, "spec": made["job"]["spec"]["template"]["spec"]}
    done = site.kube.ask("POST", site.kube.path("pods") + strict, pod)
    assert done["spec"]["containers"][0]["name"] == "jaxcluster"


def test_a_field_that_it_does_not_know(site: Site) -> None:
    template = json.dumps({"metadata": {}, "spec": {"tolerationz": []}})
    error = site.refused(Pod("good", template=template))
    assert "does not know a field of the pod" in str(error) and '"spec.template' in str(error)


# ---------------------------------------------------------------------------------- rights, logins


@with_controllers
def test_each_missing_right_is_told_with_the_command_that_grants_it(site: Site) -> None:
    """From no right at all, each hint is followed, until a start goes as far as it can here."""
    documented = {
        (group, resource, verb)
        for rule in documented_rights()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    rules: list[dict[str, Any]] = []
    told: list[str] = []
    started = False
    while not started and len(told) < 9:
        site.kube.grant(rules)
        launch = site.launch()
        try:
            started = bool(launch.start(DEADLINE_S))
        except LaunchError as error:
            asked = re.search(r"--verb=(\w+) --resource=(\S+)", str(error))
            assert asked is not None and f"me may not {asked[1]}" in str(error), error
            resource, _, group = asked[2].partition(".")
            rules.append({"apiGroups": [group], "resources": [resource], "verbs": [asked[1]]})
            told.append(f"{asked[1]} {asked[2]}")
            assert (group, resource, asked[1]) in documented
        launch.stop()  # its Job stays: nobody has said yet that this user may delete it
        site.kube.grant(documented_rights())
        for job in site.kube.all("jobs"):
            site.kube.discard(job["metadata"]["name"])
    print(told)
    assert started
    needed = ["create jobs.batch", "create services", "list pods", "get jobs.batch", "get pods/log"]
    assert told == needed


def test_a_login_that_it_does_not_know_and_a_namespace_that_is_not_there(site: Site) -> None:
    assert "The API server does not know this user." in str(site.refused(user="nobodys-token"))
    # Without rights the refusal is reported; with them, that nothing is there.
    error = str(site.refused(namespace="team-b"))
    assert "me may not create jobs.batch in the namespace team-b" in error
    assert "There is no namespace team-b" in str(site.refused(namespace="team-b", user="admin"))


# ------------------------------------------------------------------------------------ Pod Security


@with_controllers
def test_a_namespace_that_admits_restricted_pods_alone(site: Site) -> None:
    """A start asks what it enforces; where that can't be known, the hint helps."""
    site.kube.label(enforce="restricted")
    launch = site.launch(Pod("plain"))
    assert launch.start(DEADLINE_S)
    (pod,) = site.kube.all("pods")
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    launch.stop()
    # The image's user is root, which only its node sees.
    error = str(site.refused(Pod("good")))
    assert "image will run as root" in error and "--run-as-user 1000" in error
    launch = site.launch(Pod("good", run_as_user=1000))
    assert launch.start(DEADLINE_S)
    launch.stop()
    site.kube.grant([one for one in documented_rights() if "namespaces" not in one["resources"]])
    error = str(site.refused(Pod("plain")))
    assert "violates PodSecurity" in error and "--run-as-user 1000" in error
    launch = site.launch(Pod("plain", run_as_user=1000))
    assert launch.start(DEADLINE_S)


@with_controllers
@pytest.mark.parametrize("level", ["baseline", "privileged"])
def test_other_levels_change_nothing(site: Site, level: str) -> None:
    site.kube.label(enforce=level)
    assert site.launch().start(DEADLINE_S)
    (pod,) = site.kube.all("pods")
    assert pod["spec"]["securityContext"] == {}


# ------------------------------------------------------------------------------------------- a Job


@with_controllers
def test_a_start_an_evicted_pod_its_successor_and_a_stop(site: Site) -> None:
    stranger = {"metadata": {"name": "mine"}, "spec": {
        "suspend": True, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}}  # fmt: skip
    site.kube.ask("POST", site.kube.path("jobs"), stranger)
    launch = site.launch(pods=2)
    ends: list[tuple[tuple[int, ...], Reason]] = []
    launch.on_end = lambda hosts, why: ends.append((hosts, why))
    agents = launch.start(DEADLINE_S)
    assert sorted(agent.facts["number"] for agent in agents) == [0, 1]
    # By the API server's port-forward, to the agent's own port.
    with socket.socket(socket.AF_UNIX) as way:
        way.connect(next(a.facts["via"] for a in agents if a.facts["number"] == 1))
        way.sendall(b"x" * 100_000)
        assert len(way.recv(100_000, socket.MSG_WAITALL)) == 100_000
    by_index = {reasons.index(pod): pod for pod in site.kube.all("pods")}
    name = by_index[1]["metadata"]["name"]
    site.kube.evict(name)
    until(lambda: ends, "the end is told", DEADLINE_S)
    assert ends[0][0] == (1,)
    assert ends[0][1].message.startswith(f"The pod {name} on the node n")
    assert "it was evicted, as when a node is drained (EvictionByEvictionAPI" in ends[0][1].message
    assert launch.successor(1, "whoever", DEADLINE_S) is not None
    launch.stop()
    assert [one["metadata"]["name"] for one in site.kube.all("jobs")] == ["mine"]
    site.kube.discard("mine")


@with_controllers
def test_a_deadline_and_a_job_that_somebody_deletes(site: Site) -> None:
    for seconds, told in ((3, "at its deadline"), (None, "was deleted")):
        launch, ends = site.launch(deadline_s=seconds), list[Reason]()
        launch.on_end = lambda hosts, why, ends=ends: ends.append(why)  # type: ignore[misc]
        launch.start(DEADLINE_S)
        if seconds is None:
            (job,) = site.kube.all("jobs")
            site.kube.discard(job["metadata"]["name"])
        until(lambda t=told, e=ends: any(t in str(why) for why in e), told, DEADLINE_S)
        launch.stop()
        until(lambda: not site.kube.all("pods"), "the pods go", DEADLINE_S)


QUOTA = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
LIMITS = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "q"},
          "spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}}]}}  # fmt: skip


@with_controllers
@pytest.mark.parametrize(
    ("plural", "made", "pod", "told"),
    [
        ("resourcequotas", {**QUOTA, "spec": {"hard": {"cpu": "4"}}}, Pod("good", cpu="8"),
         "One pod asks for 8 of cpu, and the quota is 4 for all"),
        ("resourcequotas", {**QUOTA, "spec": {"hard": {"requests.memory": "4Gi"}}}, Pod("good"),
         "Say what each pod needs"),
        ("limitranges", LIMITS, Pod("good", cpu="4"), "Ask for what that allows"),
        ("", {}, Pod("good", service_account="jax"), "--service-account NAME"),
        ("", {}, Pod("good", template='{"metadata": {}, "spec": {"priorityClassName": "none"}}'),
         "kubectl get priorityclasses"),
    ],
    ids=["quota", "limits", "range", "account", "priority"],
)  # fmt: skip
def test_what_the_pods_are_refused_for_good(
    site: Site, plural: str, made: dict[str, Any], pod: Pod, told: str
) -> None:
    if plural:
        site.kube.ask("POST", site.kube.path(plural), made)
        hard = made["spec"].get("hard")
        path = site.kube.path(plural, "q")
        until(
            lambda: not hard or site.kube.ask("GET", path).get("status", {}).get("hard") == hard,
            "the quota counts", DEADLINE_S,
        )  # fmt: skip
    try:
        assert told in str(site.refused(pod))
    finally:
        if plural:
            site.kube.ask("DELETE", site.kube.path(plural, "q"))


@with_controllers
def test_a_quota_that_others_have_taken_is_waited_for(site: Site) -> None:
    made = {**QUOTA, "spec": {"hard": {"pods": "1"}}}
    first = site.launch()
    first.start(DEADLINE_S)
    site.kube.ask("POST", site.kube.path("resourcequotas"), made)
    path = site.kube.path("resourcequotas", "q")
    try:
        until(
            lambda: site.kube.ask("GET", path).get("status", {}).get("used") == {"pods": "1"},
            "the quota counts", DEADLINE_S,
        )  # fmt: skip
        told = site.waits(Pod("good"))
        assert "FailedCreate: Error creating: pods" in told and "exceeded quota: q" in told
    finally:
        site.kube.ask("DELETE", path)


# ------------------------------------------------------------------------ the stand-in is like this


@dataclass
class Heard:
    """What a server has answered: for each request by what it was for, statuses and documents."""

    api: Any
    statuses: list[tuple[str, int]] = field(default_factory=list)
    documents: dict[str, list[Any]] = field(default_factory=dict)
    told: dict[str, Reason] = field(default_factory=dict)
    name: str = ""

    def listen(self) -> None:
        asks = self.api.pool.request

        def request(method: str, url: str, **options: Any) -> Any:
            answer = asks(method, url, **options)
            self.statuses.append((self.name, answer.status))
            if "watch=true" not in url:
                data = answer.read()
                answer.read = lambda: data
                if data[:1] == b"{" and not url.partition("?")[0].endswith("/log"):
                    self.documents.setdefault(self.name, []).append(json.loads(data))
            return answer

        self.api.pool.request = request

    def ask(self, name: str, do: Callable[[], Any]) -> Any:
        self.name = name
        try:
            return do()
        except api_module.Refused as error:
            self.told[name] = error.reason
            return None


def run_of_all_calls(
    kube: Any, config: Path, deny: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> Heard:
    """Each call of the client's, where it works and where it is refused."""
    task = {"kubeconfig": str(config), "context": "", "inside": False, "namespace": ""}
    config.write_text(kube.kubeconfig())
    api = api_module.Api(task)
    heard = Heard(api)
    heard.listen()
    name = "jaxcluster-main-0123456789"
    job = manifests.job(name, 2, AgentOptions("main", "ab" * 32, "python3"), Pod("good"), 600)
    service = manifests.service(name, "main")
    wrong = json.loads(json.dumps(job))
    wrong["spec"]["template"]["spec"]["tolerationz"] = []
    heard.ask("level", api.security_level)
    heard.ask("unknown field", lambda: api.create("jobs", wrong))
    heard.ask("no job", lambda: api.get("jobs", name))
    made = heard.ask("job", lambda: api.create("jobs", job))
    uid = made["metadata"]["uid"]
    heard.ask("job again", lambda: api.create("jobs", job))
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
    service["metadata"]["ownerReferences"] = [owner]
    heard.ask("service", lambda: api.create("services", service))
    heard.ask("service again", lambda: api.create("services", service))
    heard.ask("get service", lambda: api.get("services", name))
    launch = f"{LAUNCH}={name}"
    all_run = lambda: sum(reasons.runs(pod) for pod in api.pods(launch)) == 2  # noqa: E731
    heard.name = "pods"
    until(all_run, "the pods run", DEADLINE_S)
    heard.ask("get job", lambda: api.get("jobs", name))

    seen: list[tuple[str, str]] = []
    other = api_module.Api(task)

    def watch() -> None:
        lines = api_module._lines

        def read(answer: Any) -> Iterator[bytes]:
            for line in lines(answer):
                event = json.loads(line)
                seen.append((event["type"], event["object"]["metadata"]["name"]))
                heard.documents.setdefault("watch", []).append(event)
                yield line

        monkeypatch.setattr(api_module, "_lines", read)
        with pytest.raises(api_module.Unreachable):  # at the end of all
            while True:
                other.watch_pods(launch, lambda pod: None)

    threading.Thread(target=watch, daemon=True).start()
    until(lambda: len(seen) >= 2, "the watch tells of both", DEADLINE_S)
    first, second = sorted(api.pods(launch), key=lambda pod: reasons.index(pod) or 0)
    log: list[str] = []
    heard.ask("log", lambda: until(lambda: log.extend(api.log(reasons.name(first), "jaxcluster"))
                                   or log, "the log", DEADLINE_S))  # fmt: skip
    said = json.loads(log[0])
    heard.ask("log of no container", lambda: api.log(reasons.name(first), "none"))
    heard.ask("log of no pod", lambda: api.log("none", "jaxcluster"))
    own = config.parent / "own"
    own.mkdir(exist_ok=True)
    (own / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(api_module, "OWN", own)
    monkeypatch.setenv("HOSTNAME", reasons.name(first))
    assert heard.ask("own pod", api.own_pod)["uid"] == reasons.uid(first)

    port = int(said["endpoint"].rpartition(":")[2])
    way = api.forward(reasons.name(first), port)
    way.sendall(b"hello")
    assert way.recv(5) == b"hello"
    way.close()

    heard.ask("delete another's pod", lambda: api.delete("pods", reasons.name(second), "another"))
    assert not seen[2:] or all(kind == "MODIFIED" for kind, _ in seen[2:])
    heard.ask("delete pod", lambda: api.delete("pods", reasons.name(second), reasons.uid(second)))
    until(lambda: ("DELETED", reasons.name(second)) in seen, "its end is seen", DEADLINE_S)
    heard.ask("delete no pod", lambda: api.delete("pods", "none", "x"))
    heard.ask("events", lambda: api.events(uid))
    heard.ask("delete another's job", lambda: api.delete("jobs", name, "another"))
    assert api.get("jobs", name) is not None
    heard.ask("delete job", lambda: api.delete("jobs", name, uid))
    until(lambda: not api.pods(launch), "the pods go", DEADLINE_S)
    until(lambda: api.get("services", name) is None, "the Service goes", DEADLINE_S)
    heard.ask("delete no job", lambda: api.delete("jobs", name, uid))

    for verb, resource, do in (
        ("create", "jobs", lambda: api.create("jobs", job)),
        ("create", "services", lambda: api.create("services", service)),
        ("get", "jobs", lambda: api.get("jobs", name)),
        ("delete", "jobs", lambda: api.delete("jobs", name, uid)),
        ("list", "pods", lambda: api.pods(launch)),
        ("watch", "pods", lambda: api.watch_pods(launch, lambda pod: None)),
        ("get", "pods/log", lambda: api.log(reasons.name(first), "jaxcluster")),
        ("delete", "pods", lambda: api.delete("pods", reasons.name(first), "x")),
        ("list", "events", lambda: api.events(uid)),
        ("get", "namespaces", api.security_level),
    ):
        deny(verb, resource)
        heard.ask(f"may not {verb} {resource}", do)
    deny("", "")
    text = json.loads(config.read_text())
    text["users"][0]["user"]["token"] = "nobody's"
    config.write_text(json.dumps(text))
    stranger = Heard(api_module.Api(task), heard.statuses, heard.documents, heard.told)
    stranger.listen()
    stranger.ask("not logged in", lambda: stranger.api.pods(launch))
    return heard


def shape(values: list[Any]) -> Any:
    """What there is in one or several of them: names, and the kinds of values."""
    if all(isinstance(one, Mapping) for one in values):
        names = {name for one in values for name in one}
        return {n: shape([one[n] for one in values if n in one]) for n in sorted(names)}
    if all(isinstance(one, list) for one in values):
        return [shape([each for one in values for each in one])] if any(values) else []
    return "/".join(sorted({type(one).__name__ for one in values}))


def without_names(reason: Reason) -> tuple[str, str]:
    return re.sub(r"-(\d)-\w{5}\b", r"-\1-x", reason.message), reason.hint


def invented(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """What the stand-in has and the real one has not, or has of another kind."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            found
            for name, one in ours.items()
            for found in (
                invented(one, theirs[name], f"{where}.{name}")
                if name in theirs
                else [f"{where}.{name} is not there"]
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list):
        return invented(ours[0], theirs[0], f"{where}[]") if ours and theirs else []
    return [] if ours == theirs or ours == {} else [f"{where} is {theirs}, not {ours}"]


@with_controllers
def test_the_stand_in_answers_each_call_as_the_real_one(
    site: Site, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statuses, what is in the documents, the messages made of refusals."""
    rules = [{"apiGroups": ["", "batch"], "resources": [resource], "verbs": [verb]}
             for resource in ("jobs", "services", "pods", "pods/log", "pods/portforward", "events",
                              "namespaces")
             for verb in ("get", "list", "watch", "create", "delete")]  # fmt: skip

    def deny_real(verb: str, resource: str) -> None:
        site.kube.grant([r for r in rules if (r["verbs"], r["resources"]) != ([verb], [resource])])

    deny_real("", "")
    with monkeypatch.context() as patch:
        real = run_of_all_calls(site.kube, site.path / "real", deny_real, patch)
    kube = Kube(
        socket.create_server(("127.0.0.1", 0), backlog=64),
        [node_here("n1"), node_here("n2")],
        images,
    )

    def deny(verb: str, resource: str) -> None:
        kube.forbidden = {(verb, resource)}

    try:
        with monkeypatch.context() as patch:
            ours = run_of_all_calls(kube, site.path / "ours", deny, patch)
    finally:
        kube.close()

    def once(statuses: list[tuple[str, int]]) -> list[tuple[str, int]]:
        return list(dict.fromkeys(statuses))  # how often it was looked at says nothing

    assert once(ours.statuses) == once(real.statuses)
    assert ours.documents.keys() == real.documents.keys()
    wrong = [
        f"{name}{line}"
        for name, documents in ours.documents.items()
        for line in invented(shape(documents), shape(real.documents[name]))
    ]
    assert ours.told.keys() == real.told.keys()
    wrong += [
        f"{name}: {theirs!r}, not {reason!r}"
        for name, reason in ours.told.items()
        if without_names(theirs := real.told[name]) != without_names(reason)
    ]
    assert not wrong, "\n".join(wrong)
