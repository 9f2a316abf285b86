"""Agents in a Slurm job: one per node, as one step (``srun``), whose output has their lines.

Outside of an allocation ``salloc`` makes one and starts the step in it. Inside of one the step runs
beside what runs there (``--overlap``), and ends with srun's input.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from jaxcluster.errors import LaunchError, UsageError
from jaxcluster.launchers.base import (
    FENCE,
    MEM,
    NODES,
    NTASKS_PER_NODE,
    TIME,
    AgentOptions,
    Command,
    Inside,
    Launcher,
    LaunchPlan,
    agent_command,
    find_program,
    lacks,
)
from jaxcluster.launchers.failures import Reason, run_briefly
from jaxcluster.launchers.hosts import expand_nodelist
from jaxcluster.options.table import COUNT, SWITCH, TEXT, TEXTS, VISIBLE, Field, Option
from jaxcluster.plan.shares import place_on
from jaxcluster.text import plural

if TYPE_CHECKING:
    from jaxcluster.launchers.commands import Run

ASK_S = 20.0  # Slurm's commands may take so long
COMPLETES_S = 5.0  # until an ending job shows its last state: CANCELLED, TIMEOUT
STEP_ENDS_S = 10.0  # from the end of its input; srun that gets SIGTERM kills the agents
# Options for a job, by salloc's names.
OF_A_JOB = (
    "partition", "account", "qos", "time", "nodes", "ntasks_per_node", "cpus_per_task", "mem",
    "gres", "constraint",
)  # fmt: skip
# Those of the allocation; the rest of SLURM_* would be taken by srun for its options.
KEPT_VARIABLES = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_CLUSTERS")
NOT_OURS = ("SLURM_", "SBATCH_", "SALLOC_", "PMI_", "PMIX_", "JAXCLUSTER_")
# salloc sets these if a job asks per task or per GPU. srun would limit the one agent to one share.
OF_A_TASK = (
    "SLURM_CPU_BIND", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU", "SLURM_TRES_PER_TASK",
    "SLURM_GPU_BIND", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_SOCKET", "SLURM_NTASKS_PER_GPU",
)  # fmt: skip
# A node's one agent starts with all that the job has there, and is bound to nothing. One node's
# end does not end the others.
STEP = (
    "--ntasks-per-node=1", "--overlap", "--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0",
    "--wait=0", "--export=ALL", "--unbuffered",
)  # fmt: skip
GOES_ON = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "STOPPED")
# Reasons of squeue's after which waiting is in vain.
NEVER = re.compile(
    r"Partition(Time|Node)Limit|PartitionConfig|BadConstraints|(Account|QOS)NotAllowed"
    r"|Invalid(Account|QOS)|DependencyNeverSatisfied"
)


@dataclass(frozen=True)
class Allocation:
    """The job in which this process runs.

    ``tasks`` are as many as ``srun`` would start on each node, so that rank and SLURM_PROCID agree.
    There are none if the job asked only for the one task that a notebook needs.
    """

    job: str
    nodes: tuple[str, ...]
    tasks: tuple[int, ...] = ()


class Job(NamedTuple):
    """A job as squeue lists it."""

    id: str
    state: str
    reason: str
    end: str
    start: str
    nodes: str

    def __str__(self) -> str:
        known = self.reason.strip("()") not in ("", "None")
        return f"{self.state} ({self.reason})" if known else self.state


def allocation_of(environ: Mapping[str, str]) -> Allocation | None:
    """The job that a process with this environment runs in; None outside of one."""
    try:
        nodes = expand_nodelist(environ["SLURM_JOB_NODELIST"])
        return Allocation(environ["SLURM_JOB_ID"], nodes, _tasks(environ, len(nodes)))
    except (KeyError, ValueError):
        return None


def _tasks(environ: Mapping[str, str], nodes: int) -> tuple[int, ...]:
    """The job's tasks on each node, where several were asked for.

    Without ``--ntasks`` SLURM_TASKS_PER_NODE counts nodes or cores, as Slurm is set up. In a step
    of one task it counts that. Neither says how many ranks were meant.
    """
    # 2(x3),1 stands for 2, 2, 2, 1.
    pairs = re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get("SLURM_TASKS_PER_NODE", ""))
    counts = tuple(int(n) for n, times in pairs for _ in range(int(times or 1)))
    if len(counts) == nodes and sum(counts) > 1 and environ.get("SLURM_NTASKS") == str(sum(counts)):
        return counts
    each = environ.get("SLURM_NTASKS_PER_NODE", "")
    return (int(each),) * nodes if each.isdecimal() and int(each) * nodes > 1 else ()


@dataclass(frozen=True)
class Slurm(Launcher):
    """``--launcher slurm``; the options are salloc's own.

    ``prepared`` fills in the allocation, and the variables that srun is not to see (``drop``).
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
    salloc: tuple[str, ...] = ()
    new_job: bool = False
    allocation: Allocation | None = None
    drop: tuple[str, ...] = ()

    name = "slurm"
    start = "--launcher slurm --nodes 2"
    example = "%jaxcluster start --launcher slurm --nodes 2 --ntasks-per-node 2"
    options = (
        NODES, NTASKS_PER_NODE,
        Option("--partition", TEXT, "NAME", "as for salloc", "gpu", field=Field("Partition"),
            pattern=VISIBLE),
        Option("--account", TEXT, "NAME", "as for salloc", "physics", field=Field("Account"),
            pattern=VISIBLE),
        Option("--qos", TEXT, "NAME", "as for salloc", "debug", pattern=VISIBLE),
        TIME,
        Option("--gres", TEXT, "LIST", "as for salloc: gpu:4", "gpu:4", pattern=VISIBLE),
        Option("--constraint", TEXT, "LIST", "as for salloc", "h200", pattern=VISIBLE),
        Option("--cpus-per-task", COUNT, "N", "as for salloc", "8"),
        MEM,
        Option("--salloc", TEXTS, "OPTION", "another option of salloc: exclusive; may be repeated",
            "exclusive"),
        Option("--new-job", SWITCH, "", "make a job even inside an allocation"),
    )  # fmt: skip
    refused = (
        "sinfo lists partitions and nodes, and sacctmgr your accounts. Check --partition, "
        "--nodes, --gres, --mem, --constraint, --time, --account, --qos"
    )

    @classmethod
    def found_around(cls, environ: Mapping[str, str]) -> Inside | None:
        if (here := allocation_of(environ)) is None:
            return None
        tasks = f", {plural(sum(here.tasks), 'task')}" if here.tasks else ""
        # On the job's one node, with one task: a start takes all of it as it is. A shell of
        # salloc's, which has no SLURMD_NODENAME, may be elsewhere.
        is_all = len(here.nodes) == 1 and not here.tasks and bool(environ.get("SLURMD_NODENAME"))
        what = f"Slurm's job {here.job} ({plural(len(here.nodes), 'node')}{tasks})"
        return Inside(what, cls.name, lacks("srun", environ), is_offered=not is_all)

    def prepared(self, environ: Mapping[str, str]) -> Slurm:
        here = None if self.new_job else allocation_of(environ)
        tool = "salloc" if here is None else "srun"
        others = "On this machine alone: %jaxcluster start   By ssh: --launcher ssh --hosts h1,h2"
        find_program(tool, environ, others, ": it is not a login node of a Slurm cluster")
        own = ("JPY_PARENT_PID", "JPY_INTERRUPT_EVENT", "IPP_CONNECTION_INFO")
        taken = (k for k in environ if k in own or k.startswith(NOT_OURS))
        ready = replace(self, allocation=here, drop=tuple(sorted({*taken} - {*KEPT_VARIABLES})))
        if here is None:
            return ready
        asked = (name for name in (*OF_A_JOB, "salloc") if name not in ("nodes", "ntasks_per_node"))
        if given := [f"--{name.replace('_', '-')}" for name in asked if getattr(self, name)]:
            told = f"{', '.join(given)}: this notebook is already in Slurm's job {here.job}."
            raise UsageError(told, "Leave it out, or make another job: --new-job")
        if self.nodes is not None and self.nodes > len(here.nodes):
            told = f"--nodes {self.nodes}: this notebook is in job {here.job}, which has "
            hint = "For all of its nodes, leave out --nodes. For another job: --new-job"
            raise UsageError(f"{told}{len(here.nodes)}.", hint)
        return ready

    def render(self, agent: AgentOptions, folder: str) -> LaunchPlan:
        if self.allocation is not None:
            return self._in_allocation(agent, self.allocation)
        nodes = self.nodes or 1
        # By its name a job can be cancelled also where the notebook has never learnt its number.
        job = f"jaxcluster-{re.sub(r'[^A-Za-z0-9_.-]', '-', agent.cluster)}-{agent.token(folder)}"
        counts = self._ranks(nodes)
        asked = {name: getattr(self, name) for name in OF_A_JOB} | {"nodes": nodes}
        asked["ntasks_per_node"] = self.ntasks_per_node or (counts[0] if counts else None)
        words = (f"--{n.replace('_', '-')}={value}" for n, value in asked.items() if value)
        # srun must not give the one agent the limits of one task of the job's.
        unset = (word for name in OF_A_TASK for word in ("-u", name))
        step = self._step(agent_command(agent), nodes, "--input=none")
        # Ours follow them: Slurm takes the last of two.
        given = filter(None, map(str.strip, self.salloc))
        further = (one if one.startswith("-") else f"--{one}" for one in given)
        command = Command(
            ("salloc", "--quiet", *further, f"--job-name={job}", *words, "env", *unset,
             *step),
            tuple(range(nodes)), agent.python, drop=self.drop,
            cancel=("scancel", "--quiet", f"--name={job}"),
            # A request that is under way must reach Slurm before it can be cancelled.
            term_s=2.0,
        )  # fmt: skip
        return LaunchPlan("slurm", nodes, (command,), (), counts, agent=agent)

    def _in_allocation(self, agent: AgentOptions, here: Allocation) -> LaunchPlan:
        nodes = here.nodes[: self.nodes]
        command = self._step_of(agent, here.job, nodes, range(len(nodes)))
        return LaunchPlan(
            "slurm", len(nodes), (command,), nodes, self._ranks(len(nodes)),
            notes=(f"a step of job {here.job}: no job is made",), agent=agent,
        )  # fmt: skip

    @staticmethod
    def _step(agent: Sequence[str], nodes: int, *options: str) -> tuple[str, ...]:
        return ("srun", f"--nodes={nodes}", f"--ntasks={nodes}", *STEP, *options, *agent)

    def _step_of(
        self,
        agent: AgentOptions,
        job: str,
        nodes: Sequence[str],
        numbers: Sequence[int],
        *last: str,
    ) -> Command:
        words, where = (*agent_command(agent, stdin_ends=True), *last), ",".join(nodes)
        argv = self._step(words, len(nodes), f"--jobid={job}", f"--nodelist={where}")
        return Command(
            argv, tuple(numbers), agent.python, drop=self.drop, keeps_stdin=True,
            stdin_s=STEP_ENDS_S, term_s=2.0,
        )  # fmt: skip

    def successor(self, plan: LaunchPlan, number: int, name: str) -> Command | None:
        """A step of the allocation in which this process runs, or of the job while that runs."""
        if self.allocation is not None:
            job, nodes = self.allocation.job, plan.hosts
        elif (found := self._job(plan)) is not None and found.state == "RUNNING":
            job, nodes = found.id, expand_nodelist(found.nodes)
        else:
            return None
        if plan.agent is None or number >= len(nodes):
            return None
        # A node's name is its host's, unless the site says otherwise. The job's first task is on
        # its first node, and so is host 0.
        short = name.partition(".")[0]
        node = short if short in nodes else nodes[number]
        return self._step_of(plan.agent, job, (node,), (number,), FENCE)

    def _ranks(self, nodes: int) -> tuple[int, ...] | None:
        here, each = self.allocation, self.ntasks_per_node
        if each is None and self.num_processes is None and here and here.tasks:
            return here.tasks[:nodes]
        example = "--nodes 2 --ntasks-per-node 2"
        return place_on(nodes, "node", each, self.num_processes, example)

    def waiting(self, plan: LaunchPlan) -> str:
        job = self._job(plan) if self.allocation is None else None
        if job is None or job.state == "RUNNING":
            return ""
        told = f"job {job.id} is {job}"
        if job.state == "PENDING" and NEVER.match(job.reason.strip("()")):
            raise LaunchError(f"J{told[1:]} and can't start. It was cancelled.", self.refused)
        is_known = job.start[:1].isdigit()
        return told + (f"; it is expected to start at {job.start}" if is_known else "")

    def ends_in(self, plan: LaunchPlan) -> tuple[str, float] | None:
        job = self._job(plan)
        if job is None or job.state != "RUNNING":
            return None
        with contextlib.suppress(ValueError):  # N/A, or as SLURM_TIME_FORMAT has it
            left_s = datetime.fromisoformat(job.end).timestamp() - time.time()
            return f"Slurm ends job {job.id}", left_s
        return None

    def explain(self, plan: LaunchPlan, run: Run) -> Reason:
        found = super().explain(plan, run)
        if self.allocation is not None and run.code and not run.is_ready:
            return Reason(found.message, f"{found.hint}   For another job: --new-job".strip())
        job = self._job(plan) if run.command.cancel else None  # else it is a step
        if job is None:
            return found
        until = time.monotonic() + COMPLETES_S
        while run.is_ready and job.state == "COMPLETING" and time.monotonic() < until:
            time.sleep(0.25)
            job = self._job(plan) or job
        if run.is_ready and job.state not in GOES_ON:
            hint = "Ask for longer: --time 2:00:00" if job.state == "TIMEOUT" else ""
            return Reason(f"Slurm's job {job.id} has ended: {job}.", hint, has_ended=True)
        hint = "It was cancelled. Wait longer: --timeout 3600" if run.code is None else found.hint
        return Reason(f"Job {job.id} is {job}. {found.message}", hint)

    def _job(self, plan: LaunchPlan) -> Job | None:
        """The job as squeue lists it, if it answers."""
        here = self.allocation
        which = f"--jobs={here.job}" if here is not None else plan.commands[0].cancel[-1]
        env = {k: v for k, v in os.environ.items() if k not in self.drop}
        asked = ("squeue", "--noheader", "--states=all", which, "--format=%i|%T|%r|%e|%S|%N")
        try:
            lines = run_briefly(asked, ASK_S, env).stdout.splitlines()
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = [line.strip().split("|") for line in reversed(lines)]
        return next((Job(*job) for job in found if len(job) == 6 and job[0][:1].isdigit()), None)
