"""What sets the options of a start cell that is run again apart from its cluster's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxcluster.plan.repeated_start import differences
from jaxcluster.wire import ClusterSpec

RUNS = ClusterSpec("main", 4, any_name=True, devices_per_process=2)


@pytest.mark.parametrize(
    "again",
    [
        RUNS,
        replace(RUNS, name="main-2"),
        replace(RUNS, any_name=False),
        replace(RUNS, timeout_s=300.0, initialization_timeout=90),
    ],
    ids=["as it was", "another free name", "its name given", "another time limit"],
)
def test_the_same_options_make_the_same_cluster(again: ClusterSpec) -> None:
    assert differences(RUNS, again) == []


def test_what_is_left_open_is_no_difference() -> None:
    decided = ClusterSpec("main", 8, platform="cuda", launcher="slurm", options={"nodes": "2"})
    asked = ClusterSpec("main", 0, platform="", launcher="slurm", options={"nodes": "2"})
    assert differences(decided, asked) == []
    assert differences(decided, replace(asked, num_processes=4)) == ["-n 8, not -n 4"]


@pytest.mark.parametrize(
    ("runs", "asked", "told"),
    [
        (RUNS, replace(RUNS, num_processes=2), ["-n 4, not -n 2"]),
        (RUNS, replace(RUNS, devices_per_process=None), ["--devices-per-process 2"]),
        (RUNS, replace(RUNS, detach=True), ["no --detach"]),
        (replace(RUNS, detach=True), RUNS, ["--detach"]),
        (RUNS, replace(RUNS, platform="cuda"), ["--platform cpu, not --platform cuda"]),
        (RUNS, replace(RUNS, env={"A": "1 2", "B": "3"}), ["no --env 'A=1 2' --env B=3"]),
        (
            RUNS,
            replace(RUNS, launcher="ssh", options={"hosts": "h1,h2", "ssh_option": ["A=1", "B=2"]}),
            [
                "--launcher local, not --launcher ssh",
                "no --hosts h1,h2",
                "no --ssh-option A=1 --ssh-option B=2",
            ],
        ),
        (replace(RUNS, options={"new_job": True}), RUNS, ["--new-job"]),
    ],
)
def test_each_difference_is_told_as_it_is_typed(
    runs: ClusterSpec, asked: ClusterSpec, told: list[str]
) -> None:
    assert differences(runs, asked) == told
