"""A cluster in pods: real agents in hosts' namespaces, the real client, an API server of the tests.

``rig.kube`` says what that proves: jaxcluster's part, and nothing of Kubernetes.
"""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers import until
from rig import HostNotebook, Rig
from rig.kube import Kube, listener_on, node_on

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_spec("kubernetes") is None, reason="no client"),
]
START = "%jaxcluster start --launcher kubernetes --image team/jax:1 --pods 2 --ranks-per-pod 2"
SUM = """%%spmd
import jax, jax.numpy as jnp, socket
from jax.experimental.multihost_utils import process_allgather
w = globals().get("w", jnp.full(3, 7.0))
print(float(process_allgather(jnp.float32(1 + jax.process_index())).sum()), float(w.sum()))
"""
IN_SUM = """%%spmd
import time
print("into the sum", flush=True)
if jax.process_index() == 1:
    time.sleep(1000)
print(float(process_allgather(jnp.float32(1)).sum()))
"""
DEADLINE_S = 120


def images(rig: Rig) -> dict[str, dict[str, str]]:
    env = {"PATH": f"{Path(rig.python).parent}:/usr/bin:/bin", "HOME": "/mnt", "LANG": "C.UTF-8"}
    return {"team/jax:1": {**env, "JAXCLUSTER_RUNTIME_DIR": "/mnt"}}


@pytest.fixture
def kube(hosts: Rig) -> Iterator[Kube]:
    """A cluster of the nodes h1 and h2, to which h0 has a kubeconfig."""
    nodes = [node_on(hosts[name]) for name in ("h1", "h2")]
    made = Kube(listener_on(hosts["h0"]), nodes, images(hosts))
    config = hosts["h0"].write("~/.kube/config", made.kubeconfig())
    try:
        yield made
    finally:
        made.close()
        config.unlink()
        config.parent.rmdir()


@pytest.fixture
def own_kube(hosts: Rig, tmp_path: Path) -> Iterator[Kube]:
    """The same with TLS, as pods find it; h0 is the pod notebook-0, with a service account."""
    address = hosts["h0"].address
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "9",
             "-subj", "/CN=kube", "-addext", f"subjectAltName=IP:{address}",
             "-keyout", str(key), "-out", str(cert)],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no openssl")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    nodes = [node_on(hosts[name]) for name in ("h1", "h2")]
    made = Kube(listener_on(hosts["h0"]), nodes, images(hosts), context)
    account = "/run/secrets/kubernetes.io/serviceaccount"
    for name, text in (("namespace", "team-a"), ("token", "t"), ("ca.crt", cert.read_text())):
        hosts["h0"].write(f"{account}/{name}", text)
    made.add("pods", "team-a", {
        "metadata": {"name": "notebook-0", "annotations": {}}, "spec": {}, "status": {"phase": "x"},
    })  # fmt: skip
    try:
        yield made
    finally:
        made.close()
        hosts["h0"].run("rm", "-r", "/run/secrets")


def check_whole(notebook: HostNotebook) -> None:
    cell = notebook.shown(SUM)
    assert not cell.error and cell.text.split() == ["10.0", "21.0"], cell.text


def run_course(notebook: HostNotebook) -> None:
    """What each launcher shows: hangs, the stop button, a rank's death, a restart."""
    check_whole(notebook)
    # A rank that skips a collective is named with its pod.
    cell = notebook.shown(SUM.replace("print(", "if jax.process_index() != 2:\n    print("))
    assert "Divergence" in cell.text and "Nothing was launched" in cell.text
    assert re.search(r"rank 2 \(jaxcluster-main-\w+-1\)", cell.text), cell.text
    # The others wait in a sum for one that never comes.
    cell = notebook.begin(IN_SUM)
    notebook.until(lambda: "into the sum" in cell.text, "the sum's begin", DEADLINE_S)
    notebook.press_stop()
    notebook.wait(cell, DEADLINE_S)
    assert cell.ename == "CellInterrupted", cell.text
    check_whole(notebook)
    # A rank is killed in a pod that goes on.
    cell = notebook.shown("%%spmd\nimport os\nif jax.process_index() == 3: os.kill(os.getpid(), 9)")
    assert "RankDied" in cell.text and "killed by SIGKILL on host jaxcluster-main-" in cell.text
    assert "rank 3 replaced" in cell.text, cell.text
    check_whole(notebook)
    assert "variables kept" in notebook.shown("%jaxcluster restart").text
    check_whole(notebook)


