"""What looks after a Job, with an API server in which pods are as a test puts them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.launchers.base import Reason
from jaxcluster.launchers.kube import job, reasons


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p-0-x", "uid": "u", "annotations": {reasons.INDEX: "0"}},
            "spec": {}, "status": status}  # fmt: skip


def ended() -> dict[str, Any]:
    state = {"terminated": {"exitCode": 1}}
    return pod(phase="Failed", containerStatuses=[{"name": "jaxcluster", "state": state}])


def sidecar(code: int | None, **metadata: Any) -> dict[str, Any]:
    """A pod whose agent has ended, beside a container that goes on."""
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    one = pod(phase="Running", containerStatuses=[
        {"name": "proxy", "state": {"running": {}}}, {"name": "jaxcluster", "state": state},
    ])  # fmt: skip
    one["metadata"].update(metadata)
    return one


def running(count: int) -> list[dict[str, Any]]:
    return [
        {"metadata": {"name": f"p-{i}", "uid": f"u{i}", "annotations": {reasons.INDEX: str(i)}},
         "spec": {}, "status": {"phase": "Running"}}
        for i in range(count)
    ]  # fmt: skip


def test_a_sidecar_does_not_make_an_agent() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert not reasons.has_no_agent_left(sidecar(None)) and not reasons.lingers(sidecar(None))
    assert reasons.has_no_agent_left(sidecar(1)) and reasons.lingers(sidecar(1))
    assert reasons.has_no_agent_left(sidecar(0)) and not reasons.lingers(sidecar(0))
    assert not reasons.has_no_agent_left(sidecar(1, **deleted))
    assert not reasons.lingers(sidecar(1, **deleted)) and not reasons.lingers(ended())
    assert reasons.has_no_agent_left(pod(phase="Succeeded")) and reasons.has_no_agent_left(ended())


class FakeApi:
    """An API server in which pods are as a test puts them."""

    namespace = "team-a"

    def __init__(self, *pods: Mapping[str, Any], event: str = "") -> None:
        self.there, self.event = list(pods), event
        self.deleted: list[tuple[str, str]] = []
        self.lists = 0

    def pods(self, launch: str) -> list[Mapping[str, Any]]:
        self.lists += 1
        return self.there

    def get(self, plural: str, name: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "uid": "j"}, "spec": {}, "status": {}}

    def events(self, uid: str) -> list[dict[str, Any]]:
        return [{"type": "Warning", "reason": "FailedCreate", "message": self.event}]

    def log(self, name: str, container: str) -> list[str]:
        return ["its fork server did not start"]

    def delete(self, plural: str, name: str, uid: str) -> None:
        from jaxcluster.launchers.kube.api import Unreachable

        if plural == "jobs":
            raise Unreachable(Reason("The API server can't be reached."))
        self.deleted.append((name, uid))


def looked_after(folder: Path, api: FakeApi, pods: int = 1) -> job.Launch:
    pytest.importorskip("kubernetes")
    task = {"name": "x", "pods": pods, "python": "python3", "forward": False, "inside": False}
    (folder / "task.json").write_text(json.dumps(task))
    launch = job.Launch(folder, api)  # type: ignore[arg-type]
    launch.uid, launch.image = "j", "img"
    return launch


@pytest.mark.parametrize("one", [pod(phase="Succeeded"), sidecar(0), sidecar(1)])
def test_a_start_does_not_wait_for_an_agent_that_has_ended(
    one: Mapping[str, Any], tmp_path: Path
) -> None:
    launch = looked_after(tmp_path, FakeApi(one))
    with pytest.raises(Exception, match=r"has started no agent: .*its fork server did not start"):
        launch.look()


def test_a_lost_agents_pod_is_ended_where_a_sidecar_keeps_it(tmp_path: Path) -> None:
    api = FakeApi(sidecar(1))
    launch = looked_after(tmp_path, api)
    launch.first, launch.places[0].uid = False, "u"
    launch.look()
    launch.look()
    assert api.deleted == [("p-0-x", "u")]


def test_a_start_does_not_wait_for_pods_that_an_admission_refuses(tmp_path: Path) -> None:
    refused = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot'
    launch = looked_after(tmp_path, FakeApi(event=refused))
    with pytest.raises(Exception, match="violates PodSecurity"):
        launch.look()
    launch = looked_after(tmp_path, FakeApi(event="exceeded quota: gpus"))
    assert launch.look() and "exceeded quota" in (tmp_path / "waiting").read_text()
    launch = looked_after(tmp_path, FakeApi(event=refused))
    launch.first = False  # of a cluster that runs: it goes on with what it has
    assert launch.look()


def test_a_job_that_can_not_be_deleted_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = looked_after(tmp_path, FakeApi())
    launch.may_be_there = True
    assert launch.remove() is False and not (tmp_path / "removed").exists()
    assert "could not be deleted" in capsys.readouterr().err


def test_a_job_is_deleted_by_an_api_server_that_is_busy_or_answers_no_more_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from_api = pytest.importorskip("jaxcluster.launchers.kube.api")
    monkeypatch.setattr(job, "TRIES_S", (0.0, 0.0, 0.0))
    answers: list[Any] = [from_api.Refused(429, Reason("Too many requests.")), None]

    def delete(plural: str, name: str, uid: str) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    def pods(launch: str) -> Any:
        raise from_api.Unreachable(Reason("The API server can't be reached."))

    launch = looked_after(tmp_path, api := FakeApi())
    launch.may_be_there = True
    api.delete, api.pods = delete, pods  # type: ignore[method-assign]
    assert launch.remove() and not answers and (tmp_path / "removed").exists()
    assert not capsys.readouterr().err
    answers += [from_api.Refused(403, Reason("You may not.")), None]
    assert launch.remove() is False and len(answers) == 1


class Over(Exception):
    """Of a thread that ends with its process."""


def test_watches_that_end_at_once_are_not_asked_for_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a login that is refused for a while does not end them permanently."""
    from_api = pytest.importorskip("jaxcluster.launchers.kube.api")
    ends = [None, from_api.Refused(401, Reason("Who?")), from_api.Unreachable(Reason("No answer."))]
    slept: list[float] = []

    def watch_pods(launch: str, seen: Any) -> None:
        if not ends:
            raise Over
        seen(pod())
        if (end := ends.pop(0)) is not None:
            raise end

    launch = looked_after(tmp_path, api := FakeApi())
    api.watch_pods = watch_pods  # type: ignore[attr-defined]
    monkeypatch.setattr(job.time, "sleep", slept.append)
    with pytest.raises(Over):
        launch.watch(lambda: None)
    assert len(slept) == 3 and sum(slept) > 0 and launch.changed and not launch.watches
    ends.append(from_api.Refused(403, Reason("You may not.")))
    launch.watch(lambda: None)  # there is no right to it, so it ends


