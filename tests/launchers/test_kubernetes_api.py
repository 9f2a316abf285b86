"""What the kubernetes launcher asks for, before a real API server, where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rig.launches import refused
from rig.realkube import RealKube, what_is_missing

from jaxcluster.launchers.base import AgentOptions
from jaxcluster.launchers.kubernetes.launcher import Kubernetes, read_template

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("kubernetes") is None, reason="no client"),
]

TEMPLATE = {
    "metadata": {"annotations": {"note": "kept"}},
    "spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"zone": "a"}},
}
PODS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpus": {"cpu": "8", "mem": "64Gi", "gpus": 8, "label": ("team=a",)},
    "tpu": {"tpu_type": "tpu-v5-lite-podslice", "tpu_topology": "4x4"},
    "template": {"template": json.dumps(TEMPLATE)},
    "documented": {},
}


@pytest.fixture(scope="module")
def real() -> Iterator[RealKube]:
    if why := what_is_missing():
        pytest.skip(why)
    made = RealKube()
    yield made
    made.close()


@pytest.mark.parametrize("name", PODS)
def test_what_a_dry_run_prints_can_be_made_as_it_is(
    real: RealKube, name: str, tmp_path: Path
) -> None:
    """Objects and pods: validated strictly and admitted, by a user who has the documented role."""
    pods = None if name == "tpu" else 2
    options = PODS[name]
    if name == "documented":  # as Pod Security wants it
        text = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
        (tmp_path / "pod.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
        options = {"template": read_template(tmp_path / "pod.yaml")}
    launcher = Kubernetes(image="team/jax:1", pods=pods, kubeconfig="x", **options)
    job, service = launcher.render(AgentOptions("main", "PUBLIC-KEY", "python3"), "/f").objects
    strict = "?dryRun=All&fieldValidation=Strict"
    for plural, one in (("jobs", job), ("services", service)):
        assert real.ask("POST", real.path(plural) + strict, one, user="me")["metadata"]["uid"]
    if name == "documented":
        real.label(enforce="restricted")
    try:
        pod = {"metadata": {"name": "p"}, "spec": job["spec"]["template"]["spec"]}
        done = real.ask("POST", real.path("pods") + strict, pod)
        assert done["spec"]["containers"][0]["name"] == "jaxcluster"
    finally:
        real.label(enforce=None)


def test_what_it_refuses_is_told(real: RealKube, tmp_path: Path) -> None:
    def told(**options: Any) -> str:
        (tmp_path / "config").write_text(real.kubeconfig())
        launcher = Kubernetes(image="good", kubeconfig=str(tmp_path / "config"), **options)
        agent = AgentOptions("main", "PUBLIC-KEY", "python3")
        return refused(launcher.launch(launcher.render(agent, str(tmp_path))))

    assert "quantities must match" in told(cpu="many")
    assert "metadata.labels: Invalid value" in told(label=("a b=x",))
    assert "team-b" in told(namespace="team-b")
