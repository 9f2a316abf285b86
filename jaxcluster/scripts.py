"""``jaxcluster run``: a script in plain processes of a new cluster, until it ends.

The processes agree on their launches as those of ``jaxcluster.agree`` do. Their output goes to
files on their hosts, which this process reads. Here is what a shell expects of a command:
arguments, output, signals and an exit status.
"""

from __future__ import annotations

import codecs
import contextlib
import itertools
import os
import re
import signal
import sys
import tempfile
import threading
import time
import tokenize
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from jaxcluster import cluster, wire
from jaxcluster.cluster import events
from jaxcluster.cluster.starting import start_world
from jaxcluster.cluster.world import World
from jaxcluster.errors import UsageError
from jaxcluster.model.lines import Lines
from jaxcluster.options import arguments
from jaxcluster.ranks import name_ranks
from jaxcluster.views.live import StartDisplay

EXAMPLE = "jaxcluster run -n 4 train.py --steps 100   or   jaxcluster run -n 4 -m package.train"
LOG_LINES = 20  # last lines of a failed rank
LOOK_S = (0.02, 0.2)  # between looks at the output: after new output, and after a long silence
# Until the other ranks are interrupted, and until they are ended: after an error, after a death.
FAILED_S, DIED_S = (2.0, 7.0), (1.0, 3.0)
STREAMS = ("stdout", "stderr")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_RANKS_FILE = re.compile(r"rank-\d+\.txt")
_GLOO = re.compile(r"^\[Gloo\] Rank .*\n", re.MULTILINE)  # of JAX's collectives on CPUs
_OURS = re.compile(r"^jaxcluster: .*$", re.MULTILINE)

