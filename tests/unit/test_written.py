"""Options of a start written as a line again, without secrets, and compared with another start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.cluster import dry_run, make_spec
from jaxcluster.options.arguments import Parser, start_options
from jaxcluster.options.known import known
from jaxcluster.plan.repeated_start import are_alike, typed
from jaxcluster.wire import ClusterSpec


def started(line: str) -> dict[str, Any]:
    return start_options(Parser("%jaxcluster start").read(line))


@pytest.mark.parametrize("option", known().options, ids=lambda option: option.flag)
def test_a_line_is_read_back_as_the_same(option: Any) -> None:
    given = started(option.typed)
    assert started(known().line(given)) == given


def test_words_are_quoted_where_that_is_needed() -> None:
    given = {"env": {"FLAGS": "--a --b='c'"}, "salloc": ["--mail-type=END", "a b"], "new_job": True}
    line = known().line({"launcher": "slurm", **given})
    assert "--salloc=--mail-type=END --salloc 'a b'" in line
    assert started(line) == {"launcher": "slurm", **given}


# Options of a start with a secret in them, and what is shown in its place.
SECRETS: list[tuple[dict[str, Any], str]] = [
    ({"env": {"HF_TOKEN": "hush", "KEYS": "shown"}}, "HF_TOKEN=..."),
    ({"mpi_args": "-x HF_TOKEN=hush"}, "=..."),
    ({"mpi_args": "-x 'HF_TOKEN=hush hush'"}, "=..."),
    ({"mpi_args": '-env A=1 -x GITHUB_PAT="hush hush"'}, "=..."),
    ({"mpi_args": "--export=ALL,MYSQL_PWD=hush"}, "=..."),
    ({"mpi_args": "--password=hush"}, "=..."),
    ({"mpi_args": "-x SSH_PASSPHRASE=hush,hush"}, "=..."),
]


@pytest.mark.parametrize(("given", "told"), SECRETS)
def test_what_is_a_secret_by_its_name_is_not_shown(
    tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    mpiexec = tmp_path / "mpiexec"  # tests/launchers run the real one
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    mpiexec.chmod(0o755)
    here: dict[str, Any] = {"launcher": "mpi", "hosts": "h1,h2", "mpiexec": str(mpiexec)}
    spec = make_spec(2, **here, **given)
    assert "hush" in f"{spec.env} {spec.options}"  # what is run
    for shown in (dry_run(spec), typed(spec)):
        assert "hush" not in shown and told in shown


def test_nothing_can_hide_the_line_that_is_shown() -> None:
    assert known().line({"name": "\r\x1b[2K\u202e"}) == "--name '\\r\\x1b[2K\\u202e'"


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
