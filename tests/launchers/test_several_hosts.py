"""Notebooks on two ssh hosts: several_hosts.ipynb, and one whose folder the hosts share."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import code_cells, read_document, text_under
from jupyter_client import AsyncKernelClient
from rig import HostNotebook, Rig, provided

PATH = Path(__file__).parents[2] / "notebooks/several_hosts.ipynb"
CELL_S = 90


def execute(notebook: HostNotebook) -> dict[str, str]:
    """What stands under its code cells, by their ids, after a run in ``notebook``'s kernel."""
    from nbclient import NotebookClient

    document = read_document(PATH)
    client = AsyncKernelClient()
    client.load_connection_info(notebook.manager.get_connection_info())
    client.start_channels()
    try:
        carrier = NotebookClient(document, km=notebook.manager, timeout=CELL_S, allow_errors=True)
        carrier.kc = client
        carrier.execute()
    finally:
        client.stop_channels()
    return {cell.id: text_under(cell) for cell in code_cells(document)}


@pytest.mark.quick
@pytest.mark.any_jax
@pytest.mark.timeout(240)
def test_the_notebook_of_several_hosts(
    ssh: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    shown = execute(open_notebook())
    where = [line for line in shown["where"].splitlines() if line.startswith("process")]
    hosts = ("h1", "h1", "h2", "h2")
    assert where == [f"process {rank} of 4 on {host}" for rank, host in enumerate(hosts)]
    holders = re.findall(r"rank (\d) \((h\d)\): CPU", shown["shards"])
    assert holders == [(str(rank), host) for rank, host in enumerate(hosts)]
    assert [shown[id].strip() for id in ("psum", "after-skip", "after-restart")] == ["496.0"] * 3
    assert "rank 2 (h2) ended the cell without the launch" in shown["skip"]
    assert "ranks 0, 1 (h1), 3 (h2) wait for" in shown["skip"]
    assert "if jax.process_index() != 2" in shown["skip"]
    assert "Nothing was launched." in shown["skip"]
    assert "496.0" in shown["pull"]
    assert "variables kept" in shown["restart"]
    assert "Stopped ranks 0-3" in shown["stop"]


@pytest.mark.any_jax
def test_modules_beside_the_notebook_are_found_in_a_folder_that_the_hosts_share(
    ssh: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    folder = Path(ssh.shared) / "project"
    folder.mkdir()
    try:
        (folder / "mine.py").write_text("import os\nplace = os.path.dirname(__file__)\n")
        # Nothing that a rank imports for itself comes from there.
        (folder / "json.py").write_text("raise RuntimeError('this is a module of the user')\n")
        notebook = open_notebook(directory=str(folder))
        notebook.ok("%load_ext jaxcluster\n%jaxcluster start --launcher ssh --hosts h1:1,h2:1")
        told = notebook.ok("%%spmd --all\nimport mine, os\nprint(mine.place, os.getcwd())").text
        assert f"{folder} {folder}" in told and "ranks 0, 1" in told
        notebook.close()
    finally:
        ssh["h0"].run("rm", "-r", str(folder))


@pytest.mark.any_jax
def test_hosts_with_ipv6_addresses_alone_make_a_cluster(
    ssh: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    with contextlib.ExitStack() as undone:
        provided(lambda: undone.enter_context(ssh.with_ipv6_alone()))
        notebook = open_notebook()
        notebook.ok("%load_ext jaxcluster\n%jaxcluster start --launcher ssh --hosts h1:1,h2:1")
        notebook.ok(
            "%%spmd\nimport jax\nfrom jax.experimental.multihost_utils import process_allgather\n"
            "total = float(process_allgather(jax.numpy.float32(1 + jax.process_index())).sum())"
        )
        assert "3.0" in notebook.ok("%pull total\ntotal").text
        client = "import jaxcluster\njaxcluster.current().client[:].apply_sync(lambda: 7)"
        assert "[7, 7]" in notebook.ok(client).text
        assert "Stopped ranks 0, 1" in notebook.ok("%jaxcluster stop").text
        notebook.close()
