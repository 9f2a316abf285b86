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


def test_a_cluster_of_the_tests_own_process(pair: jaxcluster.Cluster) -> None:
    assert [facts.hostname for facts in pair.record.facts] == EXPECTED


def test_a_cluster_of_a_notebook(notebook: Notebook) -> None:
    notebook.ok("%jaxcluster start -n 2")
    shown = notebook.ok(f"%%spmd --all\n{WHERE}").text
    notebook.ok("%jaxcluster stop")
    assert [f"on {host}" in shown for host in EXPECTED] == [True, True], shown


def test_a_cluster_of_a_script(private_home: Home) -> None:
    done = python("-c", SCRIPT, env=private_home.environ())
    assert str([f"on {host}\n" for host in EXPECTED]) in done.stdout, done.stderr