def end_of_all(kube: Kube, strangers: int = 0) -> None:
    """What the launches have made is gone."""
    until(
        lambda: not kube.all("jobs") and len(kube.all("pods")) == strangers, "all goes", DEADLINE_S
    )
    until(lambda: not kube.all("services"), "the Service goes", DEADLINE_S)


def test_through_port_forward_with_a_pod_that_is_evicted(
    kube: Kube, hosts: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    notebook = open_notebook()
    notebook.ok("%load_ext jaxcluster")
    told = notebook.shown(f"{START} --dry-run")
    assert "the Job ends at the latest" in told.text and not kube.requests
    assert "ranks 0-3" in notebook.shown(START).text
    assert any(path.endswith("/portforward") for _, path in kube.requests)
    (job,) = kube.all("jobs")
    assert job["spec"]["activeDeadlineSeconds"] == 86400
    run_course(notebook)

    # A node is drained while a cell computes: the reason is told, the Job's next pod is taken.
    source = "%%spmd\nimport time\nprint('going')\nfor i in range(900):\n    time.sleep(0.1)"
    cell = notebook.begin(source)
    notebook.until(lambda: "going" in cell.text, "it runs", DEADLINE_S)
    name = kube.evict(1, "EvictionByEvictionAPI", "Eviction API: evicting")
    notebook.wait(cell, DEADLINE_S)
    print(cell.text)
    assert "RankDied" in cell.text and "2, 3" in cell.text
    assert f"The pod {name} on the node node-h" in cell.text
    assert "EvictionByEvictionAPI: Eviction API: evicting" in cell.text
    assert "ranks 2, 3 replaced" in cell.text, cell.text
    check_whole(notebook)

    # Another notebook of this machine comes to the pods as it is: also to the one that is new.
    second = open_notebook()
    second.ok("%load_ext jaxcluster")
    assert "ranks 0-3" in second.shown("%jaxcluster attach main").text
    check_whole(second)
    second.close()
    assert "Stopped ranks 0-3" in notebook.shown("%jaxcluster stop").text
    end_of_all(kube)


def test_from_a_notebook_in_a_pod(
    own_kube: Kube, hosts: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    kube = own_kube
    port = kube.url.rpartition(":")[2]
    notebook = open_notebook(
        KUBERNETES_SERVICE_HOST=hosts["h0"].address,
        KUBERNETES_SERVICE_PORT=port,
        HOSTNAME="notebook-0",
    )
    notebook.ok("%load_ext jaxcluster")
    notebook.ok("from jaxcluster.launchers.kubernetes import launcher; launcher.TTL_S = 1")
    assert "ranks 0-3" in notebook.shown(START).text
    (job,) = kube.all("jobs")
    (owner,) = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Pod", "notebook-0")
    assert "activeDeadlineSeconds" not in job["spec"]
    assert not any(path.endswith("/portforward") for _, path in kube.requests)
    run_course(notebook)
    # The first host's agent dies, and JAX's coordinator with it: new ranks, one in another pod.
    kube.kill(0)
    cell = notebook.shown(SUM)
    assert "RankDied" in cell.text and "has ended: its agent" in cell.text
    check_whole(notebook)
    # The notebook's process is killed while its ranks wait for each other. Its pod goes on.
    cell = notebook.begin(IN_SUM)
    notebook.until(lambda: "into the sum" in cell.text, "the sum's begin", DEADLINE_S)
    notebook.kill()
    end_of_all(kube, strangers=1)
