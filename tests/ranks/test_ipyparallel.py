"""What ipyparallel sees of a cluster: engines by rank, and its own interfaces beside ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import python, until

import jaxcluster

pytestmark = pytest.mark.any_jax


@pytest.fixture(scope="module")
def client(cluster: jaxcluster.Cluster) -> Iterator[Any]:
    yield cluster.client
    cluster._close_client()


def test_engine_ids_are_ranks(cluster: jaxcluster.Cluster, client: Any) -> None:
    assert client.ids == [0, 1, 2, 3]
    view = client[:]
    view.execute("import os, jax\nwho = os.getpid(), jax.process_index()", block=True)
    who = view.pull("who", block=True)
    assert who == [(pid, rank) for rank, pid in enumerate(cluster.record.pids)]


def test_the_client_is_made_once(cluster: jaxcluster.Cluster, client: Any) -> None:
    assert cluster.client is client


def test_both_work_on_the_same_names(cluster: jaxcluster.Cluster, client: Any) -> None:
    cluster.run("ours = rank + 1")
    assert client[:].pull("ours", block=True) == [1, 2, 3, 4]
    client[2].push({"theirs": "from ipyparallel"}, block=True)
    record = cluster.run("print(theirs)", ranks=[2], show=False)
    assert record.stdout(2) == "from ipyparallel\n"


def test_what_ipyparallel_runs_prints_to_ipyparallel(client: Any) -> None:
    result = client[:].execute("print('printed by', rank)", block=True)
    until(lambda: all(result.stdout), "the output has come")
    assert result.stdout == [f"printed by {r}\n" for r in range(4)]


def test_our_cells_stay_ours(cluster: jaxcluster.Cluster, client: Any) -> None:
    record = cluster.run("print('ours again')\nrank", show=False)
    assert record.stdout(3) == "ours again\n"
    assert record.result(3) == {"text/plain": "3"}


def test_the_cluster_is_in_ipyparallels_own_list(cluster: jaxcluster.Cluster) -> None:
    path = Path(cluster.record.cluster_file)
    saved = json.loads(path.read_text())
    assert saved["cluster"]["cluster_id"].startswith("jaxcluster-shared-")
    done = python("-m", "ipyparallel.cluster", "list")
    assert done.returncode == 0, done.stderr
    assert "jaxcluster-shared" in done.stdout


def test_a_client_in_another_process_finds_the_engines(cluster: jaxcluster.Cluster) -> None:
    cluster_id = Path(cluster.record.cluster_file).stem.removeprefix("cluster-")
    done = python(
        "-c",
        "import ipyparallel\n"
        f"client = ipyparallel.Client(cluster_id={cluster_id!r})\n"
        "client.wait_for_engines(4, timeout=60)\n"
        "print(client.ids, client[:].apply_sync(lambda: 1 + 1))",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3] [2, 2, 2, 2]\n"


def test_a_cluster_that_has_ended_leaves_the_list_of_who_knew_it(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    """As in a Jupyter server, which lists the clusters of kernels that come and go."""
    from ipyparallel.cluster import ClusterManager

    manager = ClusterManager()

    def listed() -> list[str]:
        manager.load_clusters()
        return [key for key, known in manager.clusters.items() if "-ending-" in key]

    running = start(name="ending")
    assert len(listed()) == 1
    running.stop()
    assert listed() == []
