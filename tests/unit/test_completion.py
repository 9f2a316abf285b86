"""Which cells are answered by rank 0, and what it is asked."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcluster.cluster import handle
from jaxcluster.notebook import completion
from jaxcluster.notebook.completion import is_spmd, without_magic_line
from jaxcluster.wire.link import Event
from jaxcluster.wire.ops.cells import Complete, Inspect, Inspection


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
        ("%%s|pmd\nx", "|x"),
        ("%spmd x.re|", "x.re|"),
        ("%spmd --all --ranks 0,2 x.re|", "x.re|"),
        ("x.re|", "x.re|"),
    ],
)
def test_rank_0_sees_the_cell_without_its_magic(code: str, source: str) -> None:
    """``|`` is the cursor."""
    asked, cursor = without_magic_line(code.replace("|", ""), code.index("|"))
    assert asked[:cursor] + "|" + asked[cursor:] == source


class Asked:
    """Stands for a cluster: keeps what it was asked."""

    def __init__(self, body: Any) -> None:
        self.body = body
        self.world = self
        self.requests: list[tuple[Any, ...]] = []

    def ask(self, ranks: list[int], request: Any, timeout_s: float) -> dict[int, Any]:
        self.requests.append((ranks, request))
        return {0: Event(0, "reply", "", self.body)}


def test_no_cluster_means_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "opened", {})
    assert completion.Completion._ask(Complete("", 0)) is None


def test_only_rank_0_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, inspect = Asked(Inspection(True, "x", {})), Inspect("x", "x", 1, 0)
    monkeypatch.setattr(completion.cluster, "current", lambda: asked)
    assert completion.Completion._ask(inspect) == asked.body
    assert asked.requests == [([0], inspect)]
