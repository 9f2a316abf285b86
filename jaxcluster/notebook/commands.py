"""The commands of ``%jaxcluster``: each reads its line, makes one call, and shows the result."""

from __future__ import annotations

import difflib
import re
import time
from types import SimpleNamespace as Namespace

from jaxcluster import cluster
from jaxcluster.cluster import events
from jaxcluster.cluster import history as cells
from jaxcluster.cluster.world import who_we_are
from jaxcluster.errors import UsageError
from jaxcluster.hosts import doctor
from jaxcluster.hosts.here import quit_warm
from jaxcluster.model import rewrite
from jaxcluster.model.outputs import traceback_lines
from jaxcluster.notebook import debugging, export
from jaxcluster.notebook.cells import run as run_cell
from jaxcluster.notebook.page import Page
from jaxcluster.notebook.panel import Panel
from jaxcluster.options import arguments
from jaxcluster.options.commands import COMMANDS, OTHERS, REMOVED, list_commands
from jaxcluster.ranks import name_ranks
from jaxcluster.views import blocks, cell_outputs, history, report, status
from jaxcluster.views import shards as array_views
from jaxcluster.views.displays import Display
from jaxcluster.views.live import StartDisplay, show_checks

ON_OFF = {True: "on", False: "off"}
_VARIABLE = re.compile(r"\{(\w+)\}|\$(\w+)")

# The commands that a word may mean.
MEANT = {name: f"%jaxcluster {name}" for name in COMMANDS} | {
    name.strip("%"): name if name[0] == "%" else f"jaxcluster {name} in a shell" for name in OTHERS
}


