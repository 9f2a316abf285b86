"""What a start on other hosts says where it can't be: typed in a notebook, from end to end.

Each is one clear message that says what to type next, no traceback, and leaves nothing on any host.
The parts' own tests have more examples of each kind.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import pytest
from helpers import Cell
from pace import slowness
from rig import Host, HostNotebook, Rig, leaving_nothing

pytestmark = pytest.mark.any_jax
HOSTS = "--launcher ssh --hosts h1:1,h2:1"
SLURM = "--launcher slurm --nodes 2"
ANSWER_S = 20.0  # where nothing has to be waited for


@pytest.fixture(scope="module")
def notebook(ssh: Rig) -> Iterator[HostNotebook]:
    """One without a cluster."""
    (ssh.shared / "launch").mkdir(exist_ok=True)
    opened = HostNotebook(ssh["h0"], env={"JAXCLUSTER_SHARED_DIR": str(ssh.shared)})
    opened.ok("%load_ext jaxcluster")
    yield opened
    opened.close()


def refused(notebook: HostNotebook, words: str, deadline_s: float = ANSWER_S) -> Cell:
    """A start that fails, in time, and leaves nothing."""
    with leaving_nothing(notebook.host.rig):
        begun = time.monotonic()
        cell = notebook.run(f"%jaxcluster start {words}")
        took = time.monotonic() - begun
    assert cell.error, cell.text
    assert "Traceback" not in cell.text and 'File "' not in cell.text, cell.text
    assert took < deadline_s * slowness()
    return cell


def starts(notebook: HostNotebook, words: str) -> None:
    """A start that succeeds, with a sum over both hosts."""
    notebook.ok(f"%jaxcluster start {words}")
    try:
        notebook.ok("%spmd from jax.experimental import multihost_utils; import numpy as np")
        cell = notebook.ok("%spmd multihost_utils.process_allgather(np.ones(1)).sum().item()")
        assert cell.result == "2.0" or "2.0" in cell.text, cell.text
    finally:
        notebook.ok("%jaxcluster stop")


@contextlib.contextmanager
def changed(host: Host, path: str, script: str) -> Iterator[None]:
    """A file of a host's is changed by a shell's line, and is as it was afterwards."""
    host.run("cp", "-a", path, f"{path}.away")
    host.run("sh", "-c", script)
    try:
        yield
    finally:
        host.run("mv", f"{path}.away", path)


# -------------------------------------------------------------------------- what is on the hosts


def test_versions_that_differ_are_told_in_a_table_before_a_rank_is_started(
    ssh: Rig, notebook: HostNotebook
) -> None:
    python = f"{ssh.home}/python"
    wrapper = f'#!/bin/sh\nPYTHONPATH=$HOME/odd exec {ssh.python} "$@"\n'
    for name in ("h1", "h2"):
        ssh[name].write(python, wrapper, 0o755)
    metadata = "Metadata-Version: 2.1\nName: numpy\nVersion: 9.8.7\n"
    ssh["h2"].write("~/odd/numpy-9.8.7.dist-info/METADATA", metadata)
    try:
        cell = refused(notebook, f"{HOSTS} --python {python}")
    finally:
        for name in ("h1", "h2"):
            ssh[name].run("rm", "-rf", python, f"{ssh.home}/odd")
    assert "LaunchError: The hosts have different versions of numpy:" in cell.text
    assert re.search(r"\n +numpy\nh1 +\d[.\d]+\nh2 +9\.8\.7\n", cell.text), cell.text
    assert "processes ..." not in cell.text


@pytest.mark.parametrize("line", ["127.0.1.1 h1\\n", ""], ids=["loopback", "nowhere"])
def test_a_host_whose_own_name_leads_nowhere_else_works(
    ssh: Rig, notebook: HostNotebook, line: str
) -> None:
    there = "/etc/hosts"
    others = "127.0.0.1 localhost\\n" + "".join(
        f"{host.address} {host.name}\\n" for host in ssh.hosts.values() if host.name != "h1"
    )
    # Not replaced: it is a file of the host's own, and may be mounted.
    with changed(ssh["h1"], there, f"printf '{line}{others}' > {there}"):
        starts(notebook, HOSTS)


@contextlib.contextmanager
def mounted(host: Host, *options: str) -> Iterator[None]:
    """A host's /tmp is a new file system with these options."""
    host.run("mount", "-n", "-t", "tmpfs", *options, "tmpfs", "/tmp")
    try:
        yield
    finally:
        host.run("umount", "-n", "-l", "/tmp")


def test_a_full_disk(ssh: Rig, notebook: HostNotebook) -> None:
    with mounted(ssh["h1"], "-o", "size=64k"):
        cell = refused(notebook, HOSTS)
    assert "/tmp/jaxcluster-0 on h1 is full: " in cell.text and "KiB are free" in cell.text
    assert "--env JAXCLUSTER_RUNTIME_DIR=/path" in cell.text


@pytest.mark.parametrize("name", ["h0", "h1"])
def test_a_folder_that_can_not_be_written(ssh: Rig, notebook: HostNotebook, name: str) -> None:
    host = ssh[name]
    host.run("mkdir", "-p", "-m", "700", "/tmp/jaxcluster-0")
    host.run("mount", "-n", "-o", "remount,ro", "/tmp")
    try:
        cell = refused(notebook, HOSTS)
    finally:
        host.run("mount", "-n", "-o", "remount,rw", "/tmp")
    assert "/tmp/jaxcluster-" in cell.text and "Read-only file system" in cell.text
    assert name == "h0" or "The agent on h1 can't work: can't listen on ipc:///tmp" in cell.text


def test_hosts_that_both_reach_the_first_one_and_not_each_other(
    ssh: Rig, notebook: HostNotebook
) -> None:
    with ssh.apart("h1", "h2"):
        cell = refused(notebook, "--launcher ssh --hosts h0:1,h1:1,h2:1")
    # Either may be the first to say so.
    pair = r"Host h[12] \(it listens at 10\.76\.0\.1[12], port \d+\) can't be reached from "
    pair += r"host h[12]\.\n.*firewall"
    assert re.search(pair, cell.text), cell.text


# ----------------------------------------------------------------------------------------- Slurm


def test_a_folder_that_can_not_be_shared(slurm: Rig, notebook: HostNotebook) -> None:
    before = notebook.ok("%env JAXCLUSTER_SHARED_DIR").result
    notebook.ok("%env JAXCLUSTER_SHARED_DIR=/sys/nowhere")
    try:
        cell = refused(notebook, "--launcher ipp:slurm --nodes 2", 5)
    finally:
        notebook.ok(f"%env JAXCLUSTER_SHARED_DIR={eval(before)}")
    told = "/sys/nowhere/jaxcluster-0, the folder that you share with the hosts, can't be used"
    assert told in cell.text
    assert "JAXCLUSTER_SHARED_DIR=/path in the notebook's environment" in cell.text
