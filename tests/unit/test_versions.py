"""Which jax can be started with, and what a start says of one that nobody has tried."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from jaxcluster.plan import versions

TOP = Path(__file__).parents[2]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
LOWER: dict[str, str] = dict(re.findall(r"^(\w+)>=(.+)$", "\n".join(PROJECT["dependencies"]), re.M))


def test_every_dependency_has_a_lower_bound_that_is_checked_and_no_upper_one() -> None:
    assert len(LOWER) == len(PROJECT["dependencies"])
    assert all(re.fullmatch(r"[\d.]+", bound) for bound in LOWER.values()), LOWER
    assert LOWER["jax"] == versions.OLDEST_JAX
    assert f"jax>={versions.OLDEST_JAX}," in versions.TRIED_JAX


def test_the_job_with_the_lowest_of_each_dependency_has_exactly_these() -> None:
    lines = (TOP / ".ci" / "lowest.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert pinned == {**LOWER, "jaxlib": LOWER["jax"]}


def test_a_jax_on_which_no_cluster_starts_says_what_to_type() -> None:
    assert versions.too_old(["0.9.1", "0.12.0.1"]) is None
    assert versions.too_old(["0.12.0", "0.9.0.1", "0.8.3"]) == (
        "jax 0.8.3 is older than 0.9.1, the oldest with which clusters start.",
        'Try: pip install -U "jax>=0.9.1"',
    )


@pytest.mark.parametrize("jax", ["0.9.1", "0.10.2", "0.12.0.1", "0.12.3"])
def test_nothing_is_said_of_a_jax_that_was_tried(jax: str) -> None:
    assert versions.note_on(jax, {}) == ""


def test_a_newer_jax_is_named_with_what_has_moved_in_it() -> None:
    newer = "jax 0.13.0 is newer than 0.12, the newest tried with jaxcluster"
    assert versions.note_on("0.13.0", {}) == newer
    moved = {"copies": "none are compared", "transfers": "they are refused"}
    assert versions.note_on("0.13.0", moved) == (
        f"{newer}. jax 0.13.0 has moved private names that jaxcluster uses: "
        "copies (none are compared); transfers (they are refused)"
    )
