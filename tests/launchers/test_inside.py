"""A notebook whose kernel runs in an allocation: what is offered, and what ``auto`` takes."""

from __future__ import annotations

import pytest
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax

WHERE = """%%spmd --all
import jax, socket
print(jax.process_index(), socket.gethostname())
"""
IN_JOB = ("salloc", "--quiet", "--nodes=2", "--ntasks=3")
IN_STEP = ("srun", "--quiet", "--nodes=1", "--ntasks=1", "--overlap", "--unbuffered")


def ranks(notebook: HostNotebook) -> list[str]:
    """Each rank's number, as JAX has it, and its host."""
    notebook.ok(WHERE)
    n = "len(jaxcluster.current().last.records)"
    said = notebook.ok(
        f"import jaxcluster; print(*[jaxcluster.current().last.stdout(r) for r in range({n})])"
    )
    return [" ".join(line.split()) for line in said.text.splitlines() if line.strip()]


def test_a_notebook_in_a_slurm_allocation_is_offered_it_and_auto_takes_it(slurm: Rig) -> None:
    """On the login node, in ``salloc``; the ranks are where srun would have its tasks."""
    tasks = slurm["h0"].run(*IN_JOB, "srun", "sh", "-c", "echo $SLURM_PROCID $(hostname)").stdout
    notebook = HostNotebook(slurm["h0"], inside=IN_JOB)
    try:
        notebook.ok("%load_ext jaxcluster")
        said = notebook.ok("%jaxcluster start -n 1 --platform cpu", 100).text
        assert "This notebook runs in Slurm's job" in said and "(2 nodes, 3 tasks)" in said
        assert "To use it: %jaxcluster start --launcher slurm" in said
        notebook.ok("%jaxcluster stop")
        said = notebook.ok("%jaxcluster start --launcher auto --timeout 90", 100).text
        assert "ranks 0-2" in said and "This notebook runs in" not in said
        assert ranks(notebook) == sorted(line.strip() for line in tasks.splitlines())
        assert notebook.ok("!squeue --noheader | wc -l").text.strip() == "1"  # no second job
        notebook.ok("%jaxcluster stop")
    finally:
        notebook.close()


def test_a_notebook_in_a_step_takes_all_of_its_job_with_its_gpus(slurm: Rig) -> None:
    """On a node, as a job's task of its own: the step says one task, the job has two nodes.

    Slurm's GPUs are empty devices here: what it sets is real, and no rank computes on them.
    """
    job = ("salloc", "--quiet", "--nodes=2", "--ntasks=2", "--gres=gpu:2")
    notebook = HostNotebook(slurm["h0"], inside=(*job, *IN_STEP))
    try:
        notebook.ok("%load_ext jaxcluster\nimport jaxcluster")
        assert notebook.ok("!hostname").text.strip() == "h1"
        notebook.ok("%jaxcluster start --launcher auto --platform cpu --timeout 90", 100)
        assert ranks(notebook) == ["0 h1", "1 h2"]
        said = notebook.ok("%%spmd --all\nimport os; print(os.environ['CUDA_VISIBLE_DEVICES'])")
        assert "── ranks 0, 1 ──\n0,1\n" in said.text
        told = notebook.ok("[f.gpus for f in jaxcluster.current().record.facts]").result
        assert told == "[['0', '1'], ['0', '1']]"
        notebook.ok("%jaxcluster stop")
    finally:
        notebook.close()