@pytest.mark.parametrize("event", ['{"type":"ERROR","object":{"message":"too old"}}', "no JSON"])
def test_a_watch_that_tells_an_error_is_over(event: str) -> None:
    from_api = pytest.importorskip("jaxcluster.launchers.kube.api")

    class Answer:
        def stream(self, **options: Any) -> list[bytes]:
            return [
                b'{"type":"ADDED","object":{"a":1}}\n{"type":"BOOKMARK"}\n',
                event.encode() + b"\n",
            ]

        def close(self) -> None:
            pass

    api = from_api.Api.__new__(from_api.Api)
    api.host, api.namespace, api._open = "h", "n", lambda *words, **options: Answer()
    seen: list[Any] = []
    with pytest.raises(from_api.Unreachable):
        api.watch_pods("x", seen.append)
    assert seen == [{"a": 1}]


def test_a_token_that_is_old_is_made_anew_once_for_all_threads() -> None:
    from_api = pytest.importorskip("jaxcluster.launchers.kube.api")
    made: list[int] = []

    class Settings:
        def auth_settings(self) -> dict[str, Any]:
            if not made:  # it is old: a program for logins is run
                time.sleep(0.2)
                made.append(1)
            return {"BearerToken": {"key": "authorization", "value": "t", "in": "header"}}

    api = from_api.Api.__new__(from_api.Api)
    api.settings, api._logs_in = Settings(), threading.Lock()
    with ThreadPoolExecutor(8) as readers:
        found = list(readers.map(lambda _: api._headers(), range(8)))
    assert found == [{"authorization": "t"}] * 8 and made == [1]


class Talking(FakeApi):
    """Its logs can be read only by several at once."""

    def __init__(self, count: int) -> None:
        super().__init__(*running(count))
        self.together = threading.Barrier(count)

    def log(self, name: str, container: str) -> list[str]:
        self.together.wait(60)
        said = {"jaxcluster-agent": 1, "key": name, "host": name, "endpoint": "tcp://h:1"}
        return ["Welcome.", json.dumps(said)]


def test_logs_of_many_pods_are_read_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = looked_after(tmp_path, Talking(job.READERS), job.READERS)
    launch.look()
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["key"], one["number"]) for one in told] == [
        (f"p-{i}", i) for i in range(job.READERS)
    ]
    assert not launch.first


