"""``jaxcluster run``: a script on all ranks of a cluster of its own, as one cell, to its end.

The cluster, and all that a cell finds out about its ranks, are those of a notebook. Here is what a
shell expects of a command beside that: arguments, output, signals and an exit status.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import sys
import tempfile
import tokenize
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from jaxcluster import arguments, cluster, wire
from jaxcluster.cluster.questions import here
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    JaxClusterError,
    UsageError,
)
from jaxcluster.model.outputs import ANSI, CellRecord
from jaxcluster.ranks import name_ranks
from jaxcluster.views.live import StartDisplay
from jaxcluster.views.statusline import OnTerminal, StatusLine, can_write_over

EXAMPLE = "jaxcluster run -n 4 train.py --steps 100   or   jaxcluster run -n 4 -m package.train"
LINE_CHARS = 1 << 16  # of an unfinished line that is held back for its end
LOG_LINES = 200  # of a dead rank's log

_RANKS_FILE = re.compile(r"rank-\d+\.txt")


# What starts several processes at once: its name, and its variables for how many and for which.
_STARTERS = (
    ("srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("mpiexec", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("mpiexec", "PMI_SIZE", "PMI_RANK"),
)


def check_alone(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several processes, each of which would start a cluster of its own.

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
                "cluster of its own.",
                f"Leave out {starter}: jaxcluster run --launcher auto takes the hosts of its job. "
                "A cluster for each process: --launcher local",
            )


def run(words: list[str]) -> int:
    """The command. Returns the exit status: that of the first rank that has failed, else 0.

    Raises:
      JaxClusterError: the cluster did not start, or a word is wrong.
    """
    parser = arguments.Parser("jaxcluster run")
    own, rest = arguments.split_run(parser, words)
    parsed = parser.read(own)
    script, source = read_script(rest)
    if parsed.detach:
        raise UsageError(
            "jaxcluster run has no --detach: its cluster ends with the script.",
            "To keep it running after this shell: nohup jaxcluster run -n 4 train.py &",
        )
    options = vars(parsed)
    everything, logs = options.pop("everything"), options.pop("logs")
    if parsed.launcher != "local":
        check_alone(os.environ)
    parsed.name = parsed.name or f"run-{os.getpid()}"
    spec = dataclasses.replace(cluster.make_spec(**arguments.start_options(parsed)), detach=False)
    if parsed.dry_run:
        print(cluster.dry_run(spec))
        return 0
    try:
        compile(source, script.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        say("".join(traceback.format_exception_only(error)).rstrip("\n"))
        return 1
    outputs = Outputs(make_folder(logs, script), everything)
    with Signals() as signals:
        try:
            return _run(spec, script, source, outputs, signals)
        except KeyboardInterrupt:  # during the start
            return 128 + (signals.received or signal.SIGINT)
        finally:
            if logs is None:
                with contextlib.suppress(OSError):  # not empty, once there are ranks
                    outputs.folder.rmdir()


def _run(
    spec: wire.ClusterSpec,
    script: wire.Script,
    source: str,
    outputs: Outputs,
    signals: Signals,
) -> int:
    display = StartDisplay(rich=False)
    try:
        started = cluster.start_spec(spec, display.progress)
    finally:
        display.clear()
    try:
        outputs.begin(started.num_processes)
        may_ask = sys.stdin is not None and sys.stdin.isatty()
        status = outputs.status
        cell = started.submit(
            source,
            script=script,
            execution_count=1,
            shown_ranks=range(started.num_processes),
            on_output=outputs.take,
            on_notice=lambda told: outputs.say(for_script(told.rstrip("\n"), script)),
            prompt=here(lambda output: None, outputs.clear) if may_ask else None,
        )
        if isinstance(status, OnTerminal):
            cell.on_status = lambda told: status.show(for_script(told, script))
        outputs.stop = cell.stop
        signals.cell, signals.clear = cell, outputs.clear
        error = _wait(cell)
        outputs.clear()
        outputs.end()
        for rank in started.dead:
            outputs.write(rank, f"\n── its process's log ──\n{started.logs(rank, LOG_LINES)}\n")
        if error is not None and not outputs.is_closed:
            say(tell(error, script))
            say(f"All outputs: {outputs.folder}")
        if outputs.is_closed:
            return 128 + signal.SIGPIPE
        return exit_status(outputs.failed, started.dead, error, signals.received)
    finally:
        signals.ignore()
        started.stop()


def _wait(cell: cluster.RunningCell) -> BaseException | None:
    """How it has ended. Another signal while the ranks are given time ends the wait."""
    try:
        try:
            cell.wait()
        except KeyboardInterrupt:
            if cell.done:
                raise
            cell.stop()  # it came before the wait
            cell.wait()
    except (JaxClusterError, CellInterrupted) as error:
        return error
    return None


# --------------------------------------------------------------------------- what is to be run


def read_script(words: Sequence[str]) -> tuple[wire.Script, str]:
    """The script in these words, and its source; a module's is found by the ranks.

    Raises:
      UsageError: there is none, or it can't be read.
    """
    if not words or words == ["-m"]:
        raise UsageError("jaxcluster run needs a script, or -m and a module.", EXAMPLE)
    if words[0] == "-m":
        module = words[1]
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"-m {module}: that is not the name of a module.", EXAMPLE)
        return wire.Script(["-m", *words[2:]], "", os.getcwd(), module), ""
    typed = words[0]
    if typed in ("-", "-c"):
        raise UsageError(f"jaxcluster run takes a file or a module, not {typed}.", EXAMPLE)
    path = os.path.abspath(typed)
    if os.path.isdir(path):
        raise UsageError(f"{typed} is a folder.", EXAMPLE)
    try:
        with tokenize.open(path) as file:
            source = file.read()
    except FileNotFoundError:
        raise UsageError(f"There is no script {typed}.", EXAMPLE) from None
    except OSError as error:
        raise UsageError(f"{typed} can't be read: {error.strerror}.", EXAMPLE) from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"{typed} is not Python: {error}.", EXAMPLE) from None
    folder = os.path.dirname(os.path.realpath(path))
    return wire.Script([typed, *words[1:]], path, folder), source


def make_folder(named: str | None, script: wire.Script) -> Path:
    """The folder for the ranks' outputs.

    Raises:
      UsageError: it can't be made.
    """
    if named is None:
        stem = script.module or Path(script.path).stem
        clean = re.sub(r"[^\w.-]+", "-", stem)[:40]
        return Path(tempfile.mkdtemp(prefix=f"jaxcluster-run-{clean}-"))
    folder = Path(named).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--logs {named}: {error.strerror}.", "jaxcluster run -n 4 --logs out train.py"
        ) from None
    return folder


# --------------------------------------------------------------------------- what comes of it


class Outputs:
    """The output of the ranks: all of it in files, process 0's (or everybody's) here, as it comes.

    Attributes:
      folder: of the files.
      failed: the reply of the first rank that has failed by an error or an exit status.
      is_closed: nobody reads our output any more (``| head``).
      stop: ends the run then.
      status: where the line stands that says what the ranks wait for.
    """

    def __init__(self, folder: Path, everything: bool) -> None:
        self.folder = folder
        self.failed: wire.CellReply | None = None
        self.is_closed = False
        self.stop: Callable[[], None] = lambda: None
        self.status: StatusLine = OnTerminal() if can_write_over() else StatusLine()
        self._everything = everything
        self._open_lines: dict[tuple[int, str], str] = {}  # with --all
        self._told_full = False
        self._unshown: set[str] = set()  # streams that take nothing
        for stream in (sys.stdout, sys.stderr):
            if reconfigure := getattr(stream, "reconfigure", None):
                reconfigure(errors="backslashreplace")

    def begin(self, num_processes: int) -> None:
        """Files for so many ranks; those of an earlier run in this folder are gone then."""
        for old in self.folder.glob("rank-*.txt"):
            if _RANKS_FILE.fullmatch(old.name):  # the others are the user's
                old.unlink(missing_ok=True)
        for rank in range(num_processes):
            self.write(rank, "")
        say(f"jaxcluster: {name_ranks(range(num_processes))}. All outputs: {self.folder}")

    def take(self, record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
        """One piece of a rank's output, or its end."""
        if isinstance(what, wire.CellReply):
            if what.error is not None:
                self.write(what.rank, "".join(f"{line}\n" for line in what.error.traceback))
                if what.status == "error":
                    self.failed = self.failed or what
            return
        stream, text = text_of(what)
        self.write(what.rank, text)
        if self._everything:
            self._show_lines(what.rank, stream, text)
        elif what.rank == 0:
            self._show(stream, text)

    def say(self, line: str) -> None:
        """A line of ours, between those of the ranks."""
        with self.status.room():
            say(line)

    def clear(self) -> None:
        """Nobody waits any more, or somebody is asked."""
        self.status.show("")

    def write(self, rank: int, text: str) -> None:
        """Add to a rank's file. A full disk is told once, and the run goes on."""
        try:
            path = self.folder / f"rank-{rank}.txt"
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            if not self._told_full:
                self._told_full = True
                self.say(f"jaxcluster: {self.folder} can't be written to ({error.strerror}).")

    def end(self) -> None:
        """Show lines that have no end."""
        for (rank, stream), text in self._open_lines.items():
            if text:
                self._show(stream, f"[{rank}] {text}\n")
        self._open_lines.clear()

    def _show_lines(self, rank: int, stream: str, text: str) -> None:
        text = self._open_lines.pop((rank, stream), "") + text
        whole, newline, rest = text.rpartition("\n")
        if len(rest) > LINE_CHARS:
            whole, newline, rest = text, "\n", ""
        lines = "".join(f"[{rank}] {line}\n" for line in whole.split("\n")) if newline else ""
        self._open_lines[rank, stream] = rest
        self._show(stream, lines)

    def _show(self, stream: str, text: str) -> None:
        target: TextIO | None = sys.stderr if stream == "stderr" else sys.stdout
        if target is None or not text:  # started with it closed
            return
        if self.is_closed or stream in self._unshown:
            return
        try:
            with self.status.room():
                target.write(text)
                target.flush()
                self.status.writes(text)
        except OSError as error:
            self._unshown.add(stream)
            with open(os.devnull, "wb") as nowhere:  # at the end it would fail again
                os.dup2(nowhere.fileno(), target.fileno())
            if isinstance(error, BrokenPipeError):
                self.is_closed = True
                self.stop()
            else:  # a full disk: the files may lie on another one
                self.say(
                    f"jaxcluster: {stream} can't be written to ({error.strerror}); the script goes "
                    f"on. All outputs: {self.folder}"
                )


