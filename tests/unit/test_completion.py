"""Which cells are answered by rank 0, and what it is asked."""

from __future__ import annotations

import types

import pytest

from jaxcluster.notebook import completion
from jaxcluster.notebook.completion import is_spmd
from jaxcluster.wire.ops.cells import Complete


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


@pytest.mark.parametrize(
    ("code", "source"),
    [
        ("%%spmd --all\nx = 1\nx.re|al", "x = 1\nx.re|al"),
        ("%%spmd\n|", "|"),
        ("%%spmd --al|\nx", ""),
        ("%spmd x.re|", "x.re|"),
        ("%spmd --all --ranks 0,2 x.re|", "x.re|"),
        ("x.re|", "x.re|"),
    ],
)
def test_rank_0_sees_the_cell_without_its_magic(code: str, source: str) -> None:
    """``|`` is the cursor."""
    asked: list[Complete] = []
    shell = types.SimpleNamespace(Completer=types.SimpleNamespace(completions=lambda *_: ["own"]))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(completion, "_ask", asked.append)
        undo = completion.ask_rank_0(shell, lambda: True)
        found = list(shell.Completer.completions(code.replace("|", ""), code.index("|")))
    assert found == ["own"], "without an answer the notebook's own completer gives one"
    told = [f"{one.code[: one.cursor]}|{one.code[one.cursor :]}" for one in asked]
    assert told == ([source] if source else []), "the magic's line is the notebook's"
    undo()
