"""Agents over ssh: one login per host, which carries the agent's whole traffic.

The agent listens on a Unix socket there, and ssh joins it to one here (``-L``). So firewalls and
jump hosts need no setting. With ``direct`` it listens on a TCP port instead.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from jaxcluster.errors import UsageError
from jaxcluster.launchers.base import (
    DIRECT,
    FENCE,
    HOSTFILE,
    NAMED_HOSTS,
    AgentOptions,
    Command,
    Launcher,
    LaunchPlan,
    agent_line,
    find_program,
)
from jaxcluster.launchers.hosts import Host
from jaxcluster.options.table import COUNT, NO_OPTION, PATH, TEXT, TEXTS, WORDS, Option
from jaxcluster.plan.shares import place

SOCKET_LENGTH = 100  # of a Unix socket's path; the kernel takes 107 bytes
# sshd drops logins beyond its limit ("MaxStartups 10:30:100"). A jump host may drop some of 64.
DROPPED = (
    r"_exchange_identification|Connection (reset|closed) by|banner exchange: |Broken pipe"
    r"|Exceeded MaxStartups|Temporary failure in name"
)

# A link that is cut is noticed after 15 s, before the agent's lease is over.
ALIVE_S = 5
# ssh takes the first value that it meets. These precede the user's own options.
FIRST = ("BatchMode=yes",)  # ssh must not ask: nobody can answer
# These follow the user's own options, and precede the config's.
DEFAULTS = (
    "ConnectTimeout=10",
    f"ServerAliveInterval={ALIVE_S}",
    # A separate connection. A shared one ends with its first user. It keeps our forward when we
    # end, and passes all traffic through one process.
    "ControlMaster=no",
    "ControlPath=none",
    "RemoteCommand=none",  # a config that has one refuses any command on the command line
    "PermitLocalCommand=no",
    "LogLevel=INFO",  # a config with QUIET would hide why a login failed
    # A port of the config's own LocalForward may be in use. Our forward is checked at its use.
    "ExitOnForwardFailure=no",
    "StreamLocalBindUnlink=yes",  # an ssh that was killed leaves its socket
)
# BatchMode is not handed on to the ssh that ProxyJump runs: this keeps it from asking, too.
NEVER_ASK = (("SSH_ASKPASS", "/bin/false"), ("SSH_ASKPASS_REQUIRE", "never"))


@dataclass(frozen=True)
class SSH(Launcher):
    """``--launcher ssh``; each field is the value of the option of its name."""

    hosts: tuple[Host, ...]
    num_processes: int | None = None
    ssh: tuple[str, ...] = ("ssh",)
    ssh_config: str = ""
    ssh_option: tuple[str, ...] = ()
    jump: str = ""
    user: str | None = None
    port: int | None = None
    direct: bool = False

    name = "ssh"
    start = "--launcher ssh --hosts h1,h2"
    example = "%jaxcluster start --launcher ssh --hosts h1:2,h2:2"
    options: ClassVar[tuple[Option, ...]] = (
        NAMED_HOSTS, HOSTFILE,
        Option("--user", TEXT, "NAME", "login name, for hosts without their own", "ann",
            pattern=NO_OPTION),
        Option("--port", COUNT, "PORT", "sshd's port, for hosts without their own", "2222"),
        Option("--jump", TEXT, "HOST", "log in through this host (ssh -J)", "login.example.org",
            pattern=NO_OPTION),
        Option("--ssh-config", PATH, "FILE", "an ssh config (ssh -F)", "~/.ssh/cluster"),
        Option("--ssh-option", TEXTS, "NAME=VALUE", "as for ssh -o; may be repeated",
            "IdentityFile=~/.ssh/key", pattern=r"[^=]+=.+"),
        Option("--ssh", WORDS, "COMMAND", "the command to use for ssh", "'gcloud compute ssh'"),
        DIRECT,
    )  # fmt: skip
    needs_hosts = True
    cut = "Its sshd may not allow it (AllowStreamLocalForwarding). To do without: --direct"

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        made = super().of(given, num_processes)
        if cls.needs_hosts and not made.hosts:
            raise UsageError(f"--launcher {cls.name} needs hosts.", f"For example: {cls.example}")
        if (made.port or 1) > 65535:
            raise UsageError(f"--port: {made.port} is not a port from 1 to 65535.", "--port 2222")
        return made

    def prepared(self, environ: Mapping[str, str]) -> Self:
        install = "Install OpenSSH's client, or name one: --ssh /path/to/ssh"
        find_program(self.ssh[0], environ, install)
        return self

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        ranks = place([(h.name, h.ranks) for h in self.hosts], self.num_processes)
        commands = tuple(self._command(n, agent, folder) for n in range(len(self.hosts)))
        names = tuple(host.name for host in self.hosts)
        return LaunchPlan(self.name, len(names), commands, names, ranks)

    def _program(self, number: int) -> list[str]:
        """ssh with what a user would type for a host as well."""
        host = self.hosts[number]
        port, user = host.port or self.port, host.user or self.user
        options = {"-F": self.ssh_config, "-J": self.jump, "-p": str(port or ""), "-l": user}
        given = (word for name, value in options.items() if value for word in (name, value))
        return [*self.ssh, *given]

    def _address(self, number: int) -> str:
        """The words by which ssh finds a host."""
        return self.hosts[number].name

    def _command(self, number: int, agent: AgentOptions, folder: str) -> Command:
        here = there = ""
        forward: list[str] = []
        if not self.direct:
            here = f"{folder}/ssh-{number}.sock"
            there = f"/tmp/jaxcluster-{agent.token(folder)}-{number}.sock"
            if len(here.encode()) > SOCKET_LENGTH or "${" in here:
                raise UsageError(
                    f"ssh can't use {here} as a socket: it is too long, or has a ${{ in it.",
                    "Set JAXCLUSTER_RUNTIME_DIR to another folder, or use --direct.",
                )
            # ssh splits it at colons, and reads % in it.
            quoted = re.sub(r"([\\:])", r"\\\1", here).replace("%", "%%")
            forward = ["-L", f"{quoted}:{there}"]
        # No terminal (-T) and no X11 (-x), whatever the config says.
        alive = f"ServerAliveCountMax={max(3, int(agent.lease_s / ALIVE_S) - 1)}"
        settings = (*FIRST, *self.ssh_option, *DEFAULTS, alive)
        options = [word for one in settings for word in ("-o", one)]
        address, line = self._address(number), agent_line(agent, there, stdin_ends=True)
        argv = (*self._program(number), *options, "-T", "-x", *forward, "--", address, line)
        return Command(
            argv, (number,), agent.python, env=NEVER_ASK, keeps_stdin=True, socket=here,
            tried_again=DROPPED,
        )  # fmt: skip

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command:
        command = plan.commands[number]
        return replace(command, argv=(*command.argv[:-1], f"{command.argv[-1]} {FENCE}"))

    def typed(self, command: Command) -> str:
        (number,) = command.hosts
        return shlex.join([*self._program(number), self._address(number), "true"])
