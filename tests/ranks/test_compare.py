"""An expression's value on every rank, equal ones once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import Notebook

import jaxcluster
from jaxcluster.errors import CellFailed

pytestmark = pytest.mark.any_jax


def groups(cluster: jaxcluster.Cluster, expression: str) -> list[tuple[tuple[int, ...], str]]:
    return [(group.ranks, group.look.text) for group in cluster.compare(expression).groups]


ALL = (0, 1, 2, 3)


def test_equal_values_come_once_with_their_ranks(cluster: jaxcluster.Cluster) -> None:
    cluster.run("rate = 0.5\nown = {'rank': rank // 2, 'w': np.arange(3)}", show=False)
    assert groups(cluster, "rate") == [(ALL, "0.5")]
    assert cluster.compare("rate").equal
    assert groups(cluster, "None") == [(ALL, "None")]
    assert groups(cluster, "rank // 2") == [((0, 1), "0"), ((2, 3), "1")]
    assert [ranks for ranks, _ in groups(cluster, "own")] == [(0, 1), (2, 3)]
    assert not cluster.compare("own").equal
    assert [ranks for ranks, _ in groups(cluster, "None if rank else 1")] == [(0,), (1, 2, 3)]


def test_what_is_not_shown_of_a_value_counts_too(cluster: jaxcluster.Cluster) -> None:
    cluster.run("big = np.zeros(100_000)\nbig[50_000] = rank == 2", show=False)
    found = cluster.compare("big")
    assert [group.ranks for group in found.groups] == [(0, 1, 3), (2,)]
    assert len({group.look.text for group in found.groups}) == 1
    assert cluster.compare("big[:50_000]").equal


def test_a_long_text_is_cut_on_the_rank(cluster: jaxcluster.Cluster) -> None:
    (group,) = cluster.compare("'a' * 10_000_000").groups
    assert group.look.cut_chars > 9_000_000
    assert len(group.look.text) == 4_000


def test_arrays_that_span_ranks_are_compared_by_their_copies(cluster: jaxcluster.Cluster) -> None:
    cluster.run(
        "whole = jax.make_array_from_callback((4,), NamedSharding(mesh, P()), "
        "lambda i: np.full(4, 7.0 + (rank == 3))[i])\n"
        "rows = jax.make_array_from_callback((4, 2), NamedSharding(mesh, P(None, 'j')), "
        "lambda i: np.full((4, 2), float(rank == 1))[i])",
        show=False,
        on_notice=lambda told: None,
    )
    before = {rank: one.state.launches for rank, one in cluster.reports().items()}
    assert cluster.compare("x").equal
    assert "over several ranks" in groups(cluster, "x")[0][1]
    assert [ranks for ranks, _ in groups(cluster, "whole")] == [(0, 1, 2), (3,)]
    assert "8." in groups(cluster, "whole")[1][1]
    found = cluster.compare("{'rows': rows}")
    assert not found.equal
    assert found.odd == ("Rank 1 has other copies of it than ranks 0, 2, 3.",)
    after = {rank: one.state.launches for rank, one in cluster.reports().items()}
    assert after == before  # nothing was launched


def test_an_expression_may_launch_what_it_likes(cluster: jaxcluster.Cluster) -> None:
    assert groups(cluster, "float(jnp.sum(x))") == [(ALL, "496.0")]


def test_an_error_on_some_ranks_is_a_cells(cluster: jaxcluster.Cluster) -> None:
    with pytest.raises(CellFailed, match="ZeroDivisionError on rank 0"):
        cluster.compare("1 / rank")


@pytest.mark.one_machine("what a notebook shows is the same")
def test_a_notebook_shows_a_table(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2 --platform cpu")
    notebook.ok("%%spmd\nimport jax\nrank = jax.process_index()")
    cell = notebook.ok("%jaxcluster compare [print('seen'), rank][1]")
    assert cell.stdout == "seen\n"
    (bundle,) = cell.bundles
    assert bundle["text/plain"].splitlines() == [
        "[print('seen'), rank][1]: 2 different values on 2 ranks.",
        "── rank 0 ──",
        "0",
        "── rank 1 ──",
        "1",
    ]
    assert "<th scope='row'" in bundle["text/html"]
    refused = notebook.run("%jaxcluster compare x = 1")
    assert "'x = 1' is not a Python expression." in refused.error
    notebook.ok("%jaxcluster stop")
