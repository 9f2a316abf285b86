"""Pushes and pulls with ranks of two hosts, and what the doctor says of these."""

from __future__ import annotations

import pytest
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax

SETUP = """%%spmd
import jax, jax.numpy as jnp, numpy as np, os
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 2), ("i", "j"))
def make(shape, spec):
    whole = np.arange(np.prod(shape, dtype=int)).astype("i4").reshape(shape)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda at: whole[at])
"""


@pytest.fixture
def notebook(two_hosts: HostNotebook) -> HostNotebook:
    two_hosts.ok("import jaxcluster, numpy as np\nfrom jaxcluster import cluster as clusters")
    two_hosts.ok(SETUP)
    return two_hosts


def test_a_host_without_room_gets_it_in_frames(ssh: Rig, notebook: HostNotebook) -> None:
    notebook.ok("v = np.arange(1 << 20)\ncluster = clusters.current()")
    notebook.ok("%%spmd\nlarge = make((1 << 22,), P(('i', 'j')))")
    ssh["h2"].run("mount", "-n", "-o", "remount,size=1m", "/dev/shm")
    try:
        notebook.ok("cluster.push({'v': v})")
        notebook.ok("%%spmd\nassert int(v.sum()) == sum(range(1 << 20))")
        notebook.ok("assert (cluster['large'] == np.arange(1 << 22)).all()")
    finally:
        ssh["h2"].run("mount", "-n", "-o", "remount,size=50%", "/dev/shm")


def test_what_is_pushed_lies_once_in_each_hosts_memory(ssh: Rig, notebook: HostNotebook) -> None:
    notebook.ok(
        "v = np.random.default_rng(0).integers(0, 255, 1 << 24, np.uint8)\n"
        "w = np.asfortranarray(np.arange(200000.).reshape(2, -1)); empty = np.zeros((0, 2))\n"
        "clusters.current().push({'v': v, 'w': w, 'empty': empty, 'total': int(v.sum())})"
    )
    notebook.ok("%%spmd\nassert int(v.sum()) == total and w[0, 5] == 5 and empty.shape == (0, 2)")
    # Of one file, mapped privately: what a rank writes is its own.
    cell = notebook.ok(
        "%%spmd --all\n"
        "maps = [l.split() for l in open('/proc/self/maps') if 'value-' in l]\n"
        "v[0] = jax.process_index()\nprint(len(maps), {m[4] for m in maps} != set())"
    )
    assert "1 True" in cell.text
    notebook.ok("%%spmd\nassert v[0] == jax.process_index()")
    notebook.ok("clusters.current().push({'small': 1, 'v': v}, ranks=[2])")
    notebook.ok("%%spmd --ranks 2\nassert small == 1 and int(v.sum()) == total")


def test_the_stop_button_ends_a_pull_and_leaves_nothing(ssh: Rig, notebook: HostNotebook) -> None:
    notebook.ok("%%spmd\nlarge = make((1 << 24,), P(('i', 'j')))")
    notebook.ok("cluster = clusters.current()")
    with ssh["h2"].cut_off():
        cell = notebook.begin("print('now', flush=True); large = cluster['large']")
        notebook.until(lambda: "now" in cell.text, "the pull")
        notebook.client.control_channel.send(notebook.client.session.msg("interrupt_request", {}))
        notebook.wait(cell)
    assert cell.error
    notebook.ok("assert (cluster['large'] == np.arange(1 << 24)).all()")


def test_the_doctor_has_a_column_for_each_host(ssh: Rig, notebook: HostNotebook) -> None:
    text = notebook.ok("%jaxcluster doctor").text.partition("hosts of cluster 'main':")[2]
    header, *lines = text.strip("\n").splitlines()
    assert header.split() == ["h1", "h2"]
    cells = {line[3:].split("  ")[0]: line for line in lines}
    assert ssh["h1"].address in cells["address"] and ssh["h2"].address in cells["address"]
    assert cells["reaches"].count("all others") == 2
    assert all(line.startswith("✓") for line in (cells["jax"], cells["python"], cells["reaches"]))
    before = notebook.ok("%jaxcluster doctor --launcher ssh --hosts h1,h2").text
    assert [line for line in before.splitlines() if "reaches" in line] == [cells["reaches"]]
    assert "did not start" not in before and "could not" not in before
    assert notebook.ok("%jaxcluster list").text.count("main") == 1
    with ssh.apart("h1", "h2"):
        text = notebook.ok("%jaxcluster doctor").text
    assert "not h2 (" in text and "not h1 (" in text
    assert "h1 to h2, h2 to h1" in text
