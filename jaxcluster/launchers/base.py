"""Launchers, which start one agent on each host and do nothing else.

``Launcher.render`` makes of a user's options a ``LaunchPlan``, which ``--dry-run`` shows.
``launchers.commands`` carries it out. ``supervision.keeper`` ends what a killed notebook leaves.

``find`` says in which allocation this process is, and how many ranks it stands for. JAX's own
cluster detection (``jax/_src/clusters`` of jax 0.10.2 and 0.12) would number as many, in the same
order. Each launcher looks for its own kind (``Launcher.found_around``).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jaxcluster.errors import LauncherUnavailable
from jaxcluster.launchers import failures
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.hosts import named_hosts
from jaxcluster.options.known import known
from jaxcluster.options.table import COUNT, HOSTS, LOCAL, SWITCH, TEXT, VISIBLE, Field, Option
from jaxcluster.plan.shares import ranks_by_host
from jaxcluster.ranks import name_ranks
from jaxcluster.supervision.commands import Task

if TYPE_CHECKING:
    from jaxcluster.launchers.commands import Launch, Run

FENCE = "--fence"  # the last argument of a successor: it first ends an older agent on its host
LEASE_S = 20.0  # an agent without its owner's connection ends after this
STOPPED = "The start was stopped."

# Options that several launchers know. An option is the same for each of them.
NAMED_HOSTS = Option("--hosts", HOSTS, "H:N,...", "hosts and their ranks: h1:2,user@h2:2",
    "h1:2,user@h2:2",
    field=Field("Hosts", "With the number of ranks on each", "h1:2,user@h2:2", ("ssh", "mpi")),
)  # fmt: skip
HOSTFILE = Option("--hostfile", TEXT, "FILE", "a file with a host per line: h1 slots=2", "~/hosts")
DIRECT = Option("--direct", SWITCH, "", "reach the agents by TCP, not by a tunnel")
NODES = Option("--nodes", COUNT, "N", "how many nodes", "2 --ntasks-per-node 4",
    field=Field("Nodes", "How many", "1"))  # fmt: skip
NTASKS_PER_NODE = Option("--ntasks-per-node", COUNT, "N", "ranks on each node", "4",
    field=Field("On each node", "How many ranks"))  # fmt: skip
TIME = Option("--time", TEXT, "TIME", "the job's limit: 2:00:00 is two hours", "2:00:00",
    field=Field("Job's time", "At most: 2:00:00 is two hours", launchers=("slurm",)))  # fmt: skip
MEM = Option("--mem", TEXT, "SIZE", "memory of a node: 64G; of a pod: 64Gi", "64G",
    field=Field("Memory", "Of each pod", "64Gi", ("kubernetes",)), pattern=VISIBLE)  # fmt: skip


@dataclass(frozen=True)
class AgentOptions:
    """The options with which every agent of a cluster starts."""

    cluster: str
    owner_key: str  # the owner's public key, as ``transport.Keys`` has it
    python: str  # the Python of the hosts
    lease_s: float = LEASE_S  # how long an agent lives without its owner's connection
    env: tuple[tuple[str, str], ...] = ()  # variables, besides the host's
    first_lease_s: float = 60.0  # of an agent whose start waits for others

    def token(self, folder: str) -> str:
        """A word in the names of all that one launch makes: no other launch has it."""
        return hashlib.sha256(f"{self.owner_key} {folder}".encode()).hexdigest()[:10]


def agent_command(agent: AgentOptions, listen: str = "", stdin_ends: bool = False) -> list[str]:
    """The agent's command line (``jaxcluster.hosts.agent.server``), with its environment.

    Args:
      listen: the path of a Unix socket; empty for a TCP port of any number.
      stdin_ends: whether the agent ends when its standard input does.
    """
    program = [agent.python]
    if agent.python.startswith("~"):  # which a shell knows
        home, _, path = agent.python.partition("/")
        program = ["sh", "-c", f'exec {home}/{shlex.quote(path)} "$@"', "sh"]
    # -P: no module from the folder in which it happens to start. With the key in its id: another
    # notebook's cluster may have the same name, and must not be fenced.
    return [
        # Not srun's --export and mpiexec's -x or -genv: each of them reads some values itself.
        *(["env", *(f"{k}={v}" for k, v in agent.env)] if agent.env else []),
        *(*program, "-P", "-m", "jaxcluster.hosts.agent", f"--owner-key={agent.owner_key}"),
        *(f"--id={agent.cluster}-{agent.owner_key[:12]}", f"--lease={agent.lease_s:g}"),
        *([f"--bind=ipc://{listen}"] if listen else []),
        *(["--owner-stdin"] if stdin_ends else []),
    ]


def agent_line(agent: AgentOptions, listen: str = "", stdin_ends: bool = False) -> str:
    """The line of a host's shell that becomes the agent, with its environment."""
    return f"exec {shlex.join(agent_command(agent, listen, stdin_ends))}"


