"""Agents over ssh: one login per host, which carries the agent's whole traffic.

The agent listens on a Unix socket there, which ssh joins to one here (``-L``): no port is opened on
either side, so firewalls, NAT and jump hosts need no setting. With ``direct`` it listens on a TCP
port instead, which is faster where hosts can reach each other.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from jaxcluster.errors import LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    AT_ONCE,
    FENCE,
    AgentOptions,
    Command,
    End,
    Launcher,
    LaunchPlan,
    Reason,
    Tunnel,
    agent_argv,
)
from jaxcluster.launchers.hosts import Host, place
from jaxcluster.launchers.quoting import join, quote, quote_path
from jaxcluster.launchers.reasons import how_it_ended, last_line, python_trouble, run_briefly
from jaxcluster.launchers.shared_options import DIRECT, HOSTFILE, NAMED_HOSTS
from jaxcluster.options.table import NO_OPTION, Option
from jaxcluster.options.value_types import COUNT, PATH, TEXT, TEXTS, WORDS

CONNECT_S = 10
SETTINGS_S = 60.0  # for ``ssh -G``, which takes 10 ms where no command of the user's is run by it
# A link that is cut is noticed after 15 s, before the agent's lease is over.
ALIVE_S, ALIVE_COUNT = 5, 3
SOCKET_LENGTH = 100  # of a Unix socket's path; the kernel takes 107 bytes

# ssh takes the first value that it meets. These stand before the user's own options ...
FIRST = ("BatchMode=yes",)  # never let ask: there is nobody to answer
# ... and these behind them, but before what the config says.
DEFAULTS = (
    f"ConnectTimeout={CONNECT_S}",
    f"ServerAliveInterval={ALIVE_S}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    # A connection of its own: one that is shared ends when its first user does, keeps our forward
    # when we end, and passes all traffic through one process.
    "ControlMaster=no",
    "ControlPath=none",
    "RemoteCommand=none",  # a config that has one refuses any command on the command line
    "PermitLocalCommand=no",
    "LogLevel=INFO",  # a config with QUIET would hide why a login failed
    # Of a config's own LocalForward a port may be taken already; ours is looked at when it is used.
    "ExitOnForwardFailure=no",
    "StreamLocalBindUnlink=yes",  # an ssh that was killed leaves its socket behind
)
# BatchMode is not handed on to the ssh that ProxyJump runs: this keeps it from asking, too.
NEVER_ASK = (("SSH_ASKPASS", "/bin/false"), ("SSH_ASKPASS_REQUIRE", "never"))


@dataclass(frozen=True)
class SSH(Launcher):
    """``--launcher ssh``.

    Attributes:
      hosts: where, in order of rank.
      num_processes: ``-n``; None where the hosts have their numbers, or their devices decide.
      ssh: the command that stands for ``ssh``, with options of the user's.
      ssh_config: an ssh config (``ssh -F``).
      ssh_option: ``NAME=VALUE`` as for ``ssh -o``.
      jump: as for ``ssh -J``.
      user: for the hosts that have none of their own.
      port: for the hosts that have none of their own.
      direct: TCP to the agents, without a tunnel.
      through: what each host is reached through; ``prepared`` fills it in.
    """

    hosts: tuple[Host, ...]
    num_processes: int | None = None
    ssh: tuple[str, ...] = ("ssh",)
    ssh_config: str = ""
    ssh_option: tuple[str, ...] = ()
    jump: str = ""
    user: str | None = None
    port: int | None = None
    direct: bool = False
    through: tuple[str, ...] = ()

    name = "ssh"
    start = "--launcher ssh --hosts h1,h2"
    example = "%jaxcluster start --launcher ssh --hosts h1:2,h2:2"
    options: ClassVar[tuple[Option, ...]] = (
        NAMED_HOSTS, HOSTFILE,
        Option("--user", TEXT, "NAME", "login name, for hosts without their own", "ann",
            pattern=NO_OPTION),
        Option("--port", COUNT, "PORT", "sshd's port, for hosts without their own", "2222"),
        Option("--jump", TEXT, "HOST", "log in through it (ssh -J)", "login.example.org",
            pattern=NO_OPTION),
        Option("--ssh-config", PATH, "FILE", "an ssh config (ssh -F)", "~/.ssh/cluster"),
        Option("--ssh-option", TEXTS, "NAME=VALUE", "as for ssh -o; may be repeated",
            "IdentityFile=~/.ssh/key", pattern=r"[^=]+=.+"),
        Option("--ssh", WORDS, "COMMAND", "the command to use for ssh", "'gcloud compute ssh'"),
        DIRECT,
    )  # fmt: skip
    needs_hosts = True

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        made = super().of(given, num_processes)
        if cls.needs_hosts and not made.hosts:
            raise UsageError(f"--launcher {cls.name} needs hosts.", f"For example: {cls.example}")
        if (made.port or 1) > 65535:
            raise UsageError(f"--port: {made.port} is not a port from 1 to 65535.", "--port 2222")
        return made

    def prepared(self, environ: Mapping[str, str]) -> SSH:
        """Ask ``ssh -G`` what each host is reached through.

        Some 10 ms a host; one host is asked where nothing that ssh reads can name a jump host.
        """
        if shutil.which(self.ssh[0], path=environ.get("PATH")) is None:
            raise LauncherUnavailable(
                f"There is no {self.ssh[0]} on this machine.",
                "Install OpenSSH's client, or name one: --ssh /path/to/ssh",
            )
        first, log = self._settings(self.hosts[0], environ, "-v")
        if not (self.jump or jump_host(first)) and not may_name_jump_hosts(log, self.ssh_option):
            return replace(self, through=("",) * len(self.hosts))
        with ThreadPoolExecutor(AT_ONCE, "jaxcluster-ssh") as pool:
            settings = pool.map(lambda host: self._settings(host, environ)[0], self.hosts)
            return replace(self, through=tuple(map(jump_host, settings)))

    def _settings(self, host: Host, environ: Mapping[str, str], *words: str) -> tuple[str, str]:
        """What ``ssh -G`` says of a host, and its log."""
        try:
            argv = [*self._base(host), *words, "-G", "--", host.name]
            done = run_briefly(argv, SETTINGS_S, environ)
        except subprocess.TimeoutExpired:  # ``Match exec`` runs commands
            raise LauncherUnavailable(
                f"ssh did not print its settings for {host.name} within {SETTINGS_S:g} s.",
                f"Try: {' '.join(self.ssh)} -G {host.name}",
            ) from None
        if done.returncode:
            said = [s for s in done.stderr.splitlines() if not s.startswith("debug1: ")]
            raise UsageError(
                f"ssh can't read its settings for {host.name}: "
                + last_line(said).replace("command-line: line 0: ", ""),
                f"Try: {' '.join(self.ssh)} {host.name} true",
            )
        return done.stdout, done.stderr

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        ranks = place(self.hosts, self.num_processes)
        check_environment(agent.env)
        token = hashlib.sha256(f"{agent.owner_key} {folder}".encode()).hexdigest()[:16]
        commands = tuple(
            self._command(number, host, agent, folder, token)
            for number, host in enumerate(self.hosts)
        )
        names = tuple(host.name for host in self.hosts)
        return LaunchPlan(self.name, len(names), commands, names, ranks)

    def _base(self, host: Host) -> list[str]:
        """ssh with all settings for a host, up to what is to be done there."""
        port, user = host.port or self.port, host.user or self.user
        return [
            *self.ssh,
            *(["-F", self.ssh_config] if self.ssh_config else []),
            *(["-J", self.jump] if self.jump else []),
            *(["-p", str(port)] if port else []),
            *(["-l", user] if user else []),
            *(word for option in (*FIRST, *self.ssh_option, *DEFAULTS) for word in ("-o", option)),
        ]

    def _address(self, host: Host) -> str:
        """What ssh is told to connect to."""
        return host.name

    def _command(
        self, number: int, host: Host, agent: AgentOptions, folder: str, token: str
    ) -> Command:
        tunnel, listen, forward = None, "", []
        if not self.direct:
            tunnel = Tunnel(f"{folder}/ssh-{number}.sock", f"/tmp/jaxcluster-{token}-{number}.sock")
            listen = tunnel.there
            if len(tunnel.here.encode()) > SOCKET_LENGTH:
                raise UsageError(
                    f"{tunnel.here} is too long for the path of a Unix socket.",
                    "Set JAXCLUSTER_RUNTIME_DIR to a shorter folder, or use --direct.",
                )
            forward = ["-L", f"{forwarded(tunnel.here)}:{tunnel.there}"]
        try:
            line = remote_command(agent, listen)
        except ValueError as error:
            raise UsageError(
                f"ssh can't pass on this text: {error}.", "Leave it out of --env and --python."
            ) from None
        # No terminal (-T) and no X11 (-x), whatever the config says.
        argv = (*self._base(host), "-T", "-x", *forward, "--", self._address(host), line)
        return Command(
            argv,
            (number,),
            agent.python,
            env=NEVER_ASK,
            keeps_stdin=True,
            tunnel=tunnel,
            socket=tunnel.here if tunnel is not None else "",
            through=self.through[number] if self.through else self.jump,
            may_be_tried_again=True,
        )

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command:
        command = plan.commands[number]
        return replace(command, argv=(*command.argv[:-1], f"{command.argv[-1]} {FENCE}"))

    def explain(self, end: End, hosts: Sequence[str] = ()) -> Reason:
        number = end.command.hosts[0]
        return explain_ssh(end, self.hosts[number].name, self._typed(number))

    def _typed(self, number: int) -> str:
        """A command that logs in to a host, as a user would type it."""
        host = self.hosts[number]
        ssh = " ".join([*self.ssh, *(["-F", self.ssh_config] if self.ssh_config else [])])
        if self.jump:
            ssh += f" -J {self.jump}"
        if port := host.port or self.port:
            ssh += f" -p {port}"
        user = host.user or self.user
        return f"{ssh} {user + '@' if user else ''}{self._address(host)}"


def forwarded(path: str) -> str:
    """The path of a Unix socket here, as ``ssh -L`` reads it.

    Raises:
      UsageError: ssh would read a variable in it.
    """
    if "${" in path:
        raise UsageError(
            f"ssh can't make {path}: it reads a variable there.",
            "Set JAXCLUSTER_RUNTIME_DIR to a folder without one, or use --direct.",
        )
    for special, quoted in (("\\", "\\\\"), (":", "\\:"), ("%", "%%")):
        path = path.replace(special, quoted)
    return path


def remote_command(agent: AgentOptions, listen: str) -> str:
    """The line for a host's login shell, whichever that is, that becomes the agent.

    Raises:
      ValueError: a word can't be passed to every shell.
    """
    words = [quote_path(agent.python), join(agent_argv(agent, listen, stdin_ends=True)[1:])]
    settings = [quote(f"{name}={value}") for name, value in agent.env]
    # exec: no shell stays between ssh and the agent.
    return " ".join(["exec", *(["env", *settings] if settings else []), *words])


def check_environment(env: Sequence[tuple[str, str]]) -> None:
    """Refuse what ``env NAME=VALUE`` can't set.

    Raises:
      UsageError: a name is not a variable's.
    """
    for name, _ in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UsageError(
                f"--env: {name!r} is not the name of a variable.", "For example: --env JAX_DEBUG=1"
            )


def may_name_jump_hosts(log: str, options: Sequence[str]) -> bool:
    """Whether ssh's settings may name one for some host; True where that can't be told.

    A file that names one says ``Proxy`` somewhere, in whichever block, under whatever condition.
    What ``Include`` names by tokens (%h) is another file for another host.

    Args:
      log: of ``ssh -v -G``, which names all files that are read, those of other hosts' too.
      options: those of the user's own.
    """
    files = re.findall(r"^debug1: Reading configuration data (.+?)\r?$", log, re.MULTILINE)
    try:
        said = [*options, *(Path(file).read_text(errors="replace") for file in files)]
    except OSError:
        return True
    lines = [line for text in said for line in text.splitlines()]
    lines = [line.strip().lower() for line in lines]
    lines = [line for line in lines if not line.startswith("#")]
    return not files or any(
        "proxy" in line or (line.startswith("include") and "%" in line) for line in lines
    )


def jump_host(settings: str) -> str:
    """What ``ssh -G`` says a host is reached through; empty for nothing."""
    found = dict(line.partition(" ")[::2] for line in settings.splitlines())
    for key in ("proxyjump", "proxycommand"):
        if (value := found.get(key, "none")) != "none":
            return value
    return ""


# ----------------------------------------------------------------------- what ssh said


@dataclass(frozen=True)
class _Case:
    """One kind of failure: what ssh or the login shell prints, and what is said of it.

    In message and hint ``{host}`` and ``{login}`` (an ssh command for it) are filled in.
    """

    pattern: str
    message: str
    hint: str
    may_pass: bool = False


_INTERACTIVE = (
    "It asks for a password, and none can be typed here. Log in with a key (ssh-copy-id {host}), "
    "or first open a shared connection (ControlMaster in the ssh config) and add --ssh-option "
    "ControlPath=PATH."
)
_CASES = (
    _Case(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key for .* has changed",
        "The host key of {host} has changed.",
        "If it was reinstalled, forget its old key: ssh-keygen -R {host}   Then: {login} true",
    ),
    _Case(
        r"Host key verification failed|No .* host key is known for",
        "{host} has a host key that is not known here.",
        "Log in once by hand and accept it: {login} true",
    ),
    _Case(
        r"Could not resolve hostname .*Temporary failure|Temporary failure in name resolution",
        "{host} could not be looked up.",
        "Is this machine's network up? Try: {login} true",
        True,
    ),
    _Case(
        r"Could not resolve (hostname|proxy)",
        "{host} is not a known host name.",
        "Check the name in --hosts, or give it an address in the ssh config.",
    ),
    # Before "Permission denied": ssh says both, and this is why.
    _Case(
        r"UNPROTECTED PRIVATE KEY FILE|bad permissions",
        "Other users can read the private key for {host}, so ssh does not use it.",
        "chmod 600 the key's file.",
    ),
    _Case(
        r"Too many authentication failures",
        "{host} was offered too many keys.",
        "Name the right one in the ssh config (IdentityFile, IdentitiesOnly yes).",
    ),
    _Case(
        r"Permission denied \([^)]*(password|keyboard-interactive)",
        "{host} did not accept a key.",
        _INTERACTIVE,
    ),
    _Case(
        r"Permission denied",
        "{host} refused our key.",
        "Try: {login} true   The key must be in the host's authorized_keys, and ssh must find it "
        "(IdentityFile in the ssh config, or ssh-add).",
    ),
    _Case(
        r"This account is (currently )?not available|account .*(expired|locked)|Access denied",
        "{host} does not let this user run commands.",
        "Try: {login} true",
    ),
    _Case(
        r"(kex|ssh)_exchange_identification|Connection (reset|closed) by|banner exchange: "
        r"|Broken pipe|Exceeded MaxStartups",
        "{host} closed the connection during the login.",
        "Too many logins at once, or a firewall? Try: {login} true",
        True,
    ),
    _Case(
        r"open failed: connect failed: open failed",
        "{host} lets users log in, and run nothing.",
        "Its sshd may allow no sessions (MaxSessions 0). Try: {login} true",
    ),
    _Case(
        r"Connection refused|open failed: connect failed",
        "Nothing answers {host} on ssh's port.",
        "Is its sshd running, and is this its port (--port, or HOST:RANKS:PORT)? Try: {login} true",
    ),
    _Case(
        r"timed out|Operation timed out|Timeout, server",
        "{host} did not answer.",
        "Is it up and can it be reached from here? Try: {login} true",
    ),
    _Case(
        r"No route to host|Network is unreachable",
        "{host} can't be reached from here.",
        "Through another host: --jump GATEWAY. Try: {login} true",
    ),
    _Case(
        r"Bad configuration option|unsupported option|Can't open user config"
        r"|Bad owner or permissions|\d+ bad configuration|extra arguments at end of line",
        "ssh can't read its settings for {host}.",
        "Try: {login} true",
    ),
    _Case(
        r"no matching (host key type|key exchange|cipher|mac)|Unable to negotiate",
        "{host} and this ssh have no algorithm in common.",
        "Try: {login} true",
    ),
    _Case(
        r"cannot listen to|Could not request local forwarding",
        "ssh could not make the socket of the tunnel to {host}.",
        "Is the folder writable? Or without a tunnel: --direct",
    ),
)


def explain_ssh(end: End, host: str, login: str) -> Reason:
    """Why an agent over ssh ended or never came. Pure.

    Args:
      host: the name that was asked for.
      login: an ssh command for it that a user could type.
    """
    said = last_line(end.errors)
    shell = last_line(end.chatter)
    evidence = f' ssh says: "{said}"' if said else ""
    if end.was_ready:
        return _explain_loss(end, host, evidence)
    if end.code not in (None, 255):
        return _explain_there(end, host)
    by = f" (through {end.command.through})" if end.command.through else ""
    if (failed := _find_case(end.errors, host, login, by)) is not None:
        return failed
    before = f' Its login shell printed: "{shell}"' if shell else ""
    if end.code is None:
        return Reason(
            f"{host} has accepted the login, or is about to, but its agent has not started "
            f"yet.{evidence}{before}",
            "Wait longer: --timeout 180   Does its login shell wait for something? "
            f"Try: {login} true",
        )
    return Reason(
        f"The agent on {host} did not start: ssh {how_it_ended(end.code)}.{evidence}{before}",
        f"Try: {login} true",
    )


def login_trouble(lines: Sequence[str]) -> Reason | None:
    """What ssh has said where somebody else has run it, and named the host or not. Pure."""
    named = re.search(
        r"resolve hostname (\S+?):|connect to host (\S+) port"
        r"|^(?:\S+@)?(\S+?): Permission denied \("
        r"|onnection to (\S+) port",
        "\n".join(lines),
        re.MULTILINE,
    )
    if named is None and not any(re.search(r"ssh|[Hh]ost key", line) for line in lines):
        return None
    host = next(filter(None, named.groups()), "") if named is not None else ""
    return _find_case(lines, host or "A host", f"ssh {host or 'HOST'}", "")


def _find_case(lines: Sequence[str], host: str, login: str, by: str) -> Reason | None:
    """The first case of ``_CASES`` that fits what was said."""
    text = "\n".join(lines)
    for case in _CASES:
        if re.search(case.pattern, text):
            names = {"host": host, "login": login}
            # The line that tells it; of a framed warning the last one, which says what came of it.
            told = [line.strip() for line in lines if re.search(case.pattern, line)]
            shown = told[-1] if told and not told[-1].startswith("@") else last_line(lines)
            message = f'{case.message.format(**names)} ssh says: "{shown}"{by}'
            return Reason(message, case.hint.format(**names), case.may_pass)
    return None


def _explain_there(end: End, host: str) -> Reason:
    """What the login shell or Python said, where ssh itself did its part."""
    python = end.command.python
    if (trouble := python_trouble(end.errors, python, f"on {host}")) is not None:
        return trouble
    said, shell = last_line(end.errors), last_line(end.chatter)
    printed = f' Its login shell printed: "{shell}"' if shell else ""
    last = f' It says: "{said}"' if said else ""
    return Reason(
        f"The agent on {host} {how_it_ended(end.code)}.{last}{printed}",
        ""
        if said
        else "Does its login shell end by itself? Its startup files run before the agent.",
    )


def _explain_loss(end: End, host: str, evidence: str) -> Reason:
    text = "\n".join(end.errors)
    if end.code is None:
        told = next((e for e in reversed(end.errors) if re.search("open failed", e)), "")
        return Reason(
            f"The agent on {host} runs, but ssh can't reach its socket."
            + (f' ssh says: "{told.strip()}"' if told else evidence),
            "Its sshd may not allow it (AllowStreamLocalForwarding, DisableForwarding). "
            "Without them: --direct",
        )
    if re.search(r"Timeout, server .* not responding", text):
        return Reason(f"{host} did not answer for {ALIVE_S * ALIVE_COUNT} s.{evidence}")
    if re.search(r"closed by remote host|Broken pipe|Connection reset|Connection closed", text):
        return Reason(f"The connection to {host} broke.{evidence}")
    if end.code == 255:
        return Reason(f"The agent on {host} was killed, or the connection to it broke.{evidence}")
    return Reason(f"The agent on {host} {how_it_ended(end.code)}.{evidence}")
