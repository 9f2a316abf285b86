"""The hosts of the tests' rig are as separate as machines are, and what is left there is found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import until
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax
ECHO = """
import socket
with socket.create_server(("", 7000)) as server:
    print("listening", flush=True)
    while True:
        connection, _ = server.accept()
        connection.sendall(connection.recv(100))
        connection.close()
"""
ASK = """
import socket, sys
with socket.create_connection(("h2", 7000), timeout=float(sys.argv[1])) as connection:
    connection.sendall(b"hello")
    print(connection.recv(100).decode())
"""


def test_a_host_has_a_name_an_address_and_knows_the_others(hosts: Rig) -> None:
    script = (
        "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
    )
    for name, host in hosts.hosts.items():
        assert host.run(host.python, "-c", script).stdout.split() == [name, host.address]
    known = f"import socket; print(*map(socket.gethostbyname, {tuple(hosts.hosts)}))"
    addresses = [host.address for host in hosts.hosts.values()]
    assert hosts["h1"].run(hosts.python, "-c", known).stdout.split() == addresses


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run", "~", "/etc"])
def test_a_file_of_one_host_is_on_no_other_nor_on_this_machine(hosts: Rig, folder: str) -> None:
    written = hosts["h1"].write(f"{folder}/of-h1", "here")
    place = folder.replace("~", hosts.home) + "/of-h1"
    assert hosts["h1"].run("cat", place).stdout == "here"
    for other in ("h0", "h2"):
        assert hosts[other].run("test", "-e", place, check=False).returncode == 1
    assert not Path(place).exists()
    written.unlink()


def test_the_shared_folder_is_on_all_hosts_and_the_checkout_can_not_be_changed(hosts: Rig) -> None:
    (hosts.shared / "note").write_text("for all")
    for host in hosts.hosts.values():
        assert host.run("cat", hosts.shared / "note").stdout == "for all"
    (hosts.shared / "note").unlink()
    for path in (__file__, hosts.python.parents[1] / "pyvenv.cfg", f"{sys.prefix}/pyvenv.cfg"):
        done = hosts["h1"].run("touch", path, check=False)
        assert "Read-only file system" in done.stderr


# --------------------------------------------------------------------------------------- the link


def test_a_cut_link_loses_what_is_sent_and_comes_back(hosts: Rig) -> None:
    here, there = hosts["h1"], hosts["h2"]
    server = there.popen(there.python, "-c", ECHO, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    ask = (here.python, "-c", ASK)
    assert here.run(*ask, "10").stdout == "hello\n"
    with there.cut_off():
        done = here.run(*ask, "0.5", check=False)
        assert "timed out" in done.stderr or "No route to host" in done.stderr
    until(lambda: here.run(*ask, "1", check=False).stdout == "hello\n", "the link to be back", 20)

    server.kill()
    server.communicate(timeout=30)


def test_hosts_can_be_kept_from_each_other_alone(hosts: Rig) -> None:
    there = hosts["h2"]
    server = there.popen(there.python, "-c", ECHO, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    ask = (hosts.python, "-c", ASK)
    with hosts.apart("h1", "h2"):
        refused = hosts["h1"].run(*ask, "0.5", check=False)
        assert "timed out" in refused.stderr or "No route to host" in refused.stderr
        assert hosts["h0"].run(*ask, "10").stdout == "hello\n"
    server.kill()
    server.communicate(timeout=30)


# -------------------------------------------------------------------------------------- leftovers


HIDDEN = "(setsid env -i sleep 1000 >/dev/null 2>&1 </dev/null &)"


@pytest.mark.parametrize(
    "command, found, undo",
    [
        (("sh", "-c", HIDDEN), "sleep 1000", ()),
        (("touch", "/tmp/left"), "file /tmp/left", ("rm", "/tmp/left")),
        (("touch", "/dev/shm/left"), "file /dev/shm/left", ("rm", "/dev/shm/left")),
        (("touch", "/run/left"), "file /run/left", ("rm", "/run/left")),
        (("mkdir", "-p", "HOME/.left"), "file HOME/.left", ("rmdir", "HOME/.left")),
        (("ipcmk", "--shmem", "4096"), "System V shm", ("ipcrm", "--all")),
    ],
    ids=["process", "tmp", "shm", "run", "home", "System V"],
)
def test_what_a_command_leaves_is_found(
    hosts: Rig, command: tuple[str, ...], found: str, undo: tuple[str, ...]
) -> None:
    host, home = hosts["h1"], hosts.home
    before = host.look()
    assert not host.leftovers(before)
    host.run(*(word.replace("HOME", home) for word in command))
    [left] = host.leftovers(before)
    assert found.replace("HOME", home) in left
    for pid in (process for process in host.processes() if not undo):
        if host.processes().get(pid) == "sleep 1000":
            host.kill(pid)
    if undo:
        host.run(*(word.replace("HOME", home) for word in undo))
    until(lambda: not host.leftovers(before), "nothing left over")


# --------------------------------------------------------------------------------- the notebook


def test_a_notebook_runs_on_a_host(open_notebook: Callable[..., HostNotebook], hosts: Rig) -> None:
    notebook = open_notebook()
    cell = notebook.ok("import os, socket; print(socket.gethostname(), os.getcwd(), os.getpid())")
    name, folder, pid = cell.stdout.split()
    assert (name, folder) == ("h0", hosts.home)
    assert int(pid) in hosts["h0"].processes()
    cell = notebook.begin("print('waits', flush=True)\nimport time\ntime.sleep(1000)")
    notebook.until(lambda: "waits" in cell.stdout, "the cell to run")
    notebook.manager.interrupt_kernel()
    assert notebook.wait(cell).ename == "KeyboardInterrupt"
    notebook.kill()
    until(lambda: int(pid) not in hosts["h0"].processes(), "end of the killed notebook")
