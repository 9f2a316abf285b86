"""The magics: each reads its line, makes one call, and shows what came of it."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from IPython.core.extensions import ExtensionManager
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)

from jaxcluster import arguments, cluster, doctor
from jaxcluster.allocation.supervisor import quit_warm
from jaxcluster.allocation.turns import who_we_are
from jaxcluster.cluster import events, past, transfer, undoing
from jaxcluster.cluster.notify import notifier
from jaxcluster.doctor import hosts as hostchecks
from jaxcluster.errors import CellFailed, CellInterrupted, JaxClusterError, UsageError
from jaxcluster.model import compared, cost, rewrite, stragglers, timeline
from jaxcluster.model.outputs import CellRecord, traceback_lines
from jaxcluster.notebook import debugging, export, exporting
from jaxcluster.notebook.completion import Completion
from jaxcluster.notebook.elsewhere import Elsewhere, point_to_push
from jaxcluster.notebook.lab_debugger import Debugger
from jaxcluster.options import profiles
from jaxcluster.panel import Panel
from jaxcluster.plan.spec import check_seconds
from jaxcluster.ranks import name_ranks, parse_ranks
from jaxcluster.records import registry
from jaxcluster.text import format_nbytes
from jaxcluster.views import compared as compared_view
from jaxcluster.views import cost as cost_view
from jaxcluster.views import history, journal, lost, report, status, text
from jaxcluster.views import shards as array_views
from jaxcluster.views.comms import relay_of
from jaxcluster.views.live import CellDisplay, StartDisplay, show_hosts
from jaxcluster.views.message import show_message

if TYPE_CHECKING:
    from jaxcluster.cluster.profiling import Profiling
    from jaxcluster.model.profile import Profile

NO_COPIES = "The ranks keep no copies of their variables."
COMMANDS = {
    "start": "start a cluster: -n 4, or --launcher ssh --hosts h1:2,h2:2",
    "status": "what every rank does, its host, pid, devices; --live keeps updating and shows usage",
    "panel": "JupyterLab's sidebar in a cell's output: for VS Code, Colab and other pages",
    "list": "the running clusters of this user",
    "attach": "connect to a running cluster: attach NAME",
    "use": "run this notebook's cells on another connected cluster: use NAME",
    "stop": "end all processes: stop, stop NAME; --all ends every cluster of this notebook",
    "restart": "new processes that keep the variables; --clean: empty ones",
    "resize": "another number of ranks, with the variables: resize -n 8",
    "resync": "bring ranks that have diverged back into lockstep",
    "interrupt": "stop the cell that runs, on every rank",
    "undo": "take back the last cell; undo SIZE|on|off: limit what it may hold, turn it on or off",
    "copies": "keep copies, so that a rank's death costs no variable: copies SIZE|on|off",
    "steps": "what is kept of a loop: steps; steps forget: it begins at 0 again",
    "stacks": "on which line each rank is",
    "journal": "what each rank has launched",
    "report": "how a cell went wrong, also after new processes: report, report 7",
    "debug": "look at a rank's last error in the debugger: debug 2",
    "logs": "what the processes wrote outside of cells: logs 2",
    "outputs": "what each rank printed in the last cell: outputs 1-3; --cell N, --follow",
    "history": "the cells of all notebooks on the cluster: state, time, who",
    "notify": "run a command of yours when a long cell ends: notify COMMAND|off",
    "compare": "an expression's value on each rank, equal values once: compare loss",
    "cost": "what a call would cost, before any run: cost step(params, batch)",
    "profile": "profile the cell that runs, on all its ranks: profile 5s",
    "mesh": "which rank holds which device of a mesh",
    "memory": "what each device holds",
    "checkpoint": "save the ranks' variables to disk: checkpoint NAME",
    "restore": "bring back a checkpoint's variables: restore NAME",
    "export": "this notebook's %%spmd cells as a script: export train.py",
    "auto": "make every cell an %%spmd cell: auto on|off",
    "strict": "check every launch on all ranks before it runs: strict on|off",
    "recovery": "recover by itself, ask, or never: recovery auto|ask|never",
    "profiles": "named options of a start: profiles, profiles NAME",
    "doctor": "check this machine, or hosts, and say what to fix",
}

EXPRESSIONS = ("compare", "cost")  # commands whose lines are Python's, for the ranks
_VARIABLE = re.compile(r"\{(\w+)\}|\$(\w+)")

ELSEWHERE = {  # words that look like commands, and what has them
    "pull": "%pull",
    "push": "%push",
    "shards": "%shards",
    "spmd": "%%spmd",
    "run": "%%spmd with %run in it, or jaxcluster run in a shell",
    "mcp": "jaxcluster mcp in a shell",
}


def list_commands() -> str:
    """Every command, with a line."""
    lines = [f"  {name:<12}{what}" for name, what in COMMANDS.items()]
    return "\n".join(
        ["%jaxcluster COMMAND", *lines, "", "%jaxcluster COMMAND --help says what it takes."]
    )


T = TypeVar("T")


def shows_help(magic: Callable[..., Any]) -> Callable[..., Any]:
    """A magic that prints what it takes where its line says ``--help``."""

    @functools.wraps(magic)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return magic(*args, **kwargs)
        except arguments.Help as help:
            print(help)
            return None

    return call


def tells_plainly(magic: Callable[..., Any]) -> Callable[..., Any]:
    """A magic that shows no frames of ours where stop was pressed, and folds a long list."""

    @functools.wraps(magic)
    def call(self: JaxClusterMagics, *args: Any, **kwargs: Any) -> Any:
        try:
            return magic(self, *args, **kwargs)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:
            raise CellInterrupted("stopped.") from None
        except JaxClusterError as error:
            error.hint = self.fold_lost(error.hint)
            raise

    return call


@magics_class
class JaxClusterMagics(Magics):
    """``%jaxcluster``, ``%%spmd``, ``%spmd``, ``%push`` and ``%pull``."""

    shell: Any

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.logs = exporting.Logs()
        self.auto = rewrite.AutoMode(
            self._is_kept, lambda: bool(cluster.connected()), events.tell, self._is_silent
        )
        self.debugger: Debugger | None = None
        self.panel: Panel | None = None

    @property
    def rich(self) -> bool:
        """Whether this is a notebook, whose displays can be updated."""
        return hasattr(self.shell, "kernel")

    # ------------------------------------------------------------------ %jaxcluster

    def fold_lost(self, told: str) -> str:
        """``told``, where its long list of lost names is shown folded instead, if that can be."""
        for one in cluster.connected().values() if self.rich else ():
            restored = one.restored
            if (
                restored is not None
                and lost.is_long(restored.lost_names)
                and restored.lost_text in told
            ):
                self.shell.display_pub.publish(lost.bundle(restored.lost_names))
                return told.replace(restored.lost_text, lost.headline(restored.lost_names))
        return told

    @no_var_expand
    @line_magic
    @shows_help
    @tells_plainly
    def jaxcluster(self, line: str) -> None:
        """Start, look at and control clusters: ``%jaxcluster`` alone lists what there is.

        ``%jaxcluster start -n 4`` starts one, ``%jaxcluster start --help`` says what that takes.
        """
        command, _, rest = line.strip().partition(" ")
        if command in ("", "-h", "--help", "help"):
            raise arguments.Help(list_commands())
        if command not in COMMANDS:
            meant = ELSEWHERE.get(command, "")
            for close in difflib.get_close_matches(command, COMMANDS, n=1):
                meant = meant or f"%jaxcluster {close}"
            raise UsageError(
                f"There is no %jaxcluster {command}"
                + (f": did you mean {meant}?" if meant else "."),
                "%jaxcluster alone lists all commands.",
            )
        if command not in EXPRESSIONS:
            rest = self._with_values(rest)
        getattr(self, f"_{command}")(rest)

    def _with_values(self, line: str) -> str:
        """A line with the values of the notebook's variables in it, written ``{n}`` or ``$n``.

        IPython would run any Python between the braces. A click on *Start* runs the start line of a
        notebook that may be anybody's.
        """
        names = self.shell.user_ns
        return _VARIABLE.sub(lambda m: str(names.get(m[1] or m[2], m[0])), line)

    def _start(self, line: str) -> None:
        parsed = arguments.start_parser("%jaxcluster start").read(line)
        spec = cluster.make_spec(**arguments.start_options(parsed))
        if parsed.dry_run:
            print(cluster.dry_run(spec))
            return
        display = StartDisplay(self.rich)
        try:
            said = cluster.start_once(spec, display.progress)
        except BaseException:
            display.clear()
            raise
        display.done(said)
        self._show_running(cluster.current())

    def _profiles(self, line: str) -> None:
        name = arguments.command_parser("%jaxcluster profiles", "name").read(line).name
        found = profiles.load()
        print(found.table() if name is None else found.explained(name))

    def _status(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster status")
        parser.add_argument("--live", action="store_true")
        live = parser.read(line).live
        running = cluster.current()
        if live and self.rich:
            status.live(running, status.shown_by(self.shell), self._cell_id())
            return
        print(running.summary())
        states = running.status()
        print(text.status(states, running.dead))
        if told := running.tell_copies():
            print(told)
        if late := stragglers.told(running.straggler(), states):
            print(late)

    def _panel(self, line: str) -> None:
        arguments.command_parser("%jaxcluster panel").read(line)
        if self.panel is None:
            raise UsageError("A terminal has no panel.", "%jaxcluster status shows the same.")
        widget = self.panel.widget()
        running = cluster.current() if cluster.connected() else None
        shown = status.seen(running)
        widget.html, widget.plain = shown["text/html"], shown["text/plain"]
        self.shell.display_pub.publish(*widget._repr_mimebundle_())

    def _list(self, line: str) -> None:
        way = arguments.taken_from(arguments.way_parser("%jaxcluster list").read(line))
        records, unreachable = cluster.listed(**way)
        here = list(cluster.connected())  # the one that cells run on is last
        print(text.clusters(records, here, time.time_ns(), unreachable, socket.gethostname()))

    def _attach(self, line: str) -> None:
        parsed = arguments.way_parser("%jaxcluster attach", "name").read(line)
        attached = cluster.attach(parsed.name, **arguments.taken_from(parsed))
        print(attached.summary())
        self._show_running(attached)

    def _show_running(self, attached: cluster.Cluster) -> None:
        """What a cluster does that others have used, for whoever has just come to it."""
        if attached.last is not None or attached.can_restart:
            return
        found, now_ns = attached.history(), time.time_ns()
        one = found.running
        if one is None:
            if found.cells:
                told = history.headline(found.cells[-1], now_ns)
                print(f"{told}. %jaxcluster history lists all.")
        elif self.rich:
            history.show_on(self.shell, attached, one, one.shown)
        else:
            record = past.record_of(attached.world, one, one.shown)
            print(f"{history.headline(one, now_ns)}. Its output so far:")
            print(text.outputs(record))
            print("%jaxcluster outputs --follow shows what comes.")

    def _history(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster history", "count").read(line).count
        if word is not None and not (word.isdecimal() and int(word)):
            raise UsageError(f"{word!r} is not a number of cells.", "%jaxcluster history 50")
        found = cluster.current().history()
        bundle = history.table(found, time.time_ns(), who_we_are(), int(word or 20))
        if self.rich:
            self.shell.display_pub.publish(bundle)
        else:
            print(bundle["text/plain"])

    def _use(self, line: str) -> None:
        name = arguments.command_parser("%jaxcluster use", "name").read(line).name
        if name is None:
            names = ", ".join(record.name for record in cluster.live_records())
            raise UsageError("Which cluster?", f"%jaxcluster use NAME. Running: {names or 'none'}.")
        used = cluster.use(name)
        print(f"Cells of this notebook now run on {used.name!r}. {used.summary()}")

    def _stop(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster stop", "name")
        parser.add_argument("--all", action="store_true", dest="everything")
        parser.add_argument(
            "--force", action="store_true", help="forget hosts that can't be reached"
        )
        parsed = parser.read(line)
        if parsed.everything and parsed.name:
            raise UsageError("Give a cluster's name or --all, not both.", "%jaxcluster stop --all")
        if not parsed.everything:
            name = parsed.name or cluster.current().name
            print(cluster.stop_by_name(name, force=parsed.force))
            return
        stopped = list(cluster.connected())
        for name in stopped:
            print(cluster.stop_by_name(name, say_next=False, force=parsed.force))
        if quit_warm():
            print("The preloaded fork server has ended too.")
        elif not stopped:
            cluster.current()  # says that there is none, and what there is elsewhere

    def _restart(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster restart")
        parser.add_argument("--clean", action="store_true")
        _add_size(parser)
        parsed = parser.read(line)
        clean = parsed.clean
        if clean and parsed.num_processes is not None:
            raise UsageError(
                "restart -n keeps the variables, so it does not take --clean.",
                "%jaxcluster stop   and %jaxcluster start -n 8",
            )
        if parsed.num_processes is not None:
            self._become(parsed, "%jaxcluster restart -n 8")
            return
        if parsed.mesh is not None:
            raise UsageError("--mesh is for another number of ranks.", "%jaxcluster restart -n 8")
        running = cluster.current()
        display = StartDisplay(self.rich, "The restart was not completed.")
        display.progress("restarting ...")
        try:
            kept = running.restart(display.progress, clean=clean)
            if clean:
                self.logs.forget(running)
        except BaseException:
            display.clear()
            raise
        display.done(f"{running.summary()}\n{self.fold_lost(kept)}")

    def _resize(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster resize")
        _add_size(parser)
        parsed = parser.read(line)
        if parsed.num_processes is None:
            raise UsageError("How many ranks should it have?", "%jaxcluster resize -n 8")
        self._become(parsed, "%jaxcluster resize -n 8")

    def _become(self, parsed: argparse.Namespace, example: str) -> None:
        """Give it another number of ranks."""
        mesh = arguments.axis_sizes(parsed.mesh, example)
        running = cluster.current()
        display = StartDisplay(self.rich, "The cluster was not resized.")
        display.progress("resizing ...")
        try:
            kept = running.resize(parsed.num_processes, mesh, display.progress)
        except BaseException:
            display.clear()
            raise
        display.done(f"{running.summary()}\n{self.fold_lost(kept)}")

    def _interrupt(self, line: str) -> None:
        arguments.command_parser("%jaxcluster interrupt").read(line)
        hit = cluster.current().interrupt()
        print(f"Interrupted {name_ranks(hit)}." if hit else "No rank was running a cell.")

    def _logs(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster logs", "rank").read(line).rank
        running = cluster.current()
        if word is not None and not word.isdecimal():
            raise UsageError(f"{word!r} is not a rank.", "For example: %jaxcluster logs 2")
        ranks = range(running.num_processes) if word is None else [int(word)]
        for rank in running.check_ranks(list(ranks)):
            print(f"── rank {rank} ──\n{running.logs(rank, 200) or '(empty)'}")

    def _outputs(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster outputs", "ranks")
        parser.add_argument("--cell", type=int, metavar="N")
        parser.add_argument("--follow", action="store_true")
        parsed = parser.read(line)
        running = cluster.current()
        chosen = None
        if parsed.ranks:
            chosen = self._parse_ranks(parsed.ranks, running, "%jaxcluster outputs")
        record = running.last
        if parsed.follow:
            self._follow(running, parsed.cell, chosen)
            return
        if record is None or parsed.cell is not None:
            running.check_not_closed()
            one = past.find(running.world, parsed.cell)
            print(f"{history.headline(one, time.time_ns(), who_we_are())}.")
            record = past.record_of(running.world, one, chosen)
        else:
            print(f"Cell [{record.execution_count}]")
        kept = {r: one for r, one in record.records.items() if chosen is None or r in chosen}
        print(text.outputs(CellRecord(0, 0, "", [], kept)))
        for shown in traceback_lines(record) if record is not running.last else ():
            print(shown)

    def _follow(
        self, running: cluster.Cluster, number: int | None, ranks: list[int] | None
    ) -> None:
        """Show a cell of anybody's from its beginning to its end, as if it were run here."""
        running.check_not_closed()
        one = running.history().running if number is None else None
        if one is None:
            one = past.find(running.world, number)
        chosen = one.shown if ranks is None else ranks
        display = CellDisplay(self.shell, running, len(chosen) > 1)
        following = past.Following(running.world, one, chosen, display.on_output)
        try:
            following.follow(running.check_not_closed)
        except KeyboardInterrupt:
            print("No longer followed; the cell goes on. %jaxcluster interrupt stops it.")
            return
        finally:
            display.close()
        display.finish(following.record)
        show_message(self.shell, history.how_ended(following.cell))

    def _doctor(self, line: str) -> None:
        if (parsed := arguments.read_doctor("%jaxcluster doctor", line)) is not None:
            spec = cluster.make_spec(**arguments.start_options(parsed))
            if not spec.is_here:  # which "auto" may come to
                show_hosts(spec, self.rich)
                return
        print(doctor.render(doctor.run_checks(registry.runtime_root())))
        for one in cluster.connected().values():
            ranks = [] if one.closed else range(one.num_processes)
            places = {id(place): place for place in one.world.places(ranks).values()}
            if places:
                print(f"\nhosts of cluster {one.name!r}:")
                print(hostchecks.look(list(places.values())))

    def _resync(self, line: str) -> None:
        arguments.command_parser("%jaxcluster resync").read(line)
        print(self.fold_lost(cluster.current().resync()))

    def _undo(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster undo", "size").read(line).size
        running = cluster.current()
        if word is None:
            last = running.last
            print(running.undo())
            if last is not None:
                self.logs.of(running).take_back(last.seq)
            return
        most = running.limit_undo(undoing.parse_limit(word))
        print(
            f"%jaxcluster undo keeps at most {format_nbytes(most)} of a device's memory."
            if most
            else "Nothing is kept: a cell that goes wrong is not undone."
        )

    def _copies(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster copies", "size").read(line).size
        running = cluster.current()
        if word is None:
            print(running.tell_copies() or f"{NO_COPIES} To keep some: %jaxcluster copies on")
            return
        most = running.copies(undoing.parse_limit(word, "copies"))
        if most:
            copies = running.world.copies
            what, lost = "A rank's death costs", ""
            if copies is not None and copies.mirrors:
                what = "A rank's death, or a host's loss, costs"
            elif running.world.hosts:
                lost = " The loss of a host takes its ranks' copies."
            print(
                f"The ranks' copies of their variables take at most {format_nbytes(most)} of "
                f"memory. {what} the running cell, and no variable.{lost}"
            )
        else:
            print(NO_COPIES)

    def _steps(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster steps", "forget").read(line).forget
        if word not in (None, "forget"):
            raise UsageError(f"There is no %jaxcluster steps {word}.", "%jaxcluster steps forget")
        running = cluster.current()
        print(running.forget_steps() if word else running.tell_steps())

    def _stacks(self, line: str) -> None:
        arguments.command_parser("%jaxcluster stacks").read(line)
        print(text.stacks(cluster.current().reports(launches=1)))

    def _journal(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster journal", "count").read(line).count
        if word is not None and not (word.isdecimal() and int(word)):
            raise UsageError(f"{word!r} is not a number of launches.", "%jaxcluster journal 30")
        running = cluster.current()
        reports = running.reports()
        found = timeline.journal(reports, int(word or 20))
        if self.rich and found:
            self.shell.display_pub.publish(journal.bundle(found))
        else:
            print(text.journal(found))
        states = [one.state for one in reports.values()]
        if late := stragglers.told(running.straggler(), states):
            print(late)

    def _report(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster report", "cell").read(line).cell
        if word is not None and not word.strip("[]").isdecimal():
            raise UsageError(f"{word!r} is not a cell's number.", "%jaxcluster report 7")
        cell = None if word is None else int(word.strip("[]"))
        running = cluster.current()
        found = running.past_reports.find(cell)
        if found is None:
            print(report.none(running.name, cell, running.past_reports.all()))
        elif self.rich:
            self.shell.display_pub.publish(report.bundle(found, running.name))
        else:
            print(report.text(found, running.name))

    @staticmethod
    def _is_choice(word: str | None, choices: Sequence[str], state: str, prog: str) -> bool:
        """Whether a setting is to be changed; without a word its state is shown.

        Raises:
          UsageError: there is no such choice.
        """
        hint = f"{prog} {'|'.join(choices)} sets it."
        if word is None:
            print(f"{state} {hint}")
        elif word not in choices:
            raise UsageError(state, hint)
        return word is not None

    def _debug(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster debug", "rank").read(line).rank
        running = cluster.current()
        rank, lines = debugging.choose(running.last_failed, word, running.num_processes)
        for line in lines:
            print(line)
        display = CellDisplay(self.shell, running)
        if display.prompt is None:
            raise UsageError("A debugger needs input, and a cell on a thread can't ask for it.")
        running.submit(
            f"%jaxcluster debug {rank}",
            ranks=[rank],
            execution_count=self.shell.displayhook.prompt_count,
            on_output=display.on_output,
            on_notice=display.on_notice,
            prompt=display.prompt,
            post_mortem=True,
        ).wait()

    def _strict(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster strict", "switch").read(line).switch
        running = cluster.current()
        state = f"Strict mode is {'on' if running.is_strict else 'off'}."
        if not self._is_choice(word, ("on", "off"), state, "%jaxcluster strict"):
            return
        running.strict(word == "on")
        print(
            "Every program that spans processes is now checked on all of them before it runs."
            if running.is_strict
            else "Programs run without being checked first; the journals are compared as before."
        )

    def _checkpoint(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster checkpoint", "name")
        parser.add_argument("--orbax", action="store_true")
        parsed = parser.read(line)
        if parsed.name is None:
            raise UsageError("A checkpoint needs a name.", "%jaxcluster checkpoint NAME")
        print(cluster.current().checkpoint(parsed.name, orbax=parsed.orbax))

    def _restore(self, line: str) -> None:
        parser = arguments.command_parser("%jaxcluster restore", "name")
        parser.add_argument("--mesh", metavar="AXIS=SIZE,...")
        parsed = parser.read(line)
        name = parsed.name
        if name is None:
            raise UsageError("Which checkpoint?", "%jaxcluster restore NAME")
        mesh = arguments.axis_sizes(parsed.mesh, "%jaxcluster restore NAME")
        print(cluster.current().restore(name, mesh=mesh))

    def _recovery(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster recovery", "mode").read(line).mode
        running = cluster.current()
        state = f"Recovery is set to {running.recovery}."
        if not self._is_choice(word, ("auto", "ask", "never"), state, "%jaxcluster recovery"):
            return
        running.recovery = word
        events.tell()
        print(f"Recovery is set to {word}.")

    def _auto(self, line: str) -> None:
        word = arguments.command_parser("%jaxcluster auto", "switch").read(line).switch
        state = f"Auto mode is {'on' if self.auto.on else 'off'}."
        if not self._is_choice(word, ("on", "off"), state, "%jaxcluster auto"):
            return
        self.auto.on = word == "on"
        events.tell()
        print(
            "Every cell is now an %%spmd cell; cells with only magics still run in the notebook."
            if self.auto.on
            else "Cells run in the notebook again."
        )

    @staticmethod
    def _notify(line: str) -> None:
        after, is_test, command = arguments.notify_line(line)
        if after is not None:
            notifier.after_s = after
        if command:
            notifier.command = "" if command == "off" else command
        if not notifier.command:
            print(
                "Nothing is run when a cell ends. For example: "
                '%jaxcluster notify curl -d "$CELL_TEXT" ntfy.sh/my-topic'
            )
            return
        print(f"Run at the end of cells of {notifier.after_s:g} s and more: {notifier.command}")
        if is_test:
            if problem := notifier.test():
                raise UsageError(f"{problem[0].upper()}{problem[1:]}")
            print("The command ran without an error.")

    def _compare(self, line: str) -> None:
        if line.strip() in ("-h", "--help"):
            raise arguments.Help(arguments.compare_help())
        self._show_found(
            compared.check_expression(line), cluster.Cluster.compare, compared_view.bundle
        )

    def _cost(self, line: str) -> None:
        if line.strip() in ("", "-h", "--help"):
            raise arguments.Help(arguments.cost_help())
        self._show_found(cost.check_call(line), cluster.Cluster.cost, cost_view.bundle)

    def _show_found(
        self, source: str, find: Callable[..., T], draw: Callable[[T], dict[str, Any]]
    ) -> None:
        """Have the ranks look into an expression, and show what they found below their output."""
        running = cluster.current()
        rewrite.check_syntax(self.shell, source)
        display = CellDisplay(self.shell, running)
        try:
            found = find(
                running,
                source,
                execution_count=self.shell.displayhook.prompt_count,
                on_output=display.on_output,
                on_notice=display.on_notice,
                prompt=display.prompt,
            )
        finally:
            display.close()
        bundle = draw(found)
        if self.rich:
            self.shell.display_pub.publish(bundle)
        else:
            print(bundle["text/plain"])

    def _profile(self, line: str) -> None:
        parsed = arguments.command_parser("%jaxcluster profile", "seconds", "folder").read(line)
        wait_s = arguments.read_seconds(parsed.seconds or "5s", "%jaxcluster profile 5s")
        running = cluster.current()
        what = f"the cell that runs, for {wait_s:g} s or to its end"
        show_message(self.shell, f"Profiling {what} ...")
        self._show_profile(running.profile_running(wait_s, parsed.folder), "the running cell")

    def _show_profile(self, found: Profile, what: str) -> None:
        from jaxcluster.views import profile as profile_view  # with numpy's model of it

        bundle = profile_view.bundle(found, what)
        if self.rich:
            self.shell.display_pub.publish(bundle)
        else:
            print(bundle["text/plain"])

    def _mesh(self, line: str) -> None:
        name = arguments.command_parser("%jaxcluster mesh", "name").read(line).name
        with say_usage():
            array_views.show(array_views.mesh(cluster.current(), name), self.rich)

    def _memory(self, line: str) -> None:
        arguments.command_parser("%jaxcluster memory").read(line)
        array_views.show(array_views.memory(cluster.current()), self.rich)

    def _export(self, line: str) -> None:
        parsed = exporting.read_line(line)
        print("\n".join(exporting.carry_out(parsed, self.logs, self.shell.user_ns)))

    @line_magic
    @shows_help
    @tells_plainly
    def shards(self, line: str) -> None:
        """%shards NAME [--check] [--widget]: which rank and device holds which part of an array.

        NAME may be a pytree, or a part of one: ``params['w']``. ``--check`` compares all copies and
        looks for NaN; ``--widget`` also gives statistics and values of single shards.
        """
        name, options = arguments.shards_line(line)
        running = cluster.current()
        color = not self.rich and array_views.color_terminal()
        with say_usage():
            view = array_views.shards(running, name, check="--check" in options, color=color)
            if "--widget" in options and self.rich:
                self.shell.display_pub.publish(*view.widget()._repr_mimebundle_())
            else:
                array_views.show(view, self.rich)

    # ------------------------------------------------------------------ cells

    @no_var_expand
    @line_cell_magic
    @shows_help
    @tells_plainly
    def spmd(self, line: str, cell: str | None = None) -> None:
        """%%spmd [--ranks 0,2] [--all] [--out NAME] [--timeout S] [--stall S] [--strict] [--async]
        [--profile [NAME]]

        Run the cell on every rank; process 0's output is shown as it comes. ``%spmd EXPRESSION``,
        with the same options before it, does one line.
        """
        if cell is None:
            typed, source = arguments.split_spmd(line)
            options = arguments.spmd_parser().read(typed)
            if not source.strip():
                raise UsageError(
                    "%spmd needs an expression.", "For example: %spmd --all x.sharding"
                )
        else:
            typed = line.replace("--no-magic-line", "")
            options = arguments.spmd_parser().read(line)
            source = cell if options.no_magic_line else rewrite.with_magic_line(line, cell)
        if options.out is not None:
            transfer.check_names([options.out])
        running = cluster.current()
        given = options.ranks is not None
        ranks = self._parse_ranks(options.ranks, running) if given else None
        if options.timeout_s is not None:
            check_seconds("--timeout", options.timeout_s, "%%spmd --timeout 60")
        if options.stall_s is not None:
            check_seconds("--stall", options.stall_s, "%%spmd --stall 15m")
        rewrite.check_syntax(self.shell, source)
        if rewrite.loose_timeit(source):
            show_message(
                self.shell,
                "Note: %timeit without -n may choose another number of loops on each rank, which "
                "breaks collectives. For example: %timeit -n 100 -r 3 ...",
            )
        if ranks is not None:
            self._warn_partial(running, ranks, source)
        step = export.Cell(
            self.shell.displayhook.prompt_count, typed, source if cell is None else cell
        )
        with self.logs.of(running).running(step):
            if options.profile is None:
                self._run_strictly(running, source, ranks, options)
            else:
                self._run_profiled(running, source, ranks, options)

    def _run_profiled(
        self, running: cluster.Cluster, source: str, ranks: list[int] | None, options: Any
    ) -> None:
        if options.background:
            raise UsageError(
                "A cell that runs in the background is not profiled from its beginning.",
                "Run it with --async alone; while it runs: %jaxcluster profile 5s",
            )
        number = self.shell.displayhook.prompt_count
        made = running.prepare_profile(options.profile or None, ranks, number)
        before = running.last
        with contextlib.closing(made):
            try:
                self._run_strictly(running, source, ranks, options, made.token)
            except BaseException:
                cell = running.last
                if cell is not None and cell is not before:
                    try:
                        self._collect(running, made, cell)
                    except (JaxClusterError, OSError) as error:  # the cell's own is raised
                        print(f"The profile can't be put together: {error}")
                raise
            if (cell := running.last) is not None:
                self._collect(running, made, cell)

    def _collect(self, running: cluster.Cluster, made: Profiling, cell: CellRecord) -> None:
        """Show what a profile says of its cell."""
        found = made.collect(running.world, cell.seq)
        self._show_profile(found, f"cell [{cell.execution_count}]")

    def _run_strictly(
        self,
        running: cluster.Cluster,
        source: str,
        ranks: list[int] | None,
        options: Any,
        profile: str = "",
    ) -> None:
        if options.strict and not running.is_strict:
            running.strict(True)
            try:
                self._run_cell(running, source, ranks, options, profile)
            finally:
                running.stays_strict = False  # it was asked for this cell alone
                if not running.closed and not running.dead:
                    running.strict(False)
        else:
            self._run_cell(running, source, ranks, options, profile)

    def _run_cell(
        self,
        running: cluster.Cluster,
        source: str,
        ranks: list[int] | None,
        options: Any,
        profile: str,
    ) -> None:
        if self.debugger is not None:
            self.debugger.before_cell(running)
        relay = relay_of(running, self.shell)
        if relay is not None:
            relay.expect()
        # Ranks that are named are shown.
        together = options.all_ranks or (ranks is not None and len(ranks) > 1)
        display = CellDisplay(self.shell, running, together)
        submitted = running.submit(
            source,
            ranks=ranks,
            timeout_s=options.timeout_s,
            stall_s=options.stall_s,
            execution_count=self.shell.displayhook.prompt_count,
            shown_ranks=(ranks or range(running.num_processes)) if together else None,
            on_output=None if options.background else display.on_output,
            on_notice=display.on_notice,
            cell_id=self._cell_id(),
            prompt=None if options.background else display.prompt,
            profile=profile,
        )
        log = self.logs.of(running)
        log.sent(submitted.record.seq)
        submitted.on_status = display.on_status
        if submitted.on_status is not None:
            submitted.on_status("")  # its turn has come
        if options.background:
            if relay is not None:
                relay.begin(submitted.record)
            submitted.on_notice = submitted.on_status = None
            display.close()
            self._run_in_background(submitted, options.out, log)
            return
        try:
            try:
                if relay is not None:
                    relay.begin(submitted.record)
                if options.out is not None:
                    self.shell.user_ns[options.out] = submitted.record
                record = submitted.wait()
            except KeyboardInterrupt:
                if submitted.done:
                    raise
                submitted.stop()  # it was pressed before the wait
                record = submitted.wait()
            finally:
                display.close()
        except CellFailed as error:
            display.finish(submitted.record)
            point_to_push(error, self.shell.user_ns)
            raise
        display.finish(record)

    def _cell_id(self) -> str:
        """The id of the notebook's cell that runs, where the frontend has said it."""
        return str(self._metadata().get("cellId") or "")

    def _parent(self) -> dict[str, Any]:
        """The frontend's message with the cell that runs."""
        return (self.shell.kernel.get_parent("shell") if self.rich else None) or {}

    def _metadata(self) -> dict[str, Any]:
        """What the frontend has sent with the cell that runs: the cell's own, and its id."""
        return self._parent().get("metadata") or {}

    def _is_silent(self) -> bool:
        """Whether what runs is no cell of the user's, but a line of the frontend's own."""
        return bool((self._parent().get("content") or {}).get("silent"))

    def _is_kept(self) -> bool:
        """Whether the notebook of the cell that runs has auto mode on in its metadata."""
        ours = self._metadata().get("jaxcluster")
        return isinstance(ours, dict) and ours.get("spmd") is True

    @staticmethod
    def _parse_ranks(
        word: str, running: cluster.Cluster, command: str = "%%spmd --ranks"
    ) -> list[int]:
        try:
            return parse_ranks(word, running.num_processes)
        except ValueError as error:
            last = running.num_processes - 1
            some = f"0-{last}" if last else "0"
            raise UsageError(f"{error}.", f"For example: {command} {some}") from None

    def _warn_partial(self, running: cluster.Cluster, ranks: list[int], source: str) -> None:
        print(f"Only on {name_ranks(ranks)}:")
        if len(ranks) == running.num_processes:
            return
        names = rewrite.names_in(self.shell, source)
        found = running.world.spanning_names(names, ranks[0])
        if found:
            show_message(
                self.shell,
                f"Warning: {', '.join(found)} spans processes. A computation on it waits for the "
                "ranks that don't run this cell; its .addressable_shards are safe.",
            )

    def _run_in_background(
        self, submitted: cluster.RunningCell, out: str | None, log: exporting.Log
    ) -> None:
        from IPython.display import display

        number = submitted.record.execution_count
        if out is not None:
            self.shell.user_ns[out] = submitted
        hint = f"{out}.wait() waits for it" if out else "%jaxcluster outputs shows what it prints"
        started = {"text/plain": f"Cell [{number}] runs in the background; {hint}."}
        handle = display(started, raw=True, display_id=True) if self.rich else None
        if handle is None:
            print(started["text/plain"])

        log.goes_on(submitted.record.seq)

        def done(record: CellRecord) -> None:
            log.has_ended(record.seq)
            if not record.ok or submitted.report is not None:
                log.take_back(record.seq)
            if handle is not None:
                state = "is done" if record.ok else "has failed (%jaxcluster outputs)"
                line = f"Cell [{number}] {state}, {record.seconds:.1f} s."
                shown = record.stdout().rstrip("\n")
                bundle = {"text/plain": f"{line}\n{shown}" if shown else line}
                handle.update(bundle, raw=True)

        submitted.run_in_background(done)

    # ------------------------------------------------------------------ values

    @line_magic
    @shows_help
    @tells_plainly
    def push(self, line: str) -> None:
        """%push NAME...: bind notebook variables on every rank."""
        names = arguments.push_parser().read(line.replace(",", " ")).names
        if not names:
            raise UsageError("%push needs the name of a variable.", "For example: %push a b")
        transfer.check_names(names)
        missing = [n for n in names if n not in self.shell.user_ns]
        if missing:
            raise UsageError(
                f"The notebook has no variable {', '.join(missing)}.",
                "To copy a rank's variable to the notebook: %pull NAME",
            )
        values = {n: self.shell.user_ns[n] for n in names}
        running = cluster.current()
        running.push(values)
        told = {name: export.describe(name, value) for name, value in values.items()}
        step = export.Push({n: t[0] for n, t in told.items()}, {n: t[1] for n, t in told.items()})
        self.logs.of(running).steps.append(step)

    @line_magic
    @shows_help
    @tells_plainly
    def pull(self, line: str) -> None:
        """%pull NAME... [--as NAME]: bind rank 0's variables here, arrays whole, as numpy."""
        parsed = arguments.pull_parser().read(line.replace(",", " "))
        if not parsed.names:
            raise UsageError("%pull needs the name of a variable.", "For example: %pull x")
        if parsed.new_name is not None and len(parsed.names) > 1:
            raise UsageError("--as takes one variable, and you named several.", "%pull x --as y")
        transfer.check_names([*parsed.names, *filter(None, [parsed.new_name])])
        running = cluster.current()
        values = {n: running.pull(n) for n in parsed.names}
        if parsed.new_name is not None:
            values = {parsed.new_name: values[parsed.names[0]]}
        self.shell.user_ns.update(values)


# What %%spmd? shows, and Shift-Tab.
JaxClusterMagics.jaxcluster.__doc__ = list_commands()
JaxClusterMagics.spmd.__doc__ = arguments.spmd_parser().format_help()
JaxClusterMagics.push.__doc__ = arguments.push_parser().format_help()
JaxClusterMagics.pull.__doc__ = arguments.pull_parser().format_help()
JaxClusterMagics.shards.__doc__ = arguments.shards_help()


def _add_size(parser: arguments.Parser) -> None:
    parser.add_argument("-n", "--num-processes", type=int, metavar="N")
    parser.add_argument("--mesh", metavar="AXIS=SIZE,...")


@contextlib.contextmanager
def say_usage() -> Iterator[None]:
    """Print what is wrong with a name: nothing to look at is no reason to stop a notebook."""
    try:
        yield
    except UsageError as error:
        print(error)


_Parts = tuple[JaxClusterMagics, Completion, Elsewhere, debugging.DebugMagic, Panel | None]
_loaded: dict[int, _Parts] = {}


def load(ipython: Any) -> None:
    """Register the magics, auto mode, completion and the panel; a second time does nothing."""
    if id(ipython) in _loaded:
        return
    magics = JaxClusterMagics(ipython)
    ipython.register_magics(magics)
    # First of all transformers: it must see the cell as it was typed.
    ipython.input_transformers_cleanup[:0] = [magics.auto.transform, rewrite.ask_for_help]
    completion = Completion(ipython, lambda: magics.auto.applies)
    completion.install()
    elsewhere = Elsewhere(ipython)
    elsewhere.install()
    debug = debugging.DebugMagic(ipython, lambda: ipython.run_line_magic("jaxcluster", "debug"))
    debug.install()
    panel = magics.panel = Panel(ipython, magics.auto) if magics.rich else None
    if panel is not None:
        panel.install()
        magics.debugger = Debugger(ipython)
        magics.debugger.install()
    _loaded[id(ipython)] = (magics, completion, elsewhere, debug, panel)


def _is_reloading() -> bool:
    """Whether it is ``%reload_ext`` that unloads the extension: IPython says so to nobody."""
    reload_extension = ExtensionManager.reload_extension.__code__
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not reload_extension:
        frame = frame.f_back
    return frame is not None


def unload(ipython: Any) -> None:
    """Stop this notebook's clusters, and leave nothing registered; ``%reload_ext`` keeps all."""
    if _is_reloading():
        return
    if id(ipython) not in _loaded:
        return
    magics, completion, elsewhere, debug, panel = _loaded.pop(id(ipython))
    elsewhere.uninstall()
    debug.uninstall()
    if magics.debugger is not None:
        magics.debugger.uninstall()
    for transform in (magics.auto.transform, rewrite.ask_for_help):
        ipython.input_transformers_cleanup.remove(transform)
    completion.uninstall()
    for names in magics.magics.values():
        for name in list(names):
            for registered in ipython.magics_manager.magics.values():
                registered.pop(name, None)
    cluster.stop_owned()
    quit_warm()
    if panel is not None:
        panel.uninstall()  # when it has told of the clusters' end


__all__ = ["JaxClusterMagics", "load", "unload"]
