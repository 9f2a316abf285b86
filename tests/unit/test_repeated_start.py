"""Whether a start cell that is run again asks for the cluster that it has started."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jaxcluster.plan.repeated_start import are_alike, typed
from jaxcluster.wire import ClusterSpec

RUNS = ClusterSpec("main", 4, any_name=True, devices_per_process=2)


@pytest.mark.parametrize(
    "changes",
    [{}, {"name": "main-2"}, {"any_name": False}, {"timeout_s": 300.0}],
    ids=["as it was", "another free name", "its name given", "another time limit"],
)
def test_the_same_options_make_the_same_cluster(changes: dict[str, Any]) -> None:
    assert are_alike(RUNS, replace(RUNS, **changes))


def test_what_is_left_open_is_no_difference() -> None:
    decided = ClusterSpec("main", 8, platform="cuda", launcher="slurm", options={"nodes": "2"})
    asked = ClusterSpec("main", 0, platform="", launcher="slurm", options={"nodes": "2"})
    assert are_alike(decided, asked)
    assert not are_alike(decided, replace(asked, num_processes=4))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_processes": 2}, "-n 2 --devices-per-process 2 --platform cpu"),
        ({"devices_per_process": None}, "-n 4 --platform cpu"),
        ({"detach": True}, "-n 4 --devices-per-process 2 --platform cpu --detach"),
        (
            {"launcher": "ssh", "options": {"hosts": "h1,h2"}},
            "-n 4 --devices-per-process 2 --platform cpu --launcher ssh --hosts h1,h2",
        ),
    ],
)
def test_other_options_make_another_and_are_told_as_they_are_typed(
    changes: dict[str, Any], told: str
) -> None:
    other = replace(RUNS, **changes)
    assert not are_alike(RUNS, other) and not are_alike(other, RUNS)
    assert typed(other) == told
