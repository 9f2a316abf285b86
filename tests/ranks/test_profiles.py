"""A cluster by a profile, in a real kernel: told, started, and found by the second start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import Notebook

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("its profile is one of this machine"),
]

MINE = """\
[profile.small]
num-processes = 2
devices-per-process = 2
env = { MINE = "a b", MY_TOKEN = "hush" }
"""


def test_a_notebook_starts_its_cluster_by_a_profile(
    open_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    mine = tmp_path / "config/jaxcluster/jaxcluster.toml"
    mine.parent.mkdir(parents=True)
    mine.write_text(MINE)
    (tmp_path / "jaxcluster.toml").write_text('default = "odd"\n[profile.odd]\nn = 3\n')
    notebook = open_notebook(XDG_CONFIG_HOME=str(tmp_path / "config"))
    # The file beside the notebook is told, and not taken.
    planned = notebook.ok("%jaxcluster start -n 1 --dry-run").text
    assert planned.startswith(f"Note: {tmp_path}/jaxcluster.toml:1 proposes a profile")
    assert "cluster 'main': 1 process on 1 host" in planned
    listed = notebook.ok("%jaxcluster profiles").text
    assert f"small    {mine}:1" in listed
    assert "hush" not in listed
    reply = notebook.ask("complete", "%jaxcluster start --profile sm")
    assert reply["matches"] == ["small"]
    assert "--profile NAME" in notebook.ok("%jaxcluster start?").text
    started = notebook.ok("%jaxcluster start --profile small").text
    told, summary = started.splitlines()
    assert told == (
        f"Profile 'small' ({mine}:1): -n 2 --devices-per-process 2 --env 'MINE=a b' "
        "--env MY_TOKEN=..."
    )
    assert summary.startswith("Cluster 'main': ranks 0, 1, 2 cpu devices per rank (4 in all")
    assert summary.endswith(", by profile 'small'.")
    shown = notebook.ok(
        "%%spmd --all\nimport jax, os\nprint(jax.device_count(), os.environ['MINE'])"
    )
    assert "4 a b" in shown.text
    again = notebook.ok("%jaxcluster start --profile small").text
    assert again.endswith("Cluster 'main' is already running (2 ranks, variables kept).\n")
    wrong = notebook.run("%jaxcluster start --profile smal")
    assert wrong.ename == "UsageError"
    assert "did you mean small?" in wrong.error
