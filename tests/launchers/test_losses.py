"""Hosts, agents and links that are lost under a cluster of two hosts, reached by ssh."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from helpers import Cell, until
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax

START = "%jaxcluster start --launcher ssh --hosts h1:2,h2:2"
SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, socket, sys, time
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((4,), ("i",))
x = jax.make_array_from_callback((4,), NamedSharding(mesh, P("i")), lambda at: np.arange(4.0)[at])
w = jnp.full(3, 7.0)
"""
SUM = "%%spmd --all\nprint(float(jnp.sum(x)), float(w[0]), socket.gethostname())"


@pytest.fixture
def notebook(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> HostNotebook:
    opened = open_notebook()
    opened.ok("%load_ext jaxcluster")
    opened.ok(START)
    opened.ok(SETUP)
    return opened


def agents(rig: Rig, name: str) -> list[int]:
    return [
        pid
        for pid, line in rig[name].processes().items()
        if "-m jaxcluster.agent" in line and "ssh" not in line.split()[0] and "sh -c" not in line
    ]


def check_whole(notebook: HostNotebook) -> None:
    """All ranks compute together, on both hosts."""
    shown = notebook.ok("%%spmd --all\nprint(float(jnp.ones(2).sum()), socket.gethostname())"
                        .replace("socket", "__import__('socket')")
                        .replace("jnp", "__import__('jax').numpy")).text
    assert shown.count("2.0 h1") == 2, shown
    assert shown.count("2.0 h2") == 2, shown


def shown_after(notebook: HostNotebook, source: str, deadline_s: float = 60.0) -> Cell:
    cell = notebook.run(source, deadline_s)
    print(f"{source}\n-->{cell.text}")
    return cell


def test_a_killed_agent_gets_a_successor_and_the_values_come_back(
    ssh: Rig, notebook: HostNotebook
) -> None:
    (pid,) = agents(ssh, "h2")
    ssh["h2"].kill(pid)
    cell = shown_after(notebook, SUM)
    if cell.error:
        assert "h2" in cell.text
        cell = shown_after(notebook, SUM)
    assert not cell.error
    assert cell.text.count("7.0 h2") == 2


def test_the_first_hosts_agent_is_killed(ssh: Rig, notebook: HostNotebook) -> None:
    (pid,) = agents(ssh, "h1")
    ssh["h1"].kill(pid)
    cell = shown_after(notebook, SUM)
    assert "h1" in cell.text
    check_whole(notebook)


def test_an_agent_is_killed_while_ranks_wait_for_its_host(ssh: Rig, notebook: HostNotebook) -> None:
    cell = notebook.begin("%%spmd\nif rank > 1: time.sleep(1000)\nprint(float(jnp.sum(x)))")
    until(lambda: agents(ssh, "h2"), "agents", 10)
    time.sleep(1)
    (pid,) = agents(ssh, "h2")
    ssh["h2"].kill(pid)
    began = time.monotonic()
    notebook.wait(cell, 30)
    print(cell.text, time.monotonic() - began)
    assert cell.error
    assert "h2" in cell.text
    again = shown_after(notebook, SUM)
    assert again.text.count("6.0 7.0") == 4 or "lost" in cell.text


def test_a_link_that_is_cut_for_8_s_costs_nothing(ssh: Rig, notebook: HostNotebook) -> None:
    cell = notebook.begin(
        "%%spmd --all\nfor n in range(30):\n    print('line', n, flush=True)\n    time.sleep(0.4)"
    )
    notebook.until(lambda: "line 3" in cell.text, "the first lines")
    with ssh["h2"].cut_off():
        time.sleep(8)
    notebook.wait(cell, 60)
    assert not cell.error, cell.text
    for n in range(30):
        assert len(re.findall(rf"line {n}\b", cell.text)) == 4, cell.text
    assert shown_after(notebook, SUM).text.count("6.0 7.0") == 4


def test_a_link_that_is_cut_for_good_is_named_and_the_host_comes_back(
    ssh: Rig, notebook: HostNotebook
) -> None:
    cell = notebook.begin("%%spmd\nif rank > 1: time.sleep(1000)\nprint(float(jnp.sum(x)))")
    notebook.ok_later = None  # type: ignore[attr-defined]
    time.sleep(1)
    with ssh["h2"].cut_off():
        began = time.monotonic()
        notebook.wait(cell, 120)
        took = time.monotonic() - began
        print(cell.text, took)
        assert "h2" in cell.text
    cell = shown_after(notebook, "%jaxcluster restart", 90)
    cell = shown_after(notebook, SUM)
    assert not cell.error, cell.text
