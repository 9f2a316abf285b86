"""Options of a start written as a line again: read back as the same, and shown without secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxcluster.arguments import Parser, start_options
from jaxcluster.cluster import dry_run, make_spec
from jaxcluster.options.known import known
from jaxcluster.plan.repeated_start import differences


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


def test_what_is_a_secret_by_its_name_is_not_shown() -> None:
    spec = make_spec(2, env={"HF_TOKEN": "hush", "KEYS": "shown"})
    assert spec.env["HF_TOKEN"] == "hush"
    for shown in (dry_run(spec), "".join(differences(make_spec(2), spec))):
        assert "hush" not in shown
        assert "HF_TOKEN=..." in shown and "KEYS=shown" in shown


@pytest.mark.parametrize(
    "args",
    [
        "-x HF_TOKEN=hush",
        "-x 'HF_TOKEN=hush hush'",
        '-env A=1 -x GITHUB_PAT="hush hush"',
        "--export=ALL,MYSQL_PWD=hush",
        "--password=hush",
        "-x SSH_PASSPHRASE=hush,hush",
    ],
)
def test_a_secret_in_a_launchers_arguments_is_not_shown(tmp_path: Path, args: str) -> None:
    mpiexec = tmp_path / "mpiexec"  # tests/launchers run the real one
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (OpenRTE) 4.1.4'\n")
    mpiexec.chmod(0o755)
    here = {"launcher": "mpi", "hosts": "h1,h2", "mpiexec": str(mpiexec)}
    spec = make_spec(2, mpi_args=args, **here)  # type: ignore[arg-type]
    for shown in (dry_run(spec), "\n".join(differences(make_spec(2, **here), spec))):  # type: ignore[arg-type]
        assert "hush" not in shown
        assert "=..." in shown
    assert "hush" in known().line(spec.options)  # what is run


def test_nothing_can_hide_the_line_that_is_shown() -> None:
    assert known().line({"name": "\r\x1b[2K\u202e"}, hide=True) == "--name '\\r\\x1b[2K\\u202e'"
