"""Agents in a Slurm job: one per node, as one step.

Outside of an allocation a job is submitted (``sbatch --wait``), whose script starts the step; the
agents' lines come in the job's output file, so the folder of the launch must be one that the nodes
share. Inside an allocation the step is started in it (``srun --overlap``): no second job, no file,
and the agents end with srun's input.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from jaxcluster.errors import LaunchError, LauncherUnavailable, UsageError
from jaxcluster.launchers.base import (
    FENCE,
    AgentOptions,
    Command,
    End,
    Launcher,
    LaunchPlan,
    PlannedFile,
    Reason,
    agent_argv,
    agent_command,
)
from jaxcluster.launchers.detection import Inside, Surroundings
from jaxcluster.launchers.hosts import expand_nodelist, place_on
from jaxcluster.launchers.quoting import sh_line
from jaxcluster.launchers.reasons import how_it_ended, last_line, python_trouble, run_briefly
from jaxcluster.launchers.shared_options import MEM, NODES, NTASKS_PER_NODE, TIME
from jaxcluster.launchers.slurm import jobs
from jaxcluster.launchers.slurm.jobs import Job
from jaxcluster.options.table import VISIBLE, Field, Option
from jaxcluster.options.value_types import COUNT, SWITCH, TEXT, TEXTS
from jaxcluster.supervision.guard import CANCEL_S
from jaxcluster.text import plural

ASK_S = 20.0  # Slurm's commands have so long
# From the end of its input: srun that gets SIGTERM has the agents killed, with what they still
# have to remove on their nodes.
STEP_ENDS_S = 10.0
# What is asked for a job, by its option, in the order of its script.
OF_A_JOB = (
    "partition", "account", "qos", "time", "nodes", "ntasks_per_node", "cpus_per_task", "mem",
    "gres", "constraint",
)  # fmt: skip
# Of the allocation's own; the rest of SLURM_* would be taken by srun for its options.
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
# Of a job's script: what it asked for each task or GPU, which srun would give the one agent.
OF_A_TASK = (
    "SLURM_CPU_BIND",
    "SLURM_CPUS_PER_TASK",
    "SLURM_CPUS_PER_GPU",
    "SLURM_TRES_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
)
# Options that are ours to give.
NEEDED = ("job-name", "J", "output", "o", "error", "e", "wrap", "array", "a", "parsable")
# What a node's one agent is started with: all that the job has there, bound to nothing, and one
# node's end is not the others'.
STEP = (
    "--ntasks-per-node=1",
    "--overlap",
    "--cpu-bind=none",
    "--mpi=none",
    "--kill-on-bad-exit=0",
    "--wait=0",
)


@dataclass(frozen=True)
class Allocation:
    """The job in which this process runs.

    Attributes:
      job: its number.
      nodes: their names; none where Slurm does not say.
      tasks: how many ``srun`` would start on each node, so that rank and SLURM_PROCID agree; none
        where only the one was asked for that a notebook itself needs.
    """

    job: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...] = ()


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """The job that a process with this environment runs in; None outside of one."""
    job = environ.get("SLURM_JOB_ID", "")
    if not job:
        return None
    try:
        nodes = expand_nodelist(environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        nodes = ()
    nodes = tuple(node for node in nodes if node)
    return Allocation(job, nodes, _tasks(environ, len(nodes)))


def is_over(environ: Mapping[str, str]) -> bool:
    """Whether the job of an environment has ended: its end has come, and squeue knows no such job.

    A shell, a multiplexer or a kernel may outlive the job in which it was started. The end alone
    does not say it: a job's time may be extended.
    """
    end = environ.get("SLURM_JOB_END_TIME", "")
    if not end.isdecimal() or int(end) > time.time():
        return False
    return not _is_listed(environ.get("SLURM_JOB_ID", ""))


def _is_listed(job: str) -> bool:
    """Whether squeue has the job among those that run or wait; so too where it does not answer."""
    try:
        done = run_briefly(("squeue", "--noheader", f"--jobs={job}", "--format=%i"), ASK_S)
    except (OSError, subprocess.TimeoutExpired):
        return True
    if done.returncode != 0:
        return "Invalid job id" not in done.stderr
    return bool(done.stdout.strip())


def _tasks(environ: Mapping[str, str], nodes: int) -> tuple[int, ...]:
    """The job's tasks on each node, where several were asked for.

    Without ``--ntasks`` SLURM_TASKS_PER_NODE counts nodes or cores, whichever Slurm is set up for,
    and in a step of one task it counts that: neither says how many ranks were meant.
    """
    total, counts = environ.get("SLURM_NTASKS", ""), _counts(environ.get("SLURM_TASKS_PER_NODE"))
    if total.isdecimal() and int(total) > 1 and len(counts) == nodes and sum(counts) == int(total):
        return counts
    each = environ.get("SLURM_NTASKS_PER_NODE", "")
    if each.isdecimal() and int(each) * nodes > 1:
        return (int(each),) * nodes
    return ()


def _counts(text: str | None) -> tuple[int, ...]:
    """The numbers of ``2(x3),1``; none of what is not such a list."""
    found: list[int] = []
    for word in (text or "").split(","):
        if (match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", word)) is None:
            return ()
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


@dataclass(frozen=True)
class Slurm(Launcher):
    """``--launcher slurm``; the options are sbatch's own.

    Attributes:
      num_processes: ``-n``; None where ``ntasks_per_node`` or the nodes' devices decide it.
      nodes: how many; None means 1, or all of the allocation.
      ntasks_per_node: how many ranks a node gets.
      sbatch: further ``#SBATCH`` options, each as it is in a script.
      new_job: submit a job inside of an allocation, too.
      allocation: ``prepared`` fills it in.
      drop: variables that srun is not to see; ``prepared`` fills them in.
    """

    num_processes: int | None = None
    nodes: int | None = None
    ntasks_per_node: int | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    time: str = ""
    gres: str = ""
    constraint: str = ""
    cpus_per_task: int | None = None
    mem: str = ""
    sbatch: tuple[str, ...] = ()
    new_job: bool = False
    allocation: Allocation | None = None
    drop: tuple[str, ...] = field(default=())

    name = "slurm"
    start = "--launcher slurm --nodes 2"
    example = "%jaxcluster start --launcher slurm --nodes 2 --ntasks-per-node 2"
    options = (
        NODES, NTASKS_PER_NODE,
        Option("--partition", TEXT, "NAME", "as for sbatch", "gpu", field=Field("Partition"),
            pattern=VISIBLE),
        Option("--account", TEXT, "NAME", "as for sbatch", "physics", field=Field("Account"),
            pattern=VISIBLE),
        Option("--qos", TEXT, "NAME", "as for sbatch", "debug", pattern=VISIBLE),
        TIME,
        Option("--gres", TEXT, "LIST", "as for sbatch: gpu:4", "gpu:4", pattern=VISIBLE),
        Option("--constraint", TEXT, "LIST", "as for sbatch", "h200", pattern=VISIBLE),
        Option("--cpus-per-task", COUNT, "N", "as for sbatch", "8"),
        MEM,
        Option("--sbatch", TEXTS, "OPTION", "another #SBATCH option: exclusive; may be repeated",
            "exclusive"),
        Option("--new-job", SWITCH, "", "submit a job even inside an allocation"),
    )  # fmt: skip

    @classmethod
    def found_around(cls, around: Surroundings) -> Inside | None:
        environ = around.environ
        if (here := allocation_of(environ)) is None or is_over(environ):
            return None
        size = plural(len(here.nodes), "node") if here.nodes else "unknown nodes"
        tasks = f", {plural(sum(here.tasks), 'task')}" if here.tasks else ""
        obstacle = around.lacks("srun")
        if not here.nodes:
            obstacle = "SLURM_JOB_NODELIST does not name its nodes: --new-job, or --launcher local"
        # On the job's one node, with one task: a start takes all of it as it is. A shell of
        # salloc's, which has no SLURMD_NODENAME, may be elsewhere.
        is_all = len(here.nodes) == 1 and not here.tasks and bool(environ.get("SLURMD_NODENAME"))
        what = f"Slurm's job {here.job} ({size}{tasks})"
        return Inside(what, cls.name, obstacle=obstacle, is_offered=not is_all)

    @property
    def shares_folder(self) -> bool:
        return self.allocation is None  # a job's output comes in a file, a step's does not

    def prepared(self, environ: Mapping[str, str]) -> Slurm:
        here = None if self.new_job else allocation_of(environ)
        tool = "sbatch" if here is None else "srun"
        if shutil.which(tool, path=environ.get("PATH")) is None:
            raise LauncherUnavailable(
                f"There is no {tool} on this machine: it is not a login node of a Slurm cluster.",
                "On this machine alone: %jaxcluster start   By ssh: --launcher ssh --hosts h1,h2",
            )
        drop = tuple(sorted(k for k in environ if _is_option(k)))
        if here is None:
            return replace(self, allocation=None, drop=drop)
        self._refuse_a_job_s_options(here.job)
        if self.nodes is not None and self.nodes > len(here.nodes):
            raise UsageError(
                f"--nodes {self.nodes}: this notebook is in job {here.job}, which has "
                f"{len(here.nodes)}.",
                "All of its nodes: leave out --nodes. A job of its own: --new-job",
            )
        return replace(self, allocation=here, drop=drop)

    def _refuse_a_job_s_options(self, job: str) -> None:
        given = {name: getattr(self, name) for name in (*OF_A_JOB, "sbatch")}
        allowed = ("nodes", "ntasks_per_node")
        if names := [
            option.flag
            for option in self.options
            if given.get(option.name) and option.name not in allowed
        ]:
            raise UsageError(
                f"{', '.join(names)}: this notebook is already in Slurm's job {job}, and the "
                "agents start in it.",
                "Leave it out, or submit a job of its own: --new-job",
            )

    # -- render

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        self._check()
        if self.allocation is not None:
            return self._in_allocation(agent, self.allocation)
        nodes = self.nodes or 1
        job = job_name(agent, folder)
        script, out = f"{folder}/job.sh", f"{folder}/job.out"
        command = Command(
            ("sbatch", "--wait", "--parsable", script),
            tuple(range(nodes)),
            agent.python,
            drop=self.drop,
            cancel=("scancel", "--quiet", f"--name={job}"),
            announces_in=out,
            # sbatch does nothing on SIGTERM that is worth waiting for, but a submission that is
            # under way must reach Slurm before it can be cancelled.
            term_s=2.0,
        )
        files = (
            PlannedFile(script, self.script(agent, folder, job, nodes), 0o700),
            # Here before the job is: a shared file system remembers for a while what is not there.
            PlannedFile(out, ""),
            PlannedFile(f"{folder}/job.err", ""),
        )
        note = f"{folder} must be a folder that the nodes share"
        return LaunchPlan("slurm", nodes, (command,), (), self._ranks(nodes), files, (note,), agent)

    def script(self, agent: AgentOptions, folder: str, job: str, nodes: int) -> str:
        """The text for sbatch."""
        per_node = self.ntasks_per_node or self._per_node(nodes)
        asked = {name: getattr(self, name) for name in OF_A_JOB}
        asked |= {"nodes": nodes, "ntasks_per_node": per_node}
        wishes = [
            ("job-name", job),
            *((name.replace("_", "-"), str(value or "")) for name, value in asked.items()),
            ("output", f"{folder.replace('%', '%%')}/job.out"),
            ("error", f"{folder.replace('%', '%%')}/job.err"),
            ("open-mode", "append"),
            # A second start would find no notebook that waits for it.
            ("no-requeue", None),
        ]
        lines = ["#!/bin/sh"]
        for name, value in wishes:
            if value is None:
                lines.append(f"#SBATCH --{name}")
            elif value:
                lines.append(f"#SBATCH --{name}={_sbatch_word(value)}")
        lines += [f"#SBATCH {_as_option(line)}" for line in self.sbatch]
        # For every rank's sake, not for one: srun would hand on the limits of one task.
        lines.append(f"unset {' '.join(OF_A_TASK)}")
        lines += [f"export {name}={shlex.quote(value)}" for name, value in agent.env]
        step = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", *STEP]
        # ALL: what the job was submitted with (a site may have it submitted with NONE).
        step += ["--export=ALL", "--input=none", *agent_argv(agent)]
        lines.append(f"exec {sh_line(step, agent.python)}")
        return "\n".join(lines) + "\n"

    def _in_allocation(self, agent: AgentOptions, here: Allocation) -> LaunchPlan:
        nodes = here.nodes[: self.nodes]
        if not nodes:
            raise UsageError(
                f"This notebook is in job {here.job}, and SLURM_JOB_NODELIST does not name its "
                "nodes.",
                "Submit a job of its own: --new-job",
            )
        command = self._step(agent, here.job, nodes, tuple(range(len(nodes))))
        return LaunchPlan(
            "slurm", len(nodes), (command,), nodes, self._ranks(len(nodes)),
            notes=(f"a step of job {here.job}: no job is submitted",), agent=agent,
        )  # fmt: skip

    def _step(
        self, agent: AgentOptions, job: str, nodes: Sequence[str], numbers: tuple[int, ...]
    ) -> Command:
        argv = (
            "srun",
            f"--jobid={job}",
            f"--nodes={len(nodes)}",
            f"--ntasks={len(nodes)}",
            *STEP,
            f"--nodelist={','.join(nodes)}",
            "--export=ALL",
            "--unbuffered",
            *agent_command(agent, stdin_ends=True),
        )
        return Command(
            argv, numbers, agent.python, drop=self.drop, keeps_stdin=True, stdin_s=STEP_ENDS_S,
            term_s=2.0,
        )  # fmt: skip

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command | None:
        """A step of the allocation in which this process runs, or of the job while that runs."""
        if self.allocation is not None:
            job, nodes, agent = self.allocation.job, plan.hosts, plan.agent
        else:
            found = self._job(plan)
            if found is None or found.state != "RUNNING":
                return None
            job, nodes, agent = found.id, expand_nodelist(found.nodes), plan.agent
        if agent is None or number >= len(nodes):
            return None
        # A node's name is its host's, unless the site says otherwise; the job's first task, and so
        # host 0, is on its first node.
        short = name.partition(".")[0]
        node = short if short in nodes else nodes[number]
        step = self._step(agent, job, (node,), (number,))
        return replace(step, argv=(*step.argv, FENCE))

    def _per_node(self, nodes: int) -> int | None:
        counts = self._ranks(nodes)
        return counts[0] if counts else None

    def _ranks(self, nodes: int) -> tuple[int, ...] | None:
        here, each = self.allocation, self.ntasks_per_node
        if each is None and self.num_processes is None and here and here.tasks:
            return here.tasks[:nodes]
        example = "--nodes 2 --ntasks-per-node 2"
        return place_on(nodes, "node", each, self.num_processes, example)

    def _check(self) -> None:
        """Refuse what Slurm would misread.

        Raises:
          UsageError: naming the option.
        """

        def refuse(option: str, why: str, example: str) -> NoReturn:
            raise UsageError(f"{option} {why}.", f"For example: {option} {example}")

        if self.time and not jobs.check_time(self.time):
            refuse("--time", f"{self.time!r} is not a Slurm time", "2:00:00 (two hours)")
        for line in self.sbatch:
            if not re.match(r"-{0,2}[A-Za-z]", line) or re.search(r"[\x00-\x1f]", line):
                refuse("--sbatch", f"{line!r} is not an sbatch option", "exclusive")
            name = line.strip().lstrip("-").partition("=")[0].split(" ")[0]
            if name in NEEDED:
                refuse("--sbatch", f"can't set {line.strip()!r}: jaxcluster needs it", "exclusive")

    # -- what Slurm says

    def waiting(self, plan: LaunchPlan) -> str:
        if self.allocation is not None:
            return ""
        job = self._job(plan)
        if job is None:
            return ""
        if job.state == "PENDING" and (why := jobs.why_waiting(job.reason)).in_vain:
            raise LaunchError(
                f"Job {job.id} would never start ({job.reason}): {why.message}. It is cancelled.",
                why.hint,
            )
        before = None
        if job.state == "PENDING":
            queue = self._ask(
                "squeue", "--noheader", "--states=PENDING", f"--format={jobs.SQUEUE_FORMAT}",
                *([f"--partition={self.partition}"] if self.partition else []),
            )  # fmt: skip
            before = jobs.place_in_queue(job, jobs.parse_squeue(queue))
        return jobs.describe_waiting(job, before) if job.state != "RUNNING" else ""

    def warning(self, plan: LaunchPlan) -> tuple[str, float]:
        job = self._job(plan)
        return jobs.warn_of_limit(job) if job is not None else ("", jobs.LOOK_S)

    def evidence(self, plan: LaunchPlan, end: End) -> tuple[str, ...]:
        id = self.allocation.job if self.allocation is not None else submitted(end.chatter)
        if not id:  # sbatch tells it at its end only: what it prints into a pipe is held back
            job = self._job(plan)
            if job is None:
                return ()
            id = job.id
        told = self._ask("scontrol", "show", "job", id, "--oneliner")
        if "JobState=" not in told:  # forgotten already: after MinJobAge, 5 minutes
            fields = jobs.parse_sacct(
                self._ask(
                    *("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={id}"),
                    "--format=JobID,State,ExitCode,Reason",
                )
            )
            told = " ".join(f"{k}={v.replace(' ', '_')}" for k, v in fields.items())
        errors = [_tail(command_file(plan, ".err")), _tail(command_file(plan, ".out"))]
        return (told, *(line for text in errors for line in text.splitlines()))

    def explain(self, end: End, hosts: Sequence[str] = ()) -> Reason:
        # Of a step the job is given: of one in our allocation, and of another agent in our job.
        given = (word.removeprefix("--jobid=") for word in end.command.argv if "--jobid=" in word)
        return explain_slurm(end, next(given, ""))

    def left_behind(self, end: End, cancelled: int | None) -> Reason | None:
        """The job, where scancel could not end it. Its agents were told to end all the same."""
        refused = end.code is not None and end.code > 0 and not submitted(end.chatter)
        if not cancelled or refused:
            return None
        said = f' It says: "{end.cancel_said}"' if end.cancel_said else ""
        how = how_it_ended(cancelled) if cancelled > 0 else f"did not answer for {CANCEL_S:g} s"
        return Reason(
            (
                "A Slurm job of this cluster may be left over, queued or running: scancel "
                f"{how}.{said}"
            ),
            f"squeue --me lists it. To end it: {shlex.join(end.command.cancel)}",
        )

    def ended(self, plan: LaunchPlan) -> Reason | None:
        """``sbatch --wait`` looks at its job every ten seconds only."""
        job = self._job(plan) if self.allocation is None else None
        if job is None or not job.has_ended:
            return None
        end = End(plan.commands[0], None, was_ready=True)
        return self.explain(replace(end, evidence=self.evidence(plan, end)))

    def _job(self, plan: LaunchPlan) -> Job | None:
        """The job as squeue lists it."""
        if self.allocation is not None:
            which = f"--jobs={self.allocation.job}"
        else:
            which = plan.commands[0].cancel[-1]  # --name=
        text = self._ask(
            "squeue", "--noheader", "--states=all", which, f"--format={jobs.SQUEUE_FORMAT}"
        )
        found = jobs.parse_squeue(text)
        return found[-1] if found else None

    def _ask(self, *argv: str) -> str:
        """What a command of Slurm's prints; nothing where it fails, which it says itself later."""
        env = {k: v for k, v in os.environ.items() if k not in self.drop}
        try:
            done = run_briefly(argv, ASK_S, env)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout if done.returncode == 0 else ""