# Programs that start several processes: name, and variables for their number and index.
_STARTERS = (
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("mpiexec", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
)


def check_alone(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several processes, each of which would start a cluster.

    Raises:
      UsageError: of the first of them.
      SystemExit: of the others: it is said once.
    """
    for starter, size, number in _STARTERS:
        several = environ.get(size, "1")
        if several.isdecimal() and int(several) > 1:
            if environ.get(number, "0") != "0":
                raise SystemExit(2)
            raise UsageError(
                f"{starter} has started this command {several} times, and each would start a "
                "cluster.",
                f"Leave out {starter}: jaxcluster run --launcher auto takes the hosts of its job. "
                "A cluster for each process: --launcher local",
            )


def run(words: list[str]) -> int:
    """The command. Returns the exit status: see ``exit_status``.

    Raises:
      JaxClusterError: the cluster did not start, or a word is wrong.
    """
    parser = arguments.Parser("jaxcluster run")
    own, rest = arguments.split_run(parser, words)
    parsed = parser.read(own)
    script = read_script(rest)
    options = vars(parsed)
    everything, logs = options.pop("everything"), options.pop("logs")
    if parsed.launcher != "local":
        check_alone(os.environ)
    parsed.name = parsed.name or f"run-{os.getpid()}"
    spec = cluster.make_spec(**arguments.start_options(parsed))
    if parsed.dry_run:
        print(cluster.dry_run(spec))
        return 0
    try:
        compile(script.source, script.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        say("".join(traceback.format_exception_only(error)).rstrip("\n"))
        return 1
    if logs is not None:
        make_folder(logs, script)  # a folder that can't be made is an error before the start
    with StartDisplay() as display:
        world = start_world(spec, display.progress, script=script)
        display.progress("")
    try:
        outputs = Outputs(make_folder(logs, script), everything, world.num_processes)
        return wait(world, outputs, hear_signals())
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        world.end()


def hear_signals() -> list[int]:
    """The signals that came: the first is the script's, and a second one raises."""
    received: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise SystemExit(128 + received[0])

    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, hear)
    return received


def wait(world: World, outputs: Outputs, signals: list[int]) -> int:
    """Show what the script prints, and pass signals on, to its end; returns the exit status.

    Raises:
      OSError: the output can't be shown.
    """
    ranks, look_s, failed_at, is_told = range(world.num_processes), LOOK_S[0], 0.0, False
    ended, interrupted = threading.Event(), set[int]()
    events.watchers.append(lambda cell: ended.set())
    while left := ranks - world.dead.keys():
        ended.wait(look_s)
        ended.clear()
        look_s = LOOK_S[0] if outputs.follow(world) else min(1.5 * look_s, LOOK_S[1])
        now, number = time.monotonic(), signals[0] if signals else 0
        if number and not is_told:
            is_told = True
            name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            say(f"\n{name}: stopping the script on all ranks. A second one ends it at once.")
            world.processes.signal(number if number == signal.SIGINT else signal.SIGTERM, left)
        failed = [death for death in world.dead.values() if death.code != 0]
        if not failed_at and (number or not (failed or world.coordinator_died)):
            continue
        failed_at = failed_at or now
        limits = FAILED_S if all((death.code or 0) > 0 for death in failed) else DIED_S
        if now > failed_at + limits[0] and not is_told:
            is_told, interrupted = True, {*left}
            world.processes.signal(signal.SIGINT, left)
        if now > failed_at + limits[1]:
            break
    dead = {  # the others are ended by us
        rank: death
        for rank, death in world.dead.items()
        if rank not in interrupted or death.code != 128 + signal.SIGINT
    }
    while outputs.follow(world):
        pass
    outputs.end()
    rank, status = exit_status(dead, signals[0] if signals else 0)
    if rank is not None:
        death = dead[rank]
        how = f"ended with {death.why}" if (death.code or 0) > 0 else f"died: {death.why}"
        say(f"jaxcluster: rank {rank} {how}.{outputs.last(rank)}")
    elif world.coordinator_died:
        status = 1
        say(f"jaxcluster: the coordinator ended: {world.coordinator_died}.")
    if status:
        say(f"All outputs: {outputs.folder}")
    return status


def exit_status(dead: Mapping[int, wire.Death], received: int) -> tuple[int | None, int]:
    """The rank whose end is the run's, if one has failed, and the exit status.

    A death counts before an error: what the others raise has mostly come of it. So does a status
    other than 1, which is that of a ``Divergence``, too.

    Args:
      dead: how the ranks have ended, in that order.
      received: the signal that stopped this process, or 0.
    """
    failed = {rank: death.code for rank, death in dead.items() if death.code != 0}
    statuses = {r: 1 if c is None else c if c > 0 else 128 - c for r, c in failed.items()}
    if received:
        of_stops = (128 + signal.SIGINT, 128 + received)
        statuses = {rank: status for rank, status in statuses.items() if status not in of_stops}
    if not statuses:
        return None, 128 + received if received and failed else 0
    rank = min(statuses, key=lambda rank: ((failed[rank] or -1) > 0, statuses[rank] == 1))
    return rank, statuses[rank]


# --------------------------------------------------------------------------- what is to be run


def read_script(words: Sequence[str]) -> wire.Script:
    """The script in these words; a module's source is found by the ranks.

    Raises:
      UsageError: there is none, or it can't be read.
    """
    if not words or words == ["-m"]:
        raise UsageError("jaxcluster run needs a script, or -m and a module.", EXAMPLE)
    if words[0] == "-m":
        return wire.Script(["-m", *words[2:]], "", os.getcwd(), words[1])
    typed = words[0]
    path = os.path.abspath(typed)
    try:
        with tokenize.open(path) as file:
            source = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{typed} can't be read: {error}.", EXAMPLE) from None
    folder = os.path.dirname(os.path.realpath(path))
    return wire.Script([typed, *words[1:]], path, folder, source=source)


def make_folder(named: str | None, script: wire.Script) -> Path:
    """The folder for the ranks' outputs.

    Raises:
      OSError: it can't be made.
    """
    if named is None:
        clean = re.sub(r"[^\w.-]+", "-", script.module or Path(script.path).stem)[:40]
        return Path(tempfile.mkdtemp(prefix=f"jaxcluster-run-{clean}-"))
    folder = Path(named).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --------------------------------------------------------------------------- what comes of it


class Outputs:
    """The output of the ranks: all of it in files, process 0's (or everybody's) here, as it comes.

    Files of an earlier run in this folder are gone then.

    Attributes:
      folder: of the files.
      read: by rank and stream, how many bytes have come.
    """

    def __init__(self, folder: Path, everything: bool, num_processes: int) -> None:
        self.folder, self._everything = folder, everything
        ranks, make = range(num_processes), codecs.getincrementaldecoder("utf-8")
        self.read = dict.fromkeys(itertools.product(ranks, STREAMS), 0)
        self._decoders = {end: make("backslashreplace") for end in self.read}
        self._lines = Lines()  # with --all
        self._is_full = False
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")
        for old in folder.glob("rank-*.txt"):
            if _RANKS_FILE.fullmatch(old.name):  # the others are the user's
                old.unlink(missing_ok=True)
        for rank in ranks:
            self._file(rank).touch()
        say(f"jaxcluster: {name_ranks(ranks)}. All outputs: {folder}")

    def take(self, rank: int, stream: str, data: bytes) -> None:
        """A rank's output."""
        self.read[rank, stream] += len(data)
        try:
            with self._file(rank).open("ab") as file:
                file.write(data)
        except OSError as error:  # a full disk: reported once, and the script goes on
            if not self._is_full:
                self._is_full = True
                say(f"jaxcluster: {self.folder} can't be written to ({error.strerror}).")
        text = _GLOO.sub("", self._decoders[rank, stream].decode(data))
        if self._everything:
            self._lines.add(rank, stream, text)
        elif rank == 0:
            _show(stream, text)
        elif stream == "stderr":
            _show(stream, "".join(f"{line}\n" for line in _OURS.findall(text)))

    def follow(self, world: World) -> bool:
        """Take in what has been printed since; returns whether there was any."""
        has_new = False
        for (rank, stream), data in world.processes.printed(self.read).items():
            if data:
                has_new = True
                self.take(rank, stream, data)
        self._show_lines()
        return has_new

    def last(self, rank: int) -> str:
        """The last lines that a rank has printed, unless they were shown."""
        if self._everything or rank == 0:
            return ""
        with contextlib.suppress(OSError):
            text = self._file(rank).read_text(errors="backslashreplace")
            lines = _GLOO.sub("", text).splitlines()[-LOG_LINES:]
            return "".join(f"\n{line}" for line in lines)
        return ""

    def end(self) -> None:
        """Show lines that have no end."""
        self._lines.end()
        self._show_lines()

    def _show_lines(self) -> None:
        for stream, line in self._lines.take():
            _show(stream, line)

    def _file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.txt"


def _show(stream: str, text: str) -> None:
    target: TextIO | None = sys.stderr if stream == "stderr" else sys.stdout
    if target is not None and text:  # else it was closed when this was started
        target.write(text)
        target.flush()


def say(line: str) -> None:
    """A line of ours on standard error, which may be closed."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