class Commands:
    """The commands of ``%jaxcluster`` for one notebook.

    Each command is a method, and gets what ``options.commands`` says that it takes. Arguments that
    were not typed are None.

    Args:
      page: where it is typed.
      logs: what the notebook has run, for ``export``.
      auto: whether each cell is an ``%%spmd`` cell.

    Attributes:
      panel: JupyterLab's, where the page is one.
    """

    def __init__(self, page: Page, logs: export.Logs, auto: rewrite.AutoMode) -> None:
        self.page, self.logs, self.auto = page, logs, auto
        self.panel: Panel | None = None

    def run(self, line: str) -> None:
        """Run a line: a command and what it takes.

        Raises:
          UsageError: there is no such command, or it takes something else.
        """
        command, _, rest = line.strip().partition(" ")
        if command in ("", "-h", "--help", "help"):
            raise arguments.Help(list_commands())
        if command in REMOVED:
            told = f"%jaxcluster {command} was removed."
            raise UsageError(told, f"In its place: {REMOVED[command]}")
        if command not in COMMANDS:
            close = [MEANT[name] for name in difflib.get_close_matches(command, MEANT, n=1)]
            meant = f": did you mean {close[0]}?" if close else "."
            raise UsageError(
                f"There is no %jaxcluster {command}{meant}", "%jaxcluster alone lists all commands."
            )
        rest = self._with_values(rest)
        getattr(self, f"_{command}")(arguments.Parser(f"%jaxcluster {command}").read(rest))

    def _with_values(self, line: str) -> str:
        """A line with the values of the notebook's variables in it, written ``{n}`` or ``$n``.

        IPython would run any Python between the braces. A click on *Start* runs the start line of a
        notebook that may be anybody's.
        """
        names = self.page.shell.user_ns
        return _VARIABLE.sub(lambda m: str(names.get(m[1] or m[2], m[0])), line)

    def _start(self, parsed: Namespace) -> None:
        spec = cluster.make_spec(**arguments.start_options(parsed))
        if parsed.dry_run:
            print(cluster.dry_run(spec))
            return
        with StartDisplay(self.page.shell) as display:
            display.done(cluster.start_once(spec, display.progress))
        self._show_running(cluster.current())

    def _status(self, parsed: Namespace) -> None:
        running = cluster.current()
        if parsed.stacks:
            print(status.stacks(running.stacks()))
            return
        if parsed.memory:
            self.page.show(array_views.memory(running))
            return
        if parsed.mesh is not None:
            self.page.show(array_views.mesh(running, parsed.mesh or None))
            return
        if parsed.live and self.page.rich:
            status.live(running, Display(self.page.shell).refresh, self.page.cell_id)
            return
        print(blocks.text([running.summary(), *status.look(running)]))

    def _panel(self, _: Namespace) -> None:
        if self.panel is None:
            raise UsageError("A terminal has no panel.", "%jaxcluster status shows the same.")
        now = status.seen(cluster.current() if cluster.connected() else None)
        self.page.show_widget(self.panel.widget(), now)

    def _list(self, _: Namespace) -> None:
        print(status.running(list(cluster.connected())))

    def _attach(self, parsed: Namespace) -> None:
        attached = cluster.attach(parsed.name)
        print(attached.summary())
        self._show_running(attached)

    def _show_running(self, attached: cluster.Cluster) -> None:
        """Show what a cluster does that others have used, to a notebook that has just attached."""
        if attached.last is not None or attached.world.is_ours:
            return
        found, now_ns = attached.history(), time.time_ns()
        one = found.running
        if one is None:
            if found.cells:
                told = history.headline(found.cells[-1], now_ns)
                print(f"{told}. %jaxcluster outputs --history lists all.")
        elif self.page.rich:
            history.show_on(self.page.shell, attached, found, one)
        else:
            record = cells.Following(found, one, one.shown).look()
            print(f"{history.headline(one, now_ns)}. Its output so far:")
            print(cell_outputs.of_records(record.records))
            print("%jaxcluster outputs shows what has come since.")

    def _stop(self, parsed: Namespace) -> None:
        if parsed.everything and parsed.name:
            raise UsageError("Give a cluster's name or --all, not both.", "%jaxcluster stop --all")
        if not parsed.everything:
            name = parsed.name or cluster.current().name
            print(cluster.stop_by_name(name, force=bool(parsed.force)))
            return
        stopped = list(cluster.connected())
        for name in stopped:
            print(cluster.stop_by_name(name, say_next=False, force=bool(parsed.force)))
        if quit_warm():
            print("The preloaded fork server has ended too.")
        elif not stopped:
            cluster.current()  # says that there is none, and what there is elsewhere

    def _restart(self, parsed: Namespace) -> None:
        clean, count = bool(parsed.clean), parsed.num_processes
        if clean and count is not None:
            raise UsageError(
                "restart -n keeps the variables, so it does not take --clean.",
                "%jaxcluster stop   and %jaxcluster start -n 8",
            )
        running = cluster.current()
        failed = "The restart was not completed." if count is None else "It was not resized."
        with StartDisplay(self.page.shell, failed) as display:
            display.progress("restarting ..." if count is None else "resizing ...")
            kept = running.restart(display.progress, clean=clean, num_processes=count)
            if clean:
                self.logs.forget(running)
        display.done(f"{running.summary()}\n{kept}")

    def _interrupt(self, _: Namespace) -> None:
        hit = cluster.current().interrupt()
        print(f"Interrupted {name_ranks(hit)}." if hit else "No rank was running a cell.")

    def _logs(self, parsed: Namespace) -> None:
        running, rank = cluster.current(), parsed.rank
        ranks = range(running.num_processes) if rank is None else [rank]
        for one in running.world.check_ranks(list(ranks)):
            print(f"── rank {one} ──\n{running.logs(one, 200) or '(empty)'}")

    def _outputs(self, parsed: Namespace) -> None:
        if parsed.history is not None:
            found, count = cluster.current().history(), parsed.history or 20
            self.page.show(history.table(found, time.time_ns(), who_we_are(), count))
            return
        running = cluster.current()
        chosen = None
        if parsed.ranks:
            chosen = arguments.read_ranks(
                parsed.ranks, running.num_processes, "%jaxcluster outputs"
            )
        record = running.last
        if record is None or parsed.cell is not None:
            found = running.history()
            one = found.find(parsed.cell)
            print(f"{history.headline(one, time.time_ns(), who_we_are())}.")
            record = cells.Following(found, one, chosen).look()
        else:
            print(f"Cell [{record.execution_count}]")
        kept = {r: one for r, one in record.records.items() if chosen is None or r in chosen}
        print(cell_outputs.of_records(kept))
        for shown in traceback_lines(record) if record is not running.last else ():
            print(shown)

    def _doctor(self, parsed: Namespace) -> None:
        show_checks(parsed, self.page.shell)
        if parsed.launcher is not None:
            return
        for one in cluster.connected().values():
            if one.closed or one.spec.is_here:  # it has looked at this machine already
                continue
            if places := [place for place in one.world.fleet.hosts if place.ranks]:
                print(f"\nhosts of cluster {one.name!r}:")
                print(doctor.look(places))

    def _report(self, parsed: Namespace) -> None:
        self.page.show(report.bundle(report.of_cell(cluster.current(), parsed.cell)))

    def _debug(self, parsed: Namespace) -> None:
        running, chosen = cluster.current(), parsed.rank
        if chosen is None:
            chosen, line = debugging.choose(running.last_failed)
            print(line)
        run_cell(self.page, export.Logs(), f"--ranks {chosen}", "%debug")

    def _checkpoint(self, parsed: Namespace) -> None:
        print(cluster.current().checkpoint(parsed.name))

    def _restore(self, parsed: Namespace) -> None:
        name = parsed.name
        if parsed.last:
            print(cluster.current().restore_last())
            return
        if name is None:
            raise UsageError("Which checkpoint?", "%jaxcluster restore NAME")
        print(cluster.current().restore(name))

    def _autosave(self, parsed: Namespace) -> None:
        running, is_on = cluster.current(), parsed.switch
        if is_on is not None:
            running.set_autosave(is_on=is_on)
            print(f"Autosave is {ON_OFF[is_on]}.")
            return
        saves = running.autosave
        state = f"Autosave is {ON_OFF[saves.is_on]}."
        if saves.kept is not None:
            state += f" The variables after cell [{saves.cell}] are saved."
        if saves.why_not:
            state += f" Those after the last cell are not: {saves.why_not}."
        print(f"{state} %jaxcluster autosave on|off sets it.")

    def _auto(self, parsed: Namespace) -> None:
        if parsed.switch is None:
            print(f"Auto mode is {ON_OFF[self.auto.on]}. %jaxcluster auto on|off sets it.")
            return
        self.auto.on = parsed.switch
        events.tell()
        print(
            "Every cell is now an %%spmd cell; cells with only magics still run in the notebook."
            if self.auto.on
            else "Cells run in the notebook again."
        )

    def _export(self, parsed: Namespace) -> None:
        force = bool(parsed.force)
        print("\n".join(export.write(parsed.path, self.logs.last, force=force)))