def job_name(agent: AgentOptions, folder: str) -> str:
    """The job's name, by which it is found and cancelled: no other job has it.

    By its name it can be cancelled also where the notebook has never learnt its number.
    """
    token = hashlib.sha256(f"{agent.owner_key} {folder}".encode()).hexdigest()[:10]
    return f"jaxcluster-{re.sub(r'[^A-Za-z0-9_.-]', '-', agent.cluster)}-{token}"


def command_file(plan: LaunchPlan, suffix: str) -> str:
    return next((file.path for file in plan.files if file.path.endswith(suffix)), "")


def submitted(lines: Sequence[str]) -> str:
    """The job's number, from what ``sbatch --parsable`` has printed."""
    for line in lines:
        if (found := re.fullmatch(r"(\d+)(;\S+)?", line.strip())) is not None:
            return found[1]
    return ""


def _is_option(name: str) -> bool:
    """Whether a variable would change what sbatch and srun do, or is a notebook's own."""
    if name.startswith(("SLURM_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_", "JAXCLUSTER_")):
        return name not in KEPT_VARIABLES
    return name in ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_CONNECTION_INFO")


def _as_option(line: str) -> str:
    """``exclusive`` or ``mem=4G`` as sbatch's own words; ``--exclusive`` as it stands."""
    return line if line.startswith("-") else f"--{line}"


