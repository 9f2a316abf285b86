"""The tests' clusters are where these tests are to run: here, or on the hosts that were named."""

from __future__ import annotations

import socket

import overhosts
import pytest
from helpers import Home, Notebook, python

import jaxcluster

pytestmark = pytest.mark.any_jax

WHERE = "import socket; print('on', socket.gethostname())"
SCRIPT = f"""
import jaxcluster
with jaxcluster.start(2) as cluster:
    cluster.run({WHERE!r}, show=False)
    print([cluster.last.stdout(rank) for rank in range(2)])
"""
EXPECTED = overhosts.hosts() or [socket.gethostname()] * 2


def test_clusters_of_tests_notebooks_and_scripts_are_there(
    pair: jaxcluster.Cluster, notebook: Notebook, private_home: Home
) -> None:
    assert [facts.hostname for facts in pair.record.facts] == EXPECTED
    notebook.ok("%jaxcluster start -n 2")
    shown = notebook.ok(f"%%spmd --all\n{WHERE}").text
    notebook.ok("%jaxcluster stop")
    assert [f"on {host}" in shown for host in EXPECTED] == [True, True], shown
    done = python("-c", SCRIPT, env=private_home.environ())
    assert str([f"on {host}\n" for host in EXPECTED]) in done.stdout, done.stderr
