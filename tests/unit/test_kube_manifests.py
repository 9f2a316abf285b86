"""What becomes of a pod template and of labels in a launch's Job; what a file may not do."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.kubernetes import launcher as kube
from jaxcluster.launchers.kubernetes.launcher import LAUNCH, MADE_BY, SHM, Kubernetes

AGENT = AgentOptions("main", "ab" * 32, "python3", env=(("A", "ours"),))
MANAGED = next(iter(MADE_BY))
CONTAINER: dict[str, Any] = {
    "image": "theirs",
    "args": ["--of-the-image"],
    "env": [{"name": "A", "value": "theirs"}, {"name": "B", "value": "kept"}],
    "resources": {"limits": {"cpu": "1", "ephemeral-storage": "1Gi"}},
}


def pod_of(container: Any = CONTAINER, pod: Any = None, **more: Any) -> dict[str, Any]:
    """The pod template of the Job that is made of this container, with ``more`` beside it."""
    metadata = {"labels": {MANAGED: "theirs", "mine": "1"}, "annotations": {"note": "kept"}}
    found = {"metadata": metadata, "spec": {"containers": [container], **more}}
    text = json.dumps(found)
    wanted = Kubernetes(**{"template": text, **(pod or {})})
    made: dict[str, Any] = kube.job("n", 1, AGENT, wanted, 60)["spec"]["template"]
    return made


def test_what_a_template_has_stays_and_what_agents_need_is_added() -> None:
    made = pod_of(tolerations=[{"key": "gpu"}], hostIPC=True, pod={"cpu": "4"})
    assert made["metadata"]["annotations"] == {"note": "kept"}
    spec = made["spec"]
    assert (spec["tolerations"], spec["hostIPC"]) == ([{"key": "gpu"}], True)
    assert (spec["restartPolicy"], spec["subdomain"]) == ("Never", "n")
    (container,) = spec["containers"]
    assert container["image"] == "theirs"
    assert container["env"] == [{"name": "B", "value": "kept"}, {"name": "A", "value": "ours"}]
    assert container["resources"] == {
        "limits": {"cpu": "4", "ephemeral-storage": "1Gi"},
        "requests": {"cpu": "4"},
    }
    assert spec["volumes"] == [{"name": SHM["name"], "emptyDir": {"medium": "Memory"}}]


def test_the_agent_is_the_command_or_what_an_entry_point_ends_with() -> None:
    (container,) = pod_of()["spec"]["containers"]
    assert container["command"][:3] == ["python3", "-P", "-m"] and "args" not in container
    (container,) = pod_of({**CONTAINER, "command": ["/entry"]})["spec"]["containers"]
    assert container["command"] == ["/entry"] and container["args"][:3] == ["python3", "-P", "-m"]


def test_a_templates_own_shared_memory_and_nodes_are_kept() -> None:
    own = {"name": "big", "mountPath": "/dev/shm"}
    made = pod_of({**CONTAINER, "volumeMounts": [own]}, volumes=[{"name": "big", "emptyDir": {}}])
    assert made["spec"]["containers"][0]["volumeMounts"] == [own]
    assert made["spec"]["volumes"] == [{"name": "big", "emptyDir": {}}]
    named = [{"name": SHM["name"], "emptyDir": {"sizeLimit": "1Gi"}}]
    made = pod_of({**CONTAINER, "volumeMounts": [SHM]}, volumes=named)
    assert made["spec"]["volumes"] == named
    slice_ = {"tpu_type": "tpu-v5-lite-podslice", "tpu_topology": "2x2"}
    made = pod_of(nodeSelector={"zone": "a"}, pod=slice_)
    assert made["spec"]["nodeSelector"]["zone"] == "a" and len(made["spec"]["nodeSelector"]) == 3


def test_a_token_is_mounted_only_for_an_account_that_the_template_names() -> None:
    assert pod_of()["spec"]["automountServiceAccountToken"] is False
    assert pod_of(serviceAccountName="jax")["spec"]["automountServiceAccountToken"] is True


def test_the_labels_by_which_a_launch_is_found_are_nobody_elses() -> None:
    labels = pod_of(pod={"label": (f"{LAUNCH}=another's", "team=a")})["metadata"]["labels"]
    assert labels[LAUNCH] == "n" and labels[MANAGED] == "jaxcluster"
    assert (labels["team"], labels["mine"]) == ("a", "1")


def test_a_template_is_data(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "pod.yaml"
    file.write_text(f'kind: !!python/object/apply:os.mkdir ["{tmp_path}/made"]\nspec: {{}}\n')
    with pytest.raises(UsageError, match=r"pod.yaml is not a pod with a spec, in YAML: .*line 1"):
        kube.read_template(file)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: b: c", "is not a pod with a spec, in YAML: mapping values"),
        ("kind: Pod", "is not a pod with a spec"),
        ("spec: {containers: [{name: a}, {name: b}]}", "has 2 containers, and none is called"),
    ],
)
def test_a_template_that_is_no_pod_is_named(tmp_path: Path, text: str, said: str) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "pod.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"--pod-template {file} {said}"):
        kube.read_template(file)
    with pytest.raises(UsageError, match="can't be read: No such file"):
        kube.read_template(tmp_path / "none")
    file.write_text("metadata: {name: x, labels: {a: b}}\nspec: {containers: [{image: i}]}\n")
    kept = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"image": "i"}]}}
    assert json.loads(kube.read_template(file)) == kept


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({}, "needs an image"),
        ({"tpu_type": "t"}, "belong together"),
        ({"tpu_type": "t", "tpu_topology": "3x3", "tpu_chips": 4}, "has 9 chips, not a multiple"),
    ],
)
def test_what_would_be_misread_is_refused(pod: dict[str, Any], said: str) -> None:
    image = "i" if pod else ""
    with pytest.raises(UsageError, match=said):
        Kubernetes(image=image, **pod).render(AGENT, "/f")


def test_a_slice_has_a_pod_for_each_of_its_hosts() -> None:
    counts = {"2x2": 1, "4x4": 4, "2x1": 1}
    for topology, pods in counts.items():
        one = Kubernetes(image="i", tpu_type="t", tpu_topology=topology)
        assert one.render(AGENT, "/f").num_hosts == pods
    with pytest.raises(UsageError, match="has 4 hosts of 4 chips"):
        Kubernetes(pods=2, image="i", tpu_type="t", tpu_topology="4x4").render(AGENT, "/f")


@pytest.mark.skipif(find_spec("kubernetes") is None, reason="no client")
def test_a_notebook_in_a_pod_may_name_another_cluster() -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert Kubernetes(image="jax").prepared(environ).inside
    assert not Kubernetes(image="jax", context="other").prepared(environ).inside
    assert not Kubernetes(image="jax", kubeconfig="/f").prepared(environ).inside