def announcements(line: str) -> tuple[list[Mapping[str, Any]], str]:
    """The agents in a line of output, and the rest of the line.

    Agents print ``{"jaxcluster-agent": 1, ...}`` and, at their end, ``{"jaxcluster-agent-ended":
    WHY, ...}``. A login shell may have printed before it without a line break, and two agents'
    lines may come as one.
    """
    found: list[Mapping[str, Any]] = []
    rest = ""
    while match := re.search(r'\{\s*"jaxcluster-agent(-ended)?"\s*:', line):
        try:
            value, end = json.JSONDecoder().raw_decode(line, match.start())
        except ValueError:
            break
        found.append(value)
        rest, line = rest + line[: match.start()], line[end:]
    return found, rest + line


@dataclass(frozen=True)
class Command(Task):
    """One command of a launcher."""

    hosts: tuple[int, ...]  # the numbers of the hosts on which it starts an agent
    python: str = ""  # the Python of its agents, for messages
    tried_again: str = ""  # a pattern of output after which it may run again


@dataclass(frozen=True)
class LaunchPlan:
    """All that a launcher is going to run and write."""

    launcher: str
    num_hosts: int  # how many agents are expected
    commands: tuple[Command, ...] = ()  # one for all hosts, or one for each
    hosts: tuple[str, ...] = ()  # their names; empty if the launcher chooses them
    ranks: tuple[int, ...] | None = None  # of each host; None: as its devices allow
    objects: tuple[Mapping[str, Any], ...] = ()  # requests to an API, as JSON
    folder: str = ""  # of sockets to agents, if no command makes these
    notes: tuple[str, ...] = ()
    agent: AgentOptions | None = None  # for a ``successor``, if no command starts one agent alone


@dataclass(frozen=True)
class Inside:
    """An allocation in which this process runs."""

    what: str  # "Slurm's job 6 (2 nodes, 4 tasks)"
    launcher: str  # the word for ``--launcher``
    obstacle: str = ""  # why a start can't use it, and what can be done
    is_offered: bool = True  # whether a start without ``--launcher`` names it

    @property
    def offer(self) -> str:
        """A line for a start that does not use it; "" if it can't be used."""
        if self.obstacle or not self.is_offered:
            return ""
        return (
            f"This notebook runs in {self.what}. To use it: %jaxcluster start --launcher "
            f"{self.launcher}   (or always: --launcher auto)"
        )


