"""Kubernetes' manifests, held against its own schemas; pod templates; what its words mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.allocation import remote
from jaxcluster.arguments import start_parser, taken_from
from jaxcluster.cluster import make_spec
from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import AgentOptions, Command, End, Launcher
from jaxcluster.launchers.commands import Launch, stop_s
from jaxcluster.launchers.factory import launcher_of
from jaxcluster.launchers.kube import reasons, template
from jaxcluster.launchers.kube.launcher import LOGIN, TOLD, Kubernetes, seconds_of
from jaxcluster.launchers.kube.manifests import Pod, name_of
from jaxcluster.supervision import guard

GONE_WRONG = ["The Job x could not be deleted. Why.", "kubectl -n a delete job x"]
AGENT = AgentOptions("My_Cluster", "ab" * 32, "python3", env=(("A", "$(HOME) $$x"),))
FULL = Pod(
    "team/jax:1", "500m", "64Gi", 8, (("rdma/ib", "1"),),
    labels=(("kueue.x-k8s.io/queue-name", "q"),), service_account="jax",
)  # fmt: skip
TPU = Pod("team/jax:1", tpu="tpu-v5-lite-podslice", topology="4x8")
RENDERED = {
    "least": Kubernetes(pod=Pod("jax")),
    "full": Kubernetes(4, 2, pod=FULL, deadline_s=60),
    "tpu": Kubernetes(pod=TPU),
    "template": Kubernetes(
        pod=Pod(
            "jax",
            template=json.dumps(
                template.checked(
                    {
                        "kind": "Pod",
                        "metadata": {"name": "dropped", "labels": {"a": "b"}},
                        "spec": {"priorityClassName": "high", "tolerations": []},
                    },
                    "f",
                )
            ),
        ),
        inside=True,
    ),
}


def made(launcher: Kubernetes, what: str) -> dict[str, Any]:
    plan = launcher.render(AGENT, "/f")
    (text,) = [file.text for file in plan.files if file.path == f"/f/{what}.json"]
    return dict(json.loads(text))


@pytest.mark.parametrize("version", ["1.27", "1.33"])
@pytest.mark.parametrize("name", RENDERED)
def test_manifests_are_what_kubernetes_own_schemas_ask_for(name: str, version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for what in ("job", "service"):
        validate.validate(made(RENDERED[name], what), version, strict=True)


def test_the_schemas_refuse_a_field_that_is_none() -> None:
    validate = pytest.importorskip("kubernetes_validate")
    job = made(RENDERED["full"], "job")
    job["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.30", strict=True)


def test_the_agents_container_has_its_name_whatever_a_template_calls_it() -> None:
    """Its log and its state are asked for by that name."""
    spec = {"containers": [{"name": "main", "image": "i", "workingDir": "/w"}]}
    text = json.dumps(template.checked({"kind": "Pod", "spec": spec}, "f"))
    (container,) = made(Kubernetes(pod=Pod(template=text)), "job")["spec"]["template"]["spec"][
        "containers"
    ]
    assert (container["name"], container["workingDir"]) == ("jaxcluster", "/w")


@pytest.mark.parametrize(("wait_s", "lease"), [(60.0, "600"), (7260.0, "7260")])
def test_the_first_agent_waits_for_the_last_as_long_as_the_start(wait_s: float, lease: str) -> None:
    plan = Kubernetes(pod=Pod("jax")).render(replace(AGENT, first_lease_s=wait_s), "/f")
    assert f'"--first-lease={lease}"' in plan.files[0].text
    spec = make_spec(2, platform="cpu", timeout_s=wait_s)
    assert remote._agent_options(spec, "k", "python3").first_lease_s > wait_s


def test_names_and_words_are_kubernetes_own() -> None:
    job = made(RENDERED["full"], "job")
    name = job["metadata"]["name"]
    assert name.startswith("jaxcluster-my-cluster-") and len(f"{name}-1000") <= 63
    assert name != name_of(AGENT, "/g") != name_of(AgentOptions("My_Cluster", "x", "p"), "/g")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {"name": "A", "value": "$$(HOME) $$$$x"} in container["env"]  # it reads $(NAME) and $$
    assert container["command"][:4] == ["python3", "-P", "-m", "jaxcluster.agent"]
    assert len(name_of(AgentOptions("___" * 90, "x", "p"), "/g")) < 60


def test_no_secret_is_in_what_others_can_read() -> None:
    plan = RENDERED["full"].render(AGENT, "/f")
    assert all("secret" not in file.text.lower() for file in plan.files)


def test_a_pod_has_no_token_but_with_an_account_of_its_user_s() -> None:
    spec = made(RENDERED["least"], "job")["spec"]["template"]["spec"]
    assert spec["automountServiceAccountToken"] is False
    spec = made(RENDERED["full"], "job")["spec"]["template"]["spec"]
    assert "automountServiceAccountToken" not in spec and spec["serviceAccountName"] == "jax"


def test_a_deadline_is_there_where_no_pod_owns_the_job() -> None:
    assert made(RENDERED["least"], "job")["spec"]["activeDeadlineSeconds"] == 86400
    assert made(RENDERED["full"], "job")["spec"]["activeDeadlineSeconds"] == 60
    assert "activeDeadlineSeconds" not in made(RENDERED["template"], "job")["spec"]


def test_a_tpu_slice_has_a_pod_for_each_of_its_hosts() -> None:
    job = made(RENDERED["tpu"], "job")
    assert job["spec"]["completions"] == 8
    spec = job["spec"]["template"]["spec"]
    assert spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x8"
    assert spec["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert (
        made(Kubernetes(pod=Pod("j", tpu="t", topology="1x1")), "job")["spec"]["completions"] == 1
    )


# -- options


def started(line: str) -> Launcher:
    parsed = start_parser("%jaxcluster start").read(line)
    launcher, _ = launcher_of(parsed.launcher, taken_from(parsed), parsed.num_processes)
    assert launcher is not None
    return launcher


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("", "needs an image"),
        ("--image 'a b'", "--image can't be 'a b'"),
        ("--image i --mem 64GB", "--mem '64GB' is not a Kubernetes quantity"),
        ("--image i --cpu much", "--cpu 'much' is not a Kubernetes quantity"),
        ("--image i --gpus 0", "--gpus must be a whole number from 1 up"),
        ("--image i --label a", "--label: 'a' is not of the form NAME=VALUE"),
        ("--image i --label a=b/c", "--label a=b/c is not a Kubernetes label"),
        ("--image i --label jaxcluster/launch=x", "the launcher sets it"),
        ("--image i --resource a=many", "is not a device and a number"),
        ("--image i --resource a", "--resource: 'a' is not of the form NAME=N"),
        ("--image i --tpu-type v5", "--tpu-type and --tpu-topology belong together"),
        ("--image i --tpu-type v5 --tpu-topology 4by4", "--tpu-topology can't be '4by4'"),
        ("--image i --tpu-chips 4", "--tpu-chips needs --tpu"),
        (
            "--image i --tpu-type v5 --tpu-topology 4x4 --tpu-chips 3",
            "a multiple of --tpu-chips 3",
        ),
        ("--image i --tpu-type v5 --tpu-topology 4x4 --pods 3", "has 4 hosts of 4 chips"),
        ("--image i --namespace Team_A", "--namespace can't be 'Team_A'"),
        ("--image i --service-account Me", "--service-account can't be 'Me'"),
        ("--image i --time soon", "--time 'soon' is not a time"),
        ("--image i --pods 2 -n 3", "3 ranks can't be shared out evenly among 2 pods"),
        ("--image i --nodes 2", "--launcher kubernetes does not know --nodes"),
    ],
)
def test_bad_options_get_one_clear_error(options: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        started(f"--launcher kubernetes {options}").render(AGENT, "/f")
    assert told in str(caught.value)
    assert (
        "For example" in caught.value.hint or "Leave out" in caught.value.hint or caught.value.hint
    )


@pytest.mark.parametrize(("text", "s"), [("2:00:00", 7200), ("90m", 5400), ("1-0:0:1", 86401)])
def test_times(text: str, s: int) -> None:
    assert seconds_of(text) == s


# -- templates


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Deployment\nspec: {}", "is not a pod: its kind is Deployment"),
        ("- a\n- b", "is not a pod: it is a list"),
        ("just words", "is not a pod: it is text"),
        ("a: b: c", "line 1"),
        ("kind: Pod\nspec:\n\t- x", "line 3"),
        ("", "has 0 documents"),
        ("kind: Pod\nspec: {}\n---\nkind: Pod\nspec: {}", "has 2 documents"),
        ("kind: Pod", "it has no spec"),
        ("kind: PodTemplate\nspec: {}", "it has no spec"),
        ("kind: Pod\nspec: {}\nstuff: 1", "a pod has no field 'stuff'"),
        ("kind: Pod\nspec: {restartPolicy: Always}", "sets restartPolicy, which the launcher sets"),
        ("kind: Pod\nspec: {containers: {a: b}}", "its containers are not a list of containers"),
        ("kind: Pod\nspec: {containers: [{name: a}, {name: b}]}", "none is called 'jaxcluster'"),
        ("kind: Pod\nmetadata: [1]\nspec: {}", "its metadata are a list"),
        ("kind: Pod\nspec: {volumes: {}, tolerations: x}", "its tolerations are text"),
    ],
)
def test_a_template_that_is_no_pod(tmp_path: Path, text: str, told: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        template.read(path)
    assert told in str(caught.value) and str(path) in str(caught.value)


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(UsageError, match="can't be read: No such file"):
        template.read(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="can't be read: it is not text"):
        template.read(tmp_path / "bytes")


# -- what it says


def pod(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p-0-x", "uid": "u", "annotations": {reasons.INDEX: "0"}},
            "spec": {}, "status": status}  # fmt: skip


def waiting(reason: str, message: str = "") -> Mapping[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(phase="Pending", containerStatuses=[{"name": "jaxcluster", "state": state}])


def ended(reason: str = "Error", code: int = 1, message: str = "") -> Mapping[str, Any]:
    state = {"terminated": {"reason": reason, "exitCode": code, "message": message}}
    return pod(phase="Failed", containerStatuses=[{"name": "jaxcluster", "state": state}])


def forbidden(verb: str, resource: str, group: str) -> str:
    return json.dumps({
        "message": f'{resource} is forbidden: User "system:serviceaccount:team-a:nb" cannot {verb} '
        f'resource "{resource}" in API group "{group}" in the namespace "team-a"'
    })  # fmt: skip


@pytest.mark.parametrize(
    ("status", "body", "told", "hint"),
    [
        (
            403,
            forbidden("create", "jobs", "batch"),
            "system:serviceaccount:team-a:nb may not create jobs.batch in the namespace team-a, "
            "so jaxcluster can't make the Job.",
            "--verb=create --resource=jobs.batch && kubectl -n team-a create rolebinding "
            "jaxcluster-jobs --role=jaxcluster-jobs --serviceaccount=team-a:nb",
        ),
        (403, forbidden("get", "pods/log", ""), "may not get pods/log in", "--resource=pods/log"),
        (
            403,
            '{"message": "jobs.batch \\"x\\" is forbidden: exceeded quota: q, requested: count=1"}',
            "A quota of the namespace team-a does not let jaxcluster make the Job.",
            "describe quota",
        ),
        (404, '{"message": "namespaces \\"team-a\\" not found"}', "There is no namespace team-a",
         "--namespace NAME"),
        (401, '{"message": "Unauthorized"}', "does not know this user", "Log in again"),
        (400, '{"message": "strict decoding error: unknown field \\"spec.x\\""}',
         "does not know a field of the pod", "--pod-template"),
        (422, '{"message": "Job is invalid: image: Required"}', "did not make the Job",
         "--dry-run"),
        (500, "<html>oops", '(status 500). It says: "<html>oops"', "Try again"),
        (403, forbidden("create", "jobs", "batch").replace("serviceaccount:team-a:nb", "anonymous"),
         "does not know this user. The kubeconfig's login failed: no aws. It says", "Log in again"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_missing(status: int, body: str, told: str, hint: str) -> None:
    login = "no aws." if "anonymous" in body else ""
    reason = reasons.refusal(status, body, "make the Job", "team-a", login)
    assert told in reason.message and hint in reason.hint


def test_a_pod_that_waits_says_why() -> None:
    unschedulable = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    }  # fmt: skip
    assert reasons.why_pending(pod(phase="Pending", conditions=[unschedulable])) == (
        "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu"
    )
    assert reasons.why_pending(waiting("ImagePullBackOff", "Back-off pulling")) == (
        "ImagePullBackOff: Back-off pulling"
    )
    events = [
        {"type": "Normal", "reason": "Pulling", "lastTimestamp": "2026-01-01T00:00:01Z"},
    ]
    assert reasons.why_pending(waiting("ContainerCreating"), events) == "its image is being pulled"
    events += [
        {
            "type": "Warning",
            "reason": "FailedMount",
            "message": "no volume",
            "eventTime": "2026-02",
        },
        {"type": "Warning", "reason": "Older", "message": "x", "lastTimestamp": "2025-01"},
    ]
    assert reasons.why_pending(waiting("ContainerCreating"), events) == "FailedMount: no volume"
    assert reasons.why_pending(pod(phase="Pending")) == "it has not been scheduled yet"


def test_a_job_without_pods_says_why() -> None:
    job = {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}, "spec": {"suspend": True}}
    event = {"type": "Normal", "message": "waiting for 8 GPUs", "lastTimestamp": "2026"}
    assert reasons.why_no_pods(job, []) == "the Job waits in the queue q"
    assert reasons.why_no_pods(job, [event]).endswith("the queue q: waiting for 8 GPUs")
    quota = {"type": "Warning", "reason": "FailedCreate", "message": "exceeded quota: gpus"}
    job = {"metadata": {}, "spec": {}}
    assert reasons.why_no_pods(job, [quota]) == "FailedCreate: exceeded quota: gpus"


@pytest.mark.parametrize(
    ("why", "hint"),
    [
        ('FailedCreate: pods "x" is forbidden: violates PodSecurity "restricted:latest": ...',
         "securityContext"),
        ("FailedCreate: pods is forbidden: failed quota: q: must specify limits.cpu for: main",
         "--cpu 4 --mem 16Gi"),
        ('FailedCreate: admission webhook "w" denied the request: no team label', "--pod-template"),
        ("FailedCreate: exceeded quota: gpus, requested: 8", None),
        ("FailedCreate: exceeded quota: q, requested: requests.cpu=4,pods=1, used: "
         "requests.cpu=9,pods=1, limited: requests.cpu=10,pods=9", None),
        ("FailedCreate: exceeded quota: q, requested: requests.memory=16Gi,pods=1, used: "
         "requests.memory=0,pods=1, limited: requests.memory=8Gi,pods=9",
         "asks for 16Gi of requests.memory, and the quota is 8Gi for all"),
        ("FailedCreate: exceeded quota: q, requested: cpu=1500m, used: cpu=0, limited: cpu=1",
         "asks for 1500m of cpu"),
        ('FailedCreate: pods "x" is forbidden: error looking up service account team-a/jax: '
         'serviceaccount "jax" not found', "--service-account NAME"),
        ('FailedCreate: pods "x" is forbidden: error looking up service account team-a/default: '
         'serviceaccount "default" not found', None),
        ('FailedCreate: pods "x" is forbidden: no PriorityClass with name high was found',
         "kubectl get priorityclasses"),
        ('FailedCreate: pods "x" is forbidden: maximum cpu usage per Container is 2, but limit '
         "is 4", "--cpu 2"),
        ('FailedCreate: Pod "x" is invalid: spec.containers[0].env[0].name: Required value',
         "--pod-template"),
        ('FailedCreate: Internal error occurred: failed calling webhook "w": timeout', None),
        ("the Job waits in the queue q", None),
        ("", None),
    ],
)  # fmt: skip
def test_pods_that_are_refused_are_not_waited_for(why: str, hint: str | None) -> None:
    reason = reasons.never_made(why)
    assert (reason is None) == (hint is None)
    assert reason is None or (hint in reason.hint and why in reason.message)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (waiting("ImagePullBackOff", "pull access denied for team/jax"), "can't be pulled"),
        (waiting("ErrImagePull", "failed: manifest unknown"), "can't be pulled"),
        (waiting("InvalidImageName", "couldn't parse"), "is not the name of an image"),
        (waiting("CreateContainerConfigError", 'secret "s" not found'), "can't start"),
        (waiting("RunContainerError", 'exec: "python9": executable file not found in $PATH'),
         "There is no Python python9 in the image img"),
        (waiting("ErrImagePull", "i/o timeout"), None),
        (waiting("ContainerCreating"), None),
    ],
)  # fmt: skip
def test_what_can_never_run_is_told_at_once(one: Mapping[str, Any], told: str | None) -> None:
    reason = reasons.never_runs(one, "img")
    assert (told is None and reason is None) or (reason is not None and str(told) in reason.message)


def test_ends_of_pods() -> None:
    disrupted = {
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": "preempted by pod x.",
    }  # fmt: skip
    assert reasons.why_ended(pod(phase="Failed", conditions=[disrupted])) == (
        "it was preempted by a pod of higher priority (PreemptionByScheduler: preempted by pod x)"
    )
    assert reasons.why_ended(pod(reason="Evicted", message="low on memory.")) == (
        "Evicted: low on memory"
    )
    assert "OOMKilled" in reasons.why_ended(ended("OOMKilled", 137))
    assert reasons.why_ended(ended(code=137)) == "its agent was ended by signal 9"
    assert reasons.why_ended(ended(code=3)) == "its agent ended with code 3"
    assert reasons.why_ended(None) == "it was deleted"


def test_pods_that_start_no_agent() -> None:
    found = reasons.why_failed(ended(), ["x", "No module named 'jaxcluster'"], "img", "python3")
    assert found.message.startswith("python3 in the image img has no jaxcluster.")
    message = 'exec: "python9": executable file not found in $PATH: unknown'
    found = reasons.why_failed(ended("StartError", 128, message), [], "img", "python9")
    assert found.message.startswith("There is no Python python9 in the image img.")
    found = reasons.why_failed(ended(), ["boom"], "img", "python3")
    assert found.message.endswith('its agent ended with code 1. Its last line: "boom"')


def test_ends_of_jobs() -> None:
    def job(kind: str, reason: str) -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": "True", "reason": reason}]}}

    deadline = reasons.job_end(job("Failed", "DeadlineExceeded"))
    assert deadline is not None and "--time" in deadline.hint
    assert reasons.job_end(job("Complete", "")) is not None
    assert reasons.job_end({"status": {}}) is None


@pytest.mark.parametrize(
    ("cancelled", "errors", "told"),
    [
        (1, (json.dumps({TOLD: ["No.", "x"]}), json.dumps({TOLD: GONE_WRONG})), GONE_WRONG),
        (0, (json.dumps({TOLD: GONE_WRONG}),), None),  # the second try has deleted it
        (-9, (), ["A Job of this start may be left over: the process that deletes it was ended by "
"signal 9.", "kubectl get jobs -l app.kubernetes.io/managed-by=jaxcluster"]),
        (None, (json.dumps({TOLD: GONE_WRONG}),), GONE_WRONG),
        (0, (), None),
        (None, (), None),
    ],
)  # fmt: skip
def test_a_job_that_is_left_is_told(
    cancelled: int | None, errors: tuple[str, ...], told: list[str] | None
) -> None:
    launcher = Kubernetes(pod=Pod("jax"))
    end = End(launcher.render(AGENT, "/f").commands[0], 0, errors)
    reason = launcher.left_behind(end, cancelled)
    assert (None if reason is None else [reason.message, reason.hint]) == told


def test_a_stop_tells_of_a_job_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    launcher = Kubernetes(pod=Pod("jax"))
    said, told = json.dumps({"jaxcluster-agent": 1, "host": "h"}), json.dumps({TOLD: GONE_WRONG})
    script = 'echo "$1"; read x; echo "$2" >&2'
    command = Command(
        ("sh", "-c", script, "sh", said, told), (0,), keeps_stdin=True, cancel=("false",)
    )
    plan = replace(launcher.render(AGENT, "/f"), commands=(command,), files=())
    launch = Launch(launcher, plan)
    launch.start(60)
    launch.stop()
    assert capsys.readouterr().err.splitlines() == GONE_WRONG


def test_a_command_that_is_slow_to_end_is_not_cut_off() -> None:
    command = Kubernetes(pod=Pod("jax")).render(AGENT, "/f").commands[0]
    assert stop_s(command) > command.stdin_s + command.term_s + guard.CANCEL_S


def test_what_the_process_tells_is_the_explanation() -> None:
    launcher = Kubernetes(pod=Pod("jax"))
    command = launcher.render(AGENT, "/f").commands[0]
    errors = ("warning", json.dumps({TOLD: ["No way.", "Try."]}), "later")
    reason = launcher.explain(End(command, 1, errors))
    assert (reason.message, reason.hint) == ("No way.", "Try.")
    assert "ended with code 1" in launcher.explain(End(command, 1, ("boom",))).message
    waits = launcher.explain(End(command, None, evidence=("1 of 2 pods wait: x",)))
    assert waits.message == "Kubernetes: 1 of 2 pods wait: x."
    waits = launcher.explain(End(command, None, evidence=(LOGIN,)))
    assert "login has not answered" in waits.message and "in a terminal" in waits.hint
