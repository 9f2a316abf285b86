"""The hosts of the tests' rig are as separate as machines are, and what is left there is found."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import until
from rig import Host, HostNotebook, Missing, Rig

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
HELD = """
import socket
with socket.create_connection(("h2", 7000), timeout=30) as connection:
    print("connected", flush=True)
    input()
    connection.sendall(b"late")
    print("sent", flush=True)
    print(connection.recv(100).decode(), flush=True)
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


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run", "/var/tmp", "/home", "~", "/etc"])
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


def test_shared_memory_and_pids_are_a_hosts_own(hosts: Rig) -> None:
    made = hosts["h1"].run("ipcmk", "--shmem", "4096").stdout.split()[-1]
    assert made in hosts["h1"].run("ipcs", "-m").stdout
    assert not hosts["h2"].run("ipcs", "-m").stdout.split("bytes")[1].split()[3:]
    hosts["h1"].run("ipcrm", "-m", made)
    first = hosts["h1"].run("ps", "-o", "args=", "1").stdout
    assert "init.py" in first
    assert len(hosts["h2"].processes()) < 20  # this machine's are not seen


def test_the_python_of_the_hosts_has_this_checkouts_jaxcluster(hosts: Rig) -> None:
    found = hosts["h2"].run(hosts.python, "-c", "import jaxcluster; print(jaxcluster.__file__)")
    assert found.stdout.strip() == str(Path(__file__).parents[2] / "jaxcluster/__init__.py")


def test_a_command_has_an_environment_of_the_hosts_own(hosts: Rig) -> None:
    lines = (
        hosts["h1"].run("sh", "-c", "env; pwd", env={"MORE": "1"}, cwd="/var").stdout.splitlines()
    )
    assert f"HOME={hosts.home}" in lines
    assert "MORE=1" in lines
    assert lines[-1] == "/var"
    assert not [line for line in lines if line.startswith(("PYTEST", "PYTHON"))]


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

    held = here.popen(
        *(here.python, "-c", HELD),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.stdin is not None
    assert held.stdout is not None
    assert held.stdout.readline() == "connected\n"
    with there.cut_off():
        held.stdin.write("\n")
        held.stdin.flush()
        assert held.stdout.readline() == "sent\n"
        assert "hello" not in here.run(*ask, "0.5", check=False).stdout
    assert held.stdout.readline() == "late\n"  # TCP has sent it again
    held.communicate(timeout=30)
    server.kill()
    server.communicate(timeout=30)


def test_one_cut_link_leaves_the_others(hosts: Rig) -> None:
    here, there = hosts["h0"], hosts["h2"]
    server = there.popen(there.python, "-c", ECHO, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "listening\n"
    with hosts["h1"].cut_off():
        assert here.run(here.python, "-c", ASK, "10").stdout == "hello\n"
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
    until(lambda: hosts["h1"].run(*ask, "1", check=False).stdout == "hello\n", "the way back", 20)
    server.kill()
    server.communicate(timeout=30)


def test_a_crashed_host_is_gone_and_nobody_is_told(hosts: Rig) -> None:
    with Rig(["h0", "h2"]) as own:
        first, lost = own["h0"], own["h2"]
        server = lost.popen(lost.python, "-c", ECHO, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        held = first.popen(
            *(first.python, "-c", HELD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert held.stdout is not None
        assert held.stdout.readline() == "connected\n"
        lost.crash()
        assert server.wait(30) != 0
        assert "timed out" in first.run(own.python, "-c", ASK, "1", check=False).stderr
        assert held.poll() is None  # no end of its connection has come
        held.kill()
        for process in (held, server):
            process.communicate(timeout=30)
        assert list(own.hosts) == ["h0"]


def test_the_hosts_can_have_a_python_of_another_version(hosts: Rig) -> None:
    mine = f"{sys.version_info[0]}.{sys.version_info[1]}"
    others = sorted(Path(sys.prefix).parent.glob(".venv-test-*/bin/python"))
    others = [python for python in others if mine not in python.parts[-3]]
    if not others:
        pytest.skip("no environment of another Python beside this one")
    python = hosts.environment(others[0], "other")
    script = "import jaxcluster, sys; print('%d.%d' % sys.version_info[:2], jaxcluster.__file__)"
    version, file = hosts["h1"].run(python, "-c", script).stdout.split()
    assert version == others[0].parts[-3].removeprefix(".venv-test-")
    assert Path(file).is_relative_to(Path(__file__).parents[2])


def test_a_hosts_clock_can_be_off(ssh: Rig) -> None:
    script = "import time; time.sleep(0.01); print(time.time())"
    login = ("ssh", "h2", f"{ssh.python} -c '{script}'")

    def off(name: str) -> float:
        return float(ssh[name].run(ssh.python, "-c", script).stdout) - time.time()

    def off_by_ssh() -> float:
        return float(ssh["h0"].run(*login).stdout) - time.time()

    try:
        with ssh["h2"].clock_shifted("+1h"):
            shifted, others = (off("h2"), off_by_ssh()), (off("h0"), off("h1"))
    except Missing as missing:
        pytest.skip(str(missing))
    assert all(3500 < seconds < 3700 for seconds in shifted)
    assert all(abs(seconds) < 100 for seconds in (*others, off("h2"), off_by_ssh()))


# -------------------------------------------------------------------------------------- leftovers


ABSTRACT = """
import socket, time
held = socket.socket(socket.AF_UNIX)
held.bind("\\0held-by-a-test")
held.listen()
print(flush=True)
time.sleep(1000)
"""
PORT = """
import socket, time
held = socket.create_server(("127.0.0.1", 7777))
print(flush=True)
time.sleep(1000)
"""
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


@pytest.mark.parametrize(
    "script, found",
    [(ABSTRACT, "Unix socket @held-by-a-test"), (PORT, "listening port 7777")],
    ids=["abstract socket", "port"],
)
def test_a_socket_that_is_left_is_found(hosts: Rig, script: str, found: str) -> None:
    host = hosts["h2"]
    before = host.look()
    process = host.popen(host.python, "-c", script, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    assert found in host.leftovers(before)
    assert host.pid_there(process) in host.processes()
    process.kill()
    process.communicate(timeout=30)
    until(lambda: not host.leftovers(before), "nothing left over")


def test_what_a_killed_command_has_started_is_still_there_and_found(hosts: Rig) -> None:
    host = hosts["h1"]
    before = host.look()
    process = host.popen("sh", "-c", "sleep 1000 & echo; wait", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.wait(30)
    process.stdout.close()
    until(lambda: len(host.leftovers(before)) == 1, "end of the shell alone")
    [pid] = [pid for pid, line in host.processes().items() if line == "sleep 1000"]
    host.kill(pid)
    until(lambda: not host.leftovers(before), "nothing left over")


def test_a_daemon_that_has_ended_is_told(hosts: Rig) -> None:
    host = hosts["h1"]
    host.start_daemon("short", "true")
    host.daemons["short"].wait(30)
    with pytest.raises(AssertionError, match="short has ended on h1"):
        host.look()
    host.stop_daemon("short")


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


def test_a_failed_command_says_what_and_where(hosts: Rig) -> None:
    host: Host = hosts["h1"]
    with pytest.raises(AssertionError, match=r"sh -c .* on h1: status 3\nsaid"):
        host.run("sh", "-c", "echo said; exit 3")