def text_of(output: wire.RankOutput) -> tuple[str, str]:
    """Where a piece of output goes, and what."""
    if output.kind == "stream":
        return output.content["name"], output.content["text"]
    if output.kind in ("display_data", "execute_result"):
        return "stdout", f"{output.content['data'].get('text/plain', '')}\n"
    return "stdout", ""


def exit_status(
    failed: wire.CellReply | None,
    dead: Mapping[int, wire.Death],
    error: BaseException | None,
    received: int,
) -> int:
    """The status of the first rank that has failed; 128 and the signal's number, where one did it.

    A death counts before an error: what the others raise is mostly what has come of it.

    Args:
      failed: the first reply of a failure.
      dead: the ranks whose processes have ended, in that order.
      error: how the cell has ended.
      received: the signal that this process was told to stop by, or 0.
    """
    for death in dead.values():
        if death.code is None:
            return 1
        if death.code:
            return death.code if death.code > 0 else 128 - death.code
    if failed is not None and failed.error is not None:
        is_exit = failed.error.ename == "SystemExit" and failed.error.evalue.isdecimal()
        return int(failed.error.evalue) if is_exit else 1
    if isinstance(error, KeyboardInterrupt):
        return 128 + (received or signal.SIGINT)
    return 1 if error is not None else 0


