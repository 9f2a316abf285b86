"""Which cells are answered by rank 0, and what it is asked."""

from __future__ import annotations

import pytest

from jaxcluster.notebook.completion import is_spmd


@pytest.mark.parametrize(
    ("code", "auto", "answer"),
    [
        ("%%spmd\nx.", False, True),
        ("%%spmd --all\nx.", False, True),
        ("\n  %%spmd\nx.", False, True),
        ("%spmd x.", False, True),
        ("x.", False, False),
        ("x.", True, True),
        ("%%time\nx.", True, False),
        ("%jaxcluster st", True, False),
        ("print('%%spmd')\nx.", False, False),
    ],
)
def test_the_names_of_spmd_cells_are_the_ranks(code: str, auto: bool, answer: bool) -> None:
    assert is_spmd(code, auto) is answer
