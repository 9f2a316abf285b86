"""Ranks as people write and read them."""

from __future__ import annotations

import pytest

from jaxcluster.ranks import (
    begin_ranks,
    name_hosts,
    name_ranks,
    parse_ranks,
    several_hosts,
)

TWO = {0: "h1", 1: "h1", 2: "GPU-2", 3: "GPU-2"}


@pytest.mark.parametrize(
    ("ranks", "hosts", "text"),
    [
        ([3], {}, "rank 3"),
        ([2, 0, 1], {}, "ranks 0-2"),
        ([0, 2, 3, 4, 5], {}, "ranks 0, 2-5"),
        ([2], TWO, "rank 2 (GPU-2)"),
        ([3, 0, 2, 1], TWO, "ranks 0, 1 (h1), 2, 3 (GPU-2)"),
        ([0, 5], TWO, "ranks 0, 5"),  # of one nothing is known
        (range(5), {rank: f"h{rank}" for rank in range(5)}, "ranks 0-4"),  # too many to be read
    ],
)
def test_ranks_are_named_in_runs_with_their_hosts(
    ranks: list[int], hosts: dict[int, str], text: str
) -> None:
    assert name_ranks(ranks, hosts) == text
    assert begin_ranks(ranks, hosts) == "R" + text[1:]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [("0", [0]), ("0,2-3", [0, 2, 3]), ("3, 1", [1, 3]), ("0-3", [0, 1, 2, 3]), ("1,1-2", [1, 2])],
)
def test_ranks_are_read_as_they_are_written(text: str, ranks: list[int]) -> None:
    assert parse_ranks(text, 4) == ranks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a list of ranks such as 0,2-3"),
        ("-1", "'-1' is not a list of ranks such as 0,2-3"),
        ("3-1", "'3-1' counts backwards: write 1-3"),
        ("4", "There is no rank 4: this cluster has ranks 0-3"),
        ("0-7", "There is no rank 7: this cluster has ranks 0-3"),
    ],
)
def test_what_names_no_ranks_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_ranks(text, 4)
    assert str(caught.value) == message


def test_one_host_goes_without_saying() -> None:
    assert several_hosts({0: "h1", 1: "h1"}) == {}
    assert several_hosts(TWO) == TWO


def test_hosts_are_named_once_each_and_many_are_counted() -> None:
    assert name_hosts(["h1", "h1"]) == "h1"
    assert name_hosts(["h1", "h1", "h2", "h2"]) == "h1, h2"
    assert name_hosts([f"h{i}" for i in range(9)]) == "h0 and 8 more"