def tell(error: BaseException, script: wire.Script) -> str:
    """An error of the run, as text. Its tracebacks and messages stay as the script made them."""
    if isinstance(error, CellFailed) and error.traceback:
        shown = "\n".join(error.traceback)
        return "\n".join(filter(None, [shown, for_script(error.hint, script)]))
    kind = "" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: "
    return for_script(f"{kind}{error}", script)


def for_script(told: str, script: wire.Script) -> str:
    """A message of ours, which knows cells, about a script."""
    name = script.module or os.path.basename(script.path)
    told = re.sub(r"\b[Cc]ell \[1\]", lambda _: name, told)
    return re.sub(r"\b([Tt])h(e|is) cell\b", r"\1h\2 script", told)


def say(line: str) -> None:
    """A line of ours on standard error, which may be closed."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            shown = line if sys.stderr.isatty() else ANSI.sub("", line)
            print(shown, file=sys.stderr, flush=True)


class Signals:
    """Ctrl-C, SIGTERM and SIGHUP, passed on: the first stops the script, the second ends it.

    Attributes:
      received: the number of the first; 0 while there was none.
      cell: to which SIGTERM goes.
      clear: called before something is said of it.
    """

    def __init__(self) -> None:
        self.received = 0
        self.cell: cluster.RunningCell | None = None
        self.clear: Callable[[], None] = lambda: None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:  # as nohup has it
                self._before[number] = before
                signal.signal(number, self._hear)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """From now on: all is being ended."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self.received:
            self.received = number
            if self.cell is not None:
                self.cell.terminates = number != signal.SIGINT
                self.clear()
                name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
                say(f"\n{name}: stopping the script on all ranks. A second one ends it at once.")
        raise KeyboardInterrupt
