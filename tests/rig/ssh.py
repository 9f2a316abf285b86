"""OpenSSH's sshd on every host of a rig, to which h0's root may log in."""

from __future__ import annotations

import subprocess

from helpers import until

from rig.hosts import DEADLINE_S, Host, Missing, Rig, need

SSHD = """\
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

    There ``ssh h1`` works as it stands. Each host has a key of its own, and logs to
    ``folder/log``.
    """
    need("sshd", package="openssh-server")
    need("ssh", "ssh-keygen", package="openssh-client")
    known = []
    for host in rig.hosts.values():
        public = _make_key(rig, f"{host.name}.host")
        host.write("/etc/ssh/rig_host_key", _key(rig, f"{host.name}.host"), 0o600)
        host.write("/etc/ssh/rig_sshd_config", SSHD)
        known += [f"{host.name},{host.address} {public}"]
    mine = _make_key(rig, "user")
    for host in rig.hosts.values():
        host.path("~/.ssh").mkdir(mode=0o700)
        host.write("~/.ssh/authorized_keys", mine + "\n", 0o600)
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
