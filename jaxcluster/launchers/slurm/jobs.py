"""What Slurm says of a job: squeue, scontrol and sacct read. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

WARN_S = 60.0  # before the time limit
LOOK_S = 30.0  # at a job that runs

# squeue --noheader --format
SQUEUE_FORMAT = "%i|%T|%r|%L|%S|%Q|%N"

STATES = {
    "PENDING": "is queued",
    "CONFIGURING": "has its nodes, and they are being prepared",
    "RUNNING": "runs",
    "COMPLETING": "is ending",
    "SUSPENDED": "is suspended",
    "COMPLETED": "has ended",
    "FAILED": "failed",
    "TIMEOUT": "reached its time limit",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted by another job",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "could not boot its nodes",
    "OUT_OF_MEMORY": "used more memory than it asked for",
    "DEADLINE": "could not end before its deadline",
    "REQUEUED": "was requeued",
    "REVOKED": "was revoked",
    "STOPPED": "was stopped",
}
ENDED = frozenset(STATES) - {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "STOPPED",
}  # fmt: skip


@dataclass(frozen=True)
class WhyWaiting:
    """A reason of squeue's: what it means, what to type, and whether waiting is in vain."""

    message: str
    hint: str = ""
    in_vain: bool = False


# From slurm's job_reason_str and `man squeue`, JOB REASON CODES.
REASONS = {
    "None": WhyWaiting("Slurm has not considered it yet"),
    "Resources": WhyWaiting("it is next, when nodes become free"),
    "Priority": WhyWaiting("other jobs are ahead of it"),
    "Dependency": WhyWaiting("it waits for another job"),
    "BeginTime": WhyWaiting("it waits for its begin time"),
    "Licenses": WhyWaiting("it waits for a licence"),
    "Prolog": WhyWaiting("its nodes are being prepared"),
    "Cleaning": WhyWaiting("it is back in the queue"),
    "ReqNodeNotAvail": WhyWaiting("a node that it needs is down, reserved or busy"),
    "NodeDown": WhyWaiting("a node that it needs is down"),
    "Reservation": WhyWaiting("it waits for its reservation"),
    "PartitionDown": WhyWaiting("its partition is down", "Name another: --partition NAME"),
    "PartitionInactive": WhyWaiting(
        "its partition starts no jobs", "Name another: --partition NAME"
    ),
    "JobHeldUser": WhyWaiting("you hold it", "scontrol release JOB"),
    "JobHeldAdmin": WhyWaiting("an administrator holds it"),
    "PartitionTimeLimit": WhyWaiting(
        "it asks for more time than its partition allows", "Ask for less: --time 30:00", True
    ),
    "PartitionNodeLimit": WhyWaiting(
        "it asks for more nodes than its partition allows", "Ask for fewer: --nodes 1", True
    ),
    "PartitionConfig": WhyWaiting(
        "its partition can't run it", "Name another: --partition NAME", True
    ),
    "BadConstraints": WhyWaiting("no nodes can meet its constraint", "Check --constraint", True),
    "AccountNotAllowed": WhyWaiting("its partition does not take its account", "--account", True),
    "QOSNotAllowed": WhyWaiting("its partition does not take its QOS", "--qos", True),
    "InvalidAccount": WhyWaiting("there is no such account", "Check --account", True),
    "InvalidQOS": WhyWaiting("there is no such QOS", "Check --qos", True),
    "DependencyNeverSatisfied": WhyWaiting("its dependency can no longer be met", "", True),
    "JobArrayTaskLimit": WhyWaiting("an array's limit is reached"),
}


@dataclass(frozen=True)
class Job:
    """A job as squeue lists it.

    Attributes:
      id: its number.
      state: e.g. ``PENDING``.
      reason: why it waits, in Slurm's words; empty when it does not.
      left_s: seconds to its time limit; None where there is none, or it is not known.
      start: when Slurm expects to start it, as Slurm writes it; empty where it does not say.
      priority: the larger, the sooner.
      nodes: its nodelist.
    """

    id: str
    state: str
    reason: str = ""
    left_s: float | None = None
    start: str = ""
    priority: int = 0
    nodes: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


def parse_squeue(text: str) -> list[Job]:
    """The jobs that squeue lists in SQUEUE_FORMAT; lines of another form are not jobs."""
    jobs = []
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) != 7 or not re.match(r"\d", fields[0]):
            continue
        id, state, reason, left, start, priority, nodes = fields
        jobs.append(
            Job(
                id,
                state,
                "" if reason == "None" and state != "PENDING" else reason,
                parse_time(left),
                "" if start in ("N/A", "Unknown") else start,
                int(priority) if priority.isdecimal() else 0,
                nodes,
            )
        )
    return jobs


