"""The tests' own way to hosts: which host gets how many ranks."""

from __future__ import annotations

import overhosts
import pytest


@pytest.mark.parametrize(
    "num_ranks, expected", [(1, "h1:1"), (2, "h1:1,h2:1"), (3, "h1:2,h2:1"), (8, "h1:4,h2:4")]
)
def test_ranks_are_shared_out_evenly(num_ranks: int, expected: str) -> None:
    assert overhosts.shares(num_ranks, ["h1", "h2"]) == expected


def test_without_the_variable_nothing_is_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(overhosts.HOSTS, raising=False)
    assert overhosts.hosts() == []
    assert overhosts.variables() == {}