def test_pods_that_all_run_are_not_listed_again_and_again(tmp_path: Path) -> None:
    api = Talking(1)
    launch = looked_after(tmp_path, api)
    launch.look()
    launch.look()
    assert api.lists == 2  # nobody tells of changes
    launch.watches = True
    launch.look()
    assert api.lists == 2
    launch.changed = True
    launch.look()
    assert api.lists == 3
    (tmp_path / "fence-0").write_text("u0")  # the notebook has given up its agent
    launch.look()
    assert api.lists == 4 and api.deleted == [("p-0", "u0")]
    launch.listed -= job.LIST_S
    launch.look()
    assert api.lists == 5


class Refusing(FakeApi):
    """It refuses what it is asked to make for some times, whether or not it has made it."""

    def __init__(self, *statuses: int, makes: bool) -> None:
        super().__init__()
        self.statuses, self.makes, self.asked = list(statuses), makes, 0

    def get(self, plural: str, name: str) -> dict[str, Any]:
        labels = {job.LAUNCH: name} if self.makes else {}
        return {"metadata": {"name": name, "uid": f"{plural}-uid", "labels": labels}}

    def security_level(self) -> str:
        return ""

    def create(self, plural: str, made: Mapping[str, Any]) -> Mapping[str, Any]:
        from jaxcluster.launchers.kube.api import Refused

        if plural == "services":
            return made
        self.asked += 1
        if self.statuses:
            raise Refused(self.statuses.pop(0), Reason("It is busy."))
        return {"metadata": {"uid": "mine"}}


def to_be_made(folder: Path, api: FakeApi) -> job.Launch:
    launch = looked_after(folder, api)
    launch.uid = ""
    containers = [{"name": "jaxcluster", "image": "i"}]
    made = {"metadata": {}, "spec": {"template": {"spec": {"containers": containers}}}}
    for name in ("job", "service"):
        (folder / f"{name}.json").write_text(json.dumps(made))
    return launch


@pytest.mark.parametrize(
    ("statuses", "makes", "uid", "asked"),
    [
        ([429, 503], False, "mine", 3),
        ([409], False, "mine", 2),  # two have taken of a quota at the same time
        ([500, 409], True, "jobs-uid", 2),  # it was made, with an error for an answer
        ([403], False, None, 1),
        ([409] * 9, False, None, 5),  # of another's
    ],
)
def test_what_may_pass_is_tried_again(
    statuses: list[int], makes: bool, uid: str | None, asked: int, tmp_path: Path
) -> None:
    api = Refusing(*statuses, makes=makes)
    launch = to_be_made(tmp_path, api)
    if uid is None:
        with pytest.raises(Exception, match="It is busy"):
            launch.make(lambda s: False)
    else:
        launch.make(lambda s: False)
        assert launch.uid == uid
    assert api.asked == asked


def test_a_start_that_is_given_up_while_it_tries_makes_nothing(tmp_path: Path) -> None:
    api = Refusing(503, makes=False)
    launch = to_be_made(tmp_path, api)
    launch.make(lambda s: True)
    assert api.asked == 1


def test_a_busy_api_server_does_not_end_a_start(tmp_path: Path) -> None:
    from_api = pytest.importorskip("jaxcluster.launchers.kube.api")
    api = FakeApi()

    def refuse(status: int) -> Any:
        def pods(launch: str) -> Any:
            raise from_api.Refused(status, Reason("Too many requests."))

        return pods

    launch = looked_after(tmp_path, api)
    api.pods = refuse(429)  # type: ignore[method-assign]
    assert launch.look() and (tmp_path / "waiting").read_text() == "Too many requests."
    api.pods = refuse(403)  # type: ignore[method-assign]
    with pytest.raises(from_api.Refused):
        launch.look()


def test_an_image_that_can_not_be_pulled_is_told_where_its_pod_says_only_that_it_is_tried_again(
    tmp_path: Path,
) -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "img"'}}
    one = pod(phase="Pending", containerStatuses=[{"name": "jaxcluster", "state": state}])
    api = FakeApi(one)
    why = 'Failed to pull image "img": rpc error: code = NotFound desc = img: not found'
    event = {"type": "Warning", "reason": "Failed", "message": why}
    api.events = lambda uid: [event]  # type: ignore[method-assign]
    with pytest.raises(Exception, match=r"The image img can't be pulled .*: not found"):
        looked_after(tmp_path, api).look()