def parse_time(text: str) -> float | None:
    """Seconds of Slurm's ``[DAYS-][[HOURS:]MINUTES:]SECONDS``; None for UNLIMITED and the like."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def check_time(text: str) -> bool:
    """Whether sbatch's ``--time`` takes it: minutes, or with hours, days and seconds."""
    parts = r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+|\d+-\d+:\d+|\d+-\d+:\d+:\d+"
    return re.fullmatch(rf"{parts}|UNLIMITED|INFINITE", text.strip()) is not None


def why_waiting(reason: str) -> WhyWaiting:
    """A reason of squeue's. One that is not known is passed on as it is."""
    name = re.split(r"[^A-Za-z]", reason.strip("()"), maxsplit=1)[0]
    if (known := REASONS.get(name)) is not None:
        return known
    if name.startswith("QOS"):
        return WhyWaiting(f"a limit of its QOS is reached ({reason})")
    if name.startswith("Assoc"):
        return WhyWaiting(f"a limit of your account is reached ({reason})")
    return WhyWaiting(reason or "Slurm does not say why")


def describe_waiting(job: Job, before: int | None = None) -> str:
    """One line for a user who waits: ``job 12 is queued (Resources): ...``."""
    if job.state != "PENDING":
        return f"job {job.id} {STATES.get(job.state, job.state)}"
    why = why_waiting(job.reason)
    parts = [f"job {job.id} is queued ({job.reason}): {why.message}"]
    if before is not None:
        parts.append(f"{before} {'job' if before == 1 else 'jobs'} ahead of it")
    if job.start:
        parts.append(f"expected to start at {job.start}")
    return "; ".join(parts)


def place_in_queue(job: Job, pending: list[Job]) -> int:
    """How many pending jobs of the same partition Slurm looks at before this one."""

    def key(one: Job) -> tuple[int, int]:
        return -one.priority, int(re.match(r"\d*", one.id)[0] or 0)  # type: ignore[index]

    return sum(key(one) < key(job) for one in pending if one.id != job.id)


def parse_scontrol(text: str) -> dict[str, str]:
    """``scontrol show job --oneliner`` as names and values."""
    return dict(re.findall(r"(\w+(?:/\w+)?)=(\S*)", text))


def parse_sacct(text: str) -> dict[str, str]:
    """The first line of ``sacct --noheader --parsable2 --format=JobID,State,ExitCode,Reason``.

    In ``scontrol``'s names.
    """
    for line in text.splitlines():
        fields = line.strip().split("|")
        if len(fields) >= 3:
            names = ("JobId", "JobState", "ExitCode", "Reason")
            return dict(zip(names, (fields[0], *fields[1:]), strict=False))
    return {}


def describe_end(job: dict[str, str]) -> tuple[str, str]:
    """(how a job ended, what to type), from ``parse_scontrol`` or ``parse_sacct``."""
    state = job.get("JobState", "").split(" ")[0].rstrip("+")
    id, reason = job.get("JobId", "?"), job.get("Reason", "")
    code, _, number = job.get("ExitCode", "0:0").partition(":")
    told = f"Slurm's job {id} {STATES.get(state, state or 'is gone')}"
    hints = {
        "TIMEOUT": "Ask for longer: --time 2:00:00",
        "OUT_OF_MEMORY": "Ask for more: --mem 64G",
        "PREEMPTED": "Start again: %jaxcluster start",
        "NODE_FAIL": "Start again: %jaxcluster start",
    }
    if state == "FAILED" and code == "0" and number == "53":
        # Slurm's code for a job whose output file could not be opened.
        return (
            f"{told}: its node could not write the output file.",
            "The folder must be shared by all nodes: set JAXCLUSTER_SHARED_DIR to one that is.",
        )
    ended = []
    if state in ("FAILED", "COMPLETED") and (code, number) != ("0", "0"):
        ended.append(f"code {code}" if number in ("", "0") else f"signal {number}")
    if reason not in ("", "None", "NonZeroExitCode", "TimeLimit"):
        ended.append(f"reason {reason}")
    who = re.match(r"CANCELLED by (\d+)", job.get("JobState", ""))
    if who is not None:
        ended.append(f"by user {who[1]}")
    return told + (f" ({', '.join(ended)})." if ended else "."), hints.get(state, "")


def warn_of_limit(job: Job) -> tuple[str, float]:
    """(what to tell a user of a job's time limit, seconds to the next look; 0 when it was told)."""
    if job.left_s is None or job.state != "RUNNING":
        return "", LOOK_S
    if job.left_s > WARN_S:
        return "", min(LOOK_S, job.left_s - WARN_S)
    return (
        f"Slurm ends job {job.id} in {job.left_s:.0f} s, at its time limit. To keep the "
        "variables: %jaxcluster checkpoint NAME",
        0.0,
    )
