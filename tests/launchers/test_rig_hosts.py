"""The hosts of the tests' rig are as separate as machines are, and what is left there is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import until
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax


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
