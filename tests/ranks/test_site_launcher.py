"""A launcher of a site's: that of docs/how-to/launcher.md, with a shell script for its command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sitelauncher
from helpers import Home, python

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("the site's machine is this one"),
]

# The site's own command: its machines are this one.
RACK_RUN = """#!/bin/sh
[ "$1" = a ] || { echo "there is no rack $1" >&2; exit 3; }
machines=$2; shift 2
exec 3<&0  # what runs in the background has no input of its own
for one in $(seq $machines); do "$@" <&3 & done
wait
"""

STARTED = """
import jaxcluster
from jaxcluster.errors import LaunchError
with jaxcluster.start(4, launcher="rack", rack="a", machines=2) as cluster:
    cluster.run("import jax; print(jax.process_count(), len(jax.devices()), flush=True)")
    print(len(cluster.status()), cluster.spec.launcher)
try:
    jaxcluster.start(2, launcher="rack", rack="b")
except LaunchError as error:
    print(error)
"""


@pytest.mark.quick
def test_the_documented_launcher_starts_ranks_and_explains_its_ends(
    private_home: Home, tmp_path: Path
) -> None:
    site = sitelauncher.install(tmp_path, "rack", sitelauncher.documented(), rack="Rack")
    (tmp_path / "rack-run").write_text(RACK_RUN)
    (tmp_path / "rack-run").chmod(0o755)
    (tmp_path / "started.py").write_text(STARTED)
    environ = private_home.environ(
        PYTHONPATH=os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
        PATH=os.pathsep.join([str(tmp_path), os.environ["PATH"]]),
    )
    done = python(str(tmp_path / "started.py"), env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "4 4",
        "4 rack",
        'No agent on the hosts: rack-run ended with code 3. It says: "there is no rack b"',
        "Try: rack-run b 1 true",
    ]
