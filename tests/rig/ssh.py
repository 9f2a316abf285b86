"""OpenSSH's sshd on every host of a rig, and a user on h0 who may log in."""

from __future__ import annotations

import subprocess
from pathlib import Path

from helpers import until

from rig.hosts import DEADLINE_S, Host, Missing, Rig, need

PORTS = (22, 2222)
USER = "alice"  # not root: her home is /home/alice
SSHD = f"""\
{chr(10).join(f"Port {port}" for port in PORTS)}
HostKey /etc/ssh/rig_host_key
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
PermitUserEnvironment yes
PidFile none
Subsystem sftp internal-sftp
"""


def start_ssh(rig: Rig) -> None:
    """sshd on each host; h0's root has the key, the hosts' keys and a config.

    There ``ssh h1`` works as it stands, to port 22 or 2222, as root or alice. Each host has a key
    of its own, and logs to ``folder/log``.
    """
    need("sshd", package="openssh-server")
    need("ssh", "ssh-keygen", package="openssh-client")
    known = []
    for host in rig.hosts.values():
        public = _make_key(rig, f"{host.name}.host")
        host.write("/etc/ssh/rig_host_key", _key(rig, f"{host.name}.host"), 0o600)
        host.write("/etc/ssh/rig_sshd_config", SSHD)
        known += [f"{host.name},{host.address},[{host.name}]:2222,[{host.address}]:2222 {public}"]
    mine = _make_key(rig, "user")
    for host in rig.hosts.values():
        _add_user(host)
        for home in (host.home, f"/home/{USER}"):
            host.path(f"{home}/.ssh").mkdir(mode=0o700, parents=True)
            host.write(f"{home}/.ssh/authorized_keys", mine + "\n", 0o600)
        host.run("chown", "-R", f"{USER}:", f"/home/{USER}")
        host.path("/run/sshd").mkdir(mode=0o755)
        host.start_daemon("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", "/etc/ssh/rig_sshd_config")
    first = rig["h0"]
    first.write("~/.ssh/id_ed25519", _key(rig, "user"), 0o600)
    first.write("~/.ssh/known_hosts", "\n".join(known) + "\n", 0o600)
    first.write(rig.ssh_config, "Host *\n  BatchMode yes\n  ConnectTimeout 10\n", 0o600)
    for host in rig.hosts.values():
        answered = until_answered(first, "ssh", host.name, "hostname")
        assert answered == host.name, answered


def until_answered(host: Host, *command: str) -> str:
    """What a command says once it succeeds; a server may still be starting."""
    said: list[str] = []

    def succeeds() -> bool:
        done = host.run(*command, check=False)
        said[:] = [done.stdout.strip(), done.stderr.strip()]
        return done.returncode == 0

    try:
        until(succeeds, " ".join(command), DEADLINE_S)
    except AssertionError as error:
        raise Missing(f"{error}: {said}") from None
    return said[0]


def _make_key(rig: Rig, name: str) -> str:
    folder = rig.folder / "log"  # seen by all hosts: these keys guard nothing
    keygen = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name))
    subprocess.run(keygen, check=True, timeout=DEADLINE_S, stdin=subprocess.DEVNULL)
    return (folder / f"{name}.pub").read_text().strip()


def _key(rig: Rig, name: str) -> str:
    return (rig.folder / "log" / name).read_text()


def _add_user(host: Host) -> None:
    lines = {
        "passwd": f"{USER}:x:4321:4321::/home/{USER}:/bin/bash",
        "group": f"{USER}:x:4321:",
        "shadow": f"{USER}:*:19000:0:99999:7:::",
    }
    for name, line in lines.items():
        path: Path = host.path(f"/etc/{name}")
        with open(path, "a") as file:
            file.write(line + "\n")
