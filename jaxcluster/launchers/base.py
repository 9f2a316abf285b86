"""What a launcher is: it gets one agent onto each host, and nothing else.

``Launcher.render`` is pure: from a user's options to a ``LaunchPlan``, which says all that will be
run and written, and is what ``--dry-run`` shows. ``launchers.commands`` carries a plan out, and
``supervision.keeper`` ends what runs when the notebook's process is gone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from jaxcluster.launchers import failures
from jaxcluster.launchers.detection import Inside
from jaxcluster.launchers.failures import Reason
from jaxcluster.launchers.hosts import named_hosts
from jaxcluster.launchers.quoting import quote_path
from jaxcluster.launchers.shared_options import NAMED_HOSTS
from jaxcluster.options.table import Option
from jaxcluster.supervision.commands import Task

if TYPE_CHECKING:
    from jaxcluster.launchers.commands import Launch, Run

FENCE = "--fence"  # the last argument of a successor: it first ends an older agent on its host
LEASE_S = 20.0  # an agent without its owner's connection ends after this
ANNOUNCEMENT = "jaxcluster-agent"
STOPPED = "The start was stopped."


@dataclass(frozen=True)
class AgentOptions:
    """What every agent of a cluster is started with.

    Attributes:
      cluster: its name.
      owner_key: the owner's public key, as ``transport.Keys.public`` has it. Public: it may stand
        in a command line.
      python: the Python of the hosts.
      lease_s: how long an agent lives without its owner's connection.
      env: variables of the agents' environment, beside those of the host.
      first_lease_s: how long an agent may have to wait for its owner's first connection, because
        the start waits for other agents; only launchers whose agents come apart pass it on.
    """

    cluster: str
    owner_key: str
    python: str
    lease_s: float = LEASE_S
    env: tuple[tuple[str, str], ...] = ()
    first_lease_s: float = 60.0


def agent_argv(agent: AgentOptions, listen: str = "", stdin_ends: bool = False) -> list[str]:
    """The agent's command line (``jaxcluster.agent.server``): the one place that knows it.

    Args:
      listen: the path of a Unix socket; empty for a TCP port of any number.
      stdin_ends: whether the agent ends when its standard input does.
    """
    return [
        agent.python,
        "-P",  # no module from the folder in which it happens to start
        "-m",
        "jaxcluster.agent",
        f"--owner-key={agent.owner_key}",
        # With the key: another notebook's cluster may have the same name, and must not be fenced.
        f"--id={agent.cluster}-{agent.owner_key[:12]}",
        f"--lease={agent.lease_s:g}",
        *([f"--bind=ipc://{listen}"] if listen else []),
        *(["--owner-stdin"] if stdin_ends else []),
    ]


def agent_command(agent: AgentOptions, stdin_ends: bool = False) -> list[str]:
    """The agent's command line for who runs it on its host without a shell, with its environment.

    A Python in ``~/`` is looked for in the home there, which needs a shell.
    """
    words = agent_argv(agent, stdin_ends=stdin_ends)
    if agent.python.startswith("~"):
        words = ["sh", "-c", f'exec {quote_path(agent.python)} "$@"', "sh", *words[1:]]
    # Not srun's --export and mpiexec's -x or -genv: each of them reads some values itself.
    return [*(["env", *(f"{k}={v}" for k, v in agent.env)] if agent.env else []), *words]


def announcements(line: str) -> tuple[list[Mapping[str, Any]], str]:
    """The lines of agents' in a line of output, and what else is in it.

    Agents print ``{"jaxcluster-agent": 1, ...}`` and, at their end, ``{"jaxcluster-agent-ended":
    WHY, ...}``. A login shell may have printed before it without a line break, and two agents'
    lines may come as one.
    """
    found: list[Mapping[str, Any]] = []
    rest, at = "", 0
    decoder = json.JSONDecoder()
    for match in re.finditer(rf'\{{\s*"{ANNOUNCEMENT}(-ended)?"\s*:', line):
        if match.start() < at:
            continue
        try:
            value, end = decoder.raw_decode(line, match.start())
        except ValueError:
            continue
        found.append(value)
        rest += line[at : match.start()]
        at = end
    return found, rest + line[at:]


@dataclass(frozen=True)
class PlannedFile:
    """A file to be written before the commands run; in a folder of the user's own."""

    path: str
    text: str
    mode: int = 0o600


@dataclass(frozen=True)
class Command(Task):
    """One command of a launcher. The agents of one that keeps its standard input end with that.

    One with a ``socket`` starts one agent, which is reached there.

    Attributes:
      hosts: the numbers of the hosts on which it starts an agent.
      python: what its agents are started with there, for messages.
      tried_again: what it says (a pattern) where it may be run again; empty for never.
    """

    hosts: tuple[int, ...]
    python: str = ""
    tried_again: str = ""


@dataclass(frozen=True)
class LaunchPlan:
    """All that a launcher is going to run and write.

    Attributes:
      launcher: its name.
      hosts: the hosts' names in order; empty where the launcher chooses them.
      num_hosts: how many agents are expected.
      ranks: how many ranks each host gets; None where the hosts' devices decide it.
      commands: one for all hosts, or one for each.
      files: written before.
      objects: what is asked of an API, as JSON.
      folder: where the sockets lie that lead to agents, where no command makes them.
      notes: what the user should know besides.
      agent: what ``successor`` starts where no command here starts one agent alone.
    """

    launcher: str
    num_hosts: int
    commands: tuple[Command, ...] = ()
    hosts: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    files: tuple[PlannedFile, ...] = ()
    objects: tuple[Mapping[str, Any], ...] = ()
    folder: str = ""
    notes: tuple[str, ...] = ()
    agent: AgentOptions | None = None