class Launcher(ABC):
    """One way to start agents: a frozen dataclass of the options that the user gave.

    It is found by an entry point of its name, in the group ``jaxcluster.launchers``. A subclass has
    at least ``name``, ``start``, ``render``, a field ``num_processes`` (``-n``), and one for each
    of its options. ``of``, ``render`` and ``typed`` are pure.
    """

    name: ClassVar[str]  # as in ``--launcher``
    start: ClassVar[str]  # the least words after ``%jaxcluster start``
    example: ClassVar[str] = ""  # a whole start line; "" for the one with ``start``
    options: ClassVar[tuple[Option, ...]] = ()  # besides ``known.OF_ALL``; shared ones are the same
    takes: ClassVar[str] = ""  # the kind of the name after a colon, as in ``ipp:pbs``
    python: ClassVar[str] = ""  # the hosts' Python by default; "" for this machine's
    platform: ClassVar[str] = ""  # the ranks' platform by default; "" for the devices' own
    shares_folder: ClassVar[bool] = False  # whether the hosts must share the folder of ``render``
    cut: ClassVar[str] = ""  # the hint if an agent runs, but can't be reached
    refused: ClassVar[str] = ""  # the hint if the hosts' owner refuses the request

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        """The launcher of a typed start: its options by name, ``-n``, and the word after its colon.

        Raises:
          UsageError: the options can't be used together.
        """
        if NAMED_HOSTS in cls.options:
            given["hosts"] = named_hosts(given.pop("hosts", ""), given.pop("hostfile", ""))
        make: Any = cls
        return make(num_processes=num_processes, **given)  # type: ignore[no-any-return]

    @classmethod
    def found_around(cls, environ: Mapping[str, str]) -> Inside | None:
        """The allocation that this process runs in, if it is of this launcher's kind."""
        return None

    def prepared(self, environ: Mapping[str, str]) -> Launcher:
        """This launcher, with facts of this machine filled in.

        Raises:
          LauncherUnavailable: what it needs is not on this machine.
          UsageError: the options don't fit this machine.
        """
        return self

    @abstractmethod
    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        """All that is going to be run and written.

        Args:
          folder: a folder of this user's alone (0700), another one for every start.

        Raises:
          UsageError: an option can't be passed on.
        """

    def launch(self, plan: LaunchPlan, **options: Any) -> Launch:
        """The launch that carries out its plan; ``options`` are those of ``commands.Launch``."""
        from jaxcluster.launchers.commands import Launch

        return Launch(self, plan, **options)

    def typed(self, command: Command) -> str:
        """The command that a user types to test the way to the hosts; "" for none."""
        return ""

    def explain(self, plan: LaunchPlan, run: Run) -> Reason:
        """Why a command ended, or its agents never came."""
        one = run.command.hosts[0] if len(run.command.hosts) == 1 else None
        where = plan.hosts[one] if plan.hosts and one is not None else "the hosts"
        command, typed = os.path.basename(run.command.argv[0]), self.typed(run.command)
        lines = (*tuple(run.out)[-1:], *run.err)
        line, hint = failures.cause(lines, run.command.python, typed, self.refused)
        how = failures.how_it_ended(run.code) + "." + (f' It says: "{line}"' if line else "")
        if run.is_ready:
            lost = "can't be reached" if run.code is None else "is lost"
            told = f"The agent on {where} {lost}: {command} {how}"
            return Reason(told, self.cut if run.code is None else "")
        if run.code is None:
            told = f"No agent on {where} yet: {command} {how}"
            see = f"   Or see: {typed}" if typed else ""
            return Reason(told, hint or f"Wait longer: --timeout 180{see}")
        hint = hint or (f"Try: {typed}" if typed else self.refused)
        return Reason(f"No agent on {where}: {command} {how}", hint)

    def waiting(self, plan: LaunchPlan) -> str:
        """A few words: what the start waits for while agents are missing.

        Raises:
          LaunchError: they never will.
        """
        return ""

    def ends_in(self, plan: LaunchPlan) -> tuple[str, float] | None:
        """(who is going to end what, in how many seconds), where the agents' time is limited."""
        return None

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command | None:
        """The command that starts a new agent on the host of this number and name, if any."""
        return None


def lacks(command: str, environ: Mapping[str, str]) -> str:
    """That this machine has no such command; empty where it has."""
    has = shutil.which(command, path=environ.get("PATH"))
    return "" if has else f"there is no {command} on this machine"


def find_program(name: str, environ: Mapping[str, str], hint: str, what: str = "") -> None:
    """See that this machine has a program; ``what`` says more of one that it lacks.

    Raises:
      LauncherUnavailable: it has none.
    """
    if lack := lacks(name, environ):
        raise LauncherUnavailable(f"T{lack[1:]}{what}.", hint)


def find(environ: Mapping[str, str] = os.environ) -> Inside | None:
    """The allocation that this process runs in; None where it is in none.

    The first launcher's counts that knows one.
    """
    found = (launcher.found_around(environ) for launcher in known().launchers.values())
    return next(filter(None, found), None)


def launcher_of(
    name: str | None, typed: Mapping[str, Any], num_processes: int | None = None
) -> tuple[Launcher | None, str]:
    """(the launcher that was asked for, the hosts' Python or nothing); None stands for local.

    ``name`` is what stands behind ``--launcher``, ``typed`` its own options as text.

    Raises:
      UsageError: there is no such launcher, it does not know an option, or a value is wrong.
    """
    kind, what = known().check(name or LOCAL, typed)
    given = {name: known().of_launchers[name].value(value) for name, value in typed.items()}
    if kind == LOCAL:
        return None, ""
    launcher: type[Launcher] = known().launchers[kind]
    python = given.pop("python", launcher.python)
    given.pop("lease", None)  # the agents'
    return launcher.of(given, num_processes, what), python


def describe(plan: LaunchPlan) -> str:
    """The plan as text, for ``--dry-run``."""
    many = "hosts, one agent each" if plan.num_hosts > 1 else "host, one agent"
    lines = [f"launcher {plan.launcher}: {plan.num_hosts} {many}"]
    ranks = [name_ranks(one) for one in ranks_by_host(plan.ranks or ())]
    for name, own in zip_longest(plan.hosts, ranks if plan.hosts else ()):
        lines.append(f"  host {name}: {own or 'ranks as its devices allow'}")
    for one in plan.objects:
        lines.append(f"{one['kind']}:")
        lines += [f"  {line}" for line in json.dumps(one, indent=1).splitlines()]
    for command in plan.commands:
        lines += ["run:", f"  {shlex.join(command.argv)}"]
        lines += [f"  at the end: {shlex.join(command.cancel)}"] if command.cancel else []
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])