def _sbatch_word(value: str) -> str:
    """A value of an ``#SBATCH`` line: sbatch reads quotes, and ``#`` begins a comment."""
    if re.fullmatch(r"[\w./:,@%+=&|*\[\]()!^~-]+", value):
        return value
    escaped = re.sub(r'(["\\])', r"\\\1", value)
    return f'"{escaped}"'


def _tail(path: str) -> str:
    """The end of a file; nothing where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


# ------------------------------------------------------------------------- what they said

_REFUSED = (
    (r"[Ii]nvalid partition", "Slurm has no such partition.", "sinfo lists them: --partition NAME"),
    (
        r"[Ii]nvalid account|account/partition combination|Invalid user",
        "Slurm refused the account.",
        "sacctmgr show associations user=$USER lists yours: --account NAME",
    ),
    (r"[Ii]nvalid qos", "Slurm refused the QOS.", "sacctmgr show qos lists them: --qos NAME"),
    (
        r"[Tt]ime limit|DueTime|time specification",
        "Slurm refused the time limit.",
        "Ask for less, or write it as Slurm does: --time 2:00:00",
    ),
    (
        r"generic resource|[Ii]nvalid gres|TRES",
        "Slurm has no such resource.",
        "sinfo -o '%P %G' lists them: --gres gpu:4",
    ),
    (
        r"[Ii]nvalid feature|[Cc]onstraint",
        "No Slurm node satisfies --constraint.",
        "sinfo -o '%N %f' lists what they have.",
    ),
    (
        r"node configuration is not available|More processors requested|Node count specification"
        r"|Memory required|Memory specification",
        "Slurm has no nodes of this kind, or not that many.",
        "sinfo -N -l lists them: --nodes, --ntasks-per-node, --gres, --mem",
    ),
    (
        r"QOS|accounting/QOS policy|[Ll]imit",
        "A limit of your account does not allow the job.",
        "Ask for fewer nodes or less time. squeue --me lists your running jobs.",
    ),
    (
        r"Unable to contact slurm controller|Connection refused|Could not establish a configuration"
        r"|Socket timed out|authentication|munge",
        "Slurm does not answer.",
        "Try: sinfo   The controller may be down, or this is not a login node.",
    ),
    (
        r"Invalid job id|already completing or completed|Job has been revoked|has expired",
        "The Slurm job of this notebook has ended.",
        "Start the notebook in a new one, or submit a job: --new-job   "
        "This machine alone: --launcher local",
    ),
)
_CANCELLED = re.compile(
    r"(?:JOB|STEP) (?P<job>[\d.+]+) ON (?P<node>\S+) CANCELLED(?: AT \S+)?"
    r"(?: DUE TO (?P<why>[A-Z ]+))?"
)


def explain_slurm(end: End, allocation: str = "") -> Reason:
    """Why agents in Slurm ended or never came. Pure.

    Args:
      allocation: the job in which a step was started; empty where a job was submitted.
    """
    described, *files = end.evidence or ("",)
    lines = [*files, *end.errors]
    if (
        trouble := python_trouble(lines, end.command.python, "on the nodes")
    ) is not None and not end.was_ready:
        return trouble
    for line in reversed(lines):
        if (found := _CANCELLED.search(line)) is not None and found["why"]:
            message, hint = jobs.describe_end(
                {"JobId": found["job"], "JobState": _state(found["why"])}
            )
            return Reason(f'{message} It says: "{line.strip()}"', hint)
    said = last_line(end.errors)
    fields = jobs.parse_scontrol(described)
    if not allocation and not submitted(end.chatter) and end.code not in (None, 0):
        return _refusal(end.errors, said)
    if allocation and end.code is not None:
        text = "\n".join(end.errors)
        for pattern, message, hint in _REFUSED[-2:]:
            if re.search(pattern, text):
                return Reason(f'{message} It says: "{said}"', hint)
    state = fields.get("JobState", "")
    if state in jobs.ENDED and not allocation:
        message, hint = jobs.describe_end(fields)
        last = last_line(files)
        return Reason(message + (f' Its last line: "{last}"' if last else ""), hint)
    if state in jobs.STATES and end.code is None and not allocation:
        reason = fields.get("Reason", "")
        job = Job(fields.get("JobId", "?"), state, reason)
        hint = jobs.why_waiting(reason).hint if state == "PENDING" else ""
        told = jobs.describe_waiting(job)
        return Reason(f"J{told[1:]}. It is cancelled.", hint or "Wait longer: --timeout 3600")
    evidence = f' It says: "{said or last_line(files)}"' if said or last_line(files) else ""
    what = "The step" if allocation else "The job"
    number = allocation or submitted(end.chatter)
    if end.code is None:
        return Reason(
            f"{what} of the agents (job {number or 'not submitted yet'}) is not ready.{evidence}",
            "Wait longer: --timeout 600",
        )
    return Reason(f"{what} of the agents (job {number}) {how_it_ended(end.code)}.{evidence}")


def _refusal(errors: Sequence[str], said: str) -> Reason:
    """Why sbatch refused the job."""
    text = "\n".join(errors)
    for pattern, message, hint in _REFUSED[:-1]:
        if re.search(pattern, text):
            return Reason(f'{message} sbatch says: "{said}"', hint)
    return Reason(f'Slurm refused the job. sbatch says: "{said}"', "Try: sinfo")


def _state(why: str) -> str:
    """A state of a job, from slurmstepd's "DUE TO ..."."""
    known = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
    return known.get(why.strip(), why.strip().replace(" ", "_"))