class Launcher(ABC):
    """One way to start agents: a frozen dataclass of the options that the user gave.

    It is found by an entry point of its name, in the group ``jaxcluster.launchers``. A subclass has
    at least ``name``, ``start``, ``render``, a field ``num_processes`` (``-n``), and one for each
    of its options. ``of``, ``render`` and ``typed`` are pure; all else may look at this machine,
    and may be slow.

    Attributes:
      name: as in ``--launcher``.
      start: what stands behind ``%jaxcluster start`` at least.
      example: a whole start with it; "" for one with ``start``.
      options: those that it knows, besides ``known.OF_ALL``. One that it shares with another
        launcher is the same ``Option``.
      takes: what a name behind a colon names, as in ``ipp:pbs``; "" where there is none.
      python: the hosts' Python, where none is named; "" for this machine's.
      platform: the ranks' platform, where none is asked for; "" for that of the hosts' devices.
      shares_folder: whether the folder that ``render`` gets must be one that the hosts share.
      refused: what to do where the hosts' owner has refused what was asked for.
    """

    name: ClassVar[str]
    start: ClassVar[str]
    example: ClassVar[str] = ""
    options: ClassVar[tuple[Option, ...]] = ()
    takes: ClassVar[str] = ""
    python: ClassVar[str] = ""
    platform: ClassVar[str] = ""
    shares_folder: ClassVar[bool] = False
    refused: ClassVar[str] = ""

    @classmethod
    def of(cls, given: dict[str, Any], num_processes: int | None, what: str = "") -> Self:
        """The launcher for what was typed. Pure, but for a hostfile.

        Args:
          given: the values of its own options, by their names.
          num_processes: ``-n``.
          what: what stands behind the colon of its name.

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
        """This launcher with what only this machine can say filled in.

        Raises:
          LauncherUnavailable: what it needs is not on this machine.
          UsageError: the options don't fit this machine.
        """
        return self

    @abstractmethod
    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        """All that is going to be run and written. Pure.

        Args:
          agent: what every agent is started with.
          folder: a folder of this user's alone (0700) that the plan may name files in. Its path
            is different for every start.

        Raises:
          UsageError: an option can't be passed on.
        """

    def launch(self, plan: LaunchPlan, **options: Any) -> Launch:
        """What carries a plan of its out; ``options`` are those of ``commands.Launch``."""
        from jaxcluster.launchers.commands import Launch

        return Launch(self, plan, **options)

    def typed(self, command: Command) -> str:
        """What a user would type to try a command's way to its hosts; "" for nothing. Pure."""
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
            return Reason(f"The agent on {where} is lost: {command} {how}")
        if run.code is None:
            told = f"No agent on {where} yet: {command} {how}"
            see = f"   Or see: {typed}" if typed else ""
            return Reason(told, hint or f"Wait longer: --timeout 180{see}")
        hint = hint or (f"Try: {typed}" if typed else self.refused)
        return Reason(f"No agent on {where}: {command} {how}", hint)

    def waiting(self, plan: LaunchPlan) -> str:
        """What is waited for, briefly, while agents have not come.

        Raises:
          LaunchError: they never will.
        """
        return ""

    def ends_in(self, plan: LaunchPlan) -> tuple[str, float] | None:
        """(who is going to end what, in how many seconds), where the agents' time is limited."""
        return None

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command | None:
        """The command that starts a new agent on one host; None where there is none.

        Args:
          number: which host of the plan.
          name: the host's own name, as its agent gave it.
        """
        return None


def describe(plan: LaunchPlan) -> str:
    """The plan as text, for ``--dry-run``."""
    return "\n".join(_describe(plan))


def _describe(plan: LaunchPlan) -> Iterator[str]:
    many = "host" if plan.num_hosts == 1 else "hosts"
    agents = "one agent each" if plan.num_hosts > 1 else "one agent"
    yield f"launcher {plan.launcher}: {plan.num_hosts} {many}, {agents}"
    first = 0
    for number, name in enumerate(plan.hosts):
        n = plan.ranks[number] if plan.ranks is not None else None
        last = first + (n or 0) - 1
        ranks = f"rank {first}" if n == 1 else f"ranks {first}-{last}"
        yield f"  host {name}: {ranks if n is not None else 'ranks as its devices allow'}"
        first = last + 1
    for file in plan.files:
        yield f"file {file.path} ({file.mode:04o}):"
        yield from (f"  {line}".rstrip() for line in file.text.splitlines())
    for one in plan.objects:
        yield f"{one['kind']}:"
        yield from (f"  {line}" for line in json.dumps(one, indent=1).splitlines())
    told = [tuple(_about(command)) for command in plan.commands]
    # Of 64 hosts all that differs is the command.
    common = [line for line in told[0] if all(line in each for each in told)] if told[1:] else []
    for command, lines in zip(plan.commands, told, strict=True):
        yield "run:"
        yield f"  {shlex.join(command.argv)}"
        yield from (f"  {line}" for line in lines if line not in common)
    if common:
        yield "each of them:"
        yield from (f"  {line}" for line in common)
    for note in plan.notes:
        yield f"note: {note}"


def _about(command: Command) -> Iterator[str]:
    """What is to be said of a command besides what it printed."""
    for name, value in command.env:
        yield f"with {name}={value}"
    if command.drop:
        yield f"without {' '.join(command.drop)}"
    if command.keeps_stdin:
        yield "its standard input is kept open; the agents end with it"
    if command.socket:
        yield f"its agent is reached at {command.socket}"
    if command.cancel:
        yield f"at the end: {shlex.join(command.cancel)}"
