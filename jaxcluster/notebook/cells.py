"""``%%spmd``: how a cell is sent, shown, and left to run in the background; where names are."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxcluster import cluster
from jaxcluster.cluster import transfer
from jaxcluster.errors import CellFailed, JaxClusterError, UsageError
from jaxcluster.model import rewrite
from jaxcluster.model.outputs import CellRecord
from jaxcluster.notebook import export
from jaxcluster.notebook.page import Page
from jaxcluster.options import arguments
from jaxcluster.ranks import name_ranks
from jaxcluster.views.comms import relay_comms
from jaxcluster.views.live import CellDisplay


class Cells:
    """Runs one notebook's ``%%spmd`` cells.

    Args:
      page: where they are typed.
      logs: what the notebook has run.
    """

    def __init__(self, page: Page, logs: export.Logs) -> None:
        self.page, self.logs = page, logs

    def run(self, line: str, cell: str | None) -> None:
        """Run a cell, or a line's expression, on every rank; rank 0's output is shown as it comes.

        Args:
          line: the options, and without a cell the expression.
        """
        if cell is None:
            typed, source = arguments.split_spmd(line)
            options = arguments.Parser("%%spmd").read(typed)
            if not source.strip():
                raise UsageError(
                    "%spmd needs an expression.", "For example: %spmd --all x.sharding"
                )
        else:
            typed = line.replace("--no-magic-line", "")  # auto mode's cells have no %%spmd above
            options = arguments.Parser("%%spmd").read(typed)
            source = cell if typed != line else rewrite.with_magic_line(cell)
        if options.out is not None:
            transfer.check_names([options.out])
        running = cluster.current()
        ranks = None
        if options.ranks is not None:
            count = running.num_processes
            ranks = arguments.read_ranks(options.ranks, count, "%%spmd --ranks")
        if ranks is not None:
            print(f"Only on {name_ranks(ranks)}:")
        number = self.page.shell.displayhook.prompt_count
        step = export.Cell(number, typed, source if cell is None else cell, ok=False)
        self.logs.of(running).cells.append(step)
        self._run_cell(running, source, ranks, options, step)
        if not options.background:
            step.ok = True

    def _run_cell(
        self,
        running: cluster.Cluster,
        source: str,
        ranks: list[int] | None,
        options: Any,
        step: export.Cell,
    ) -> None:
        profile = None
        if options.profile is not None:
            names = (options.profile or f"profile-{number}" for number in itertools.count(1))
            folders = (Path(name).expanduser().absolute() for name in names)
            profile = next(one for one in folders if options.profile or not one.exists())
            print(
                f"Each rank's profile: {profile}/rank-N. To open them: xprof {profile}, or a "
                "perfetto_trace.json.gz at ui.perfetto.dev."
            )
        relay_comms(running, self.page.shell)
        # Ranks that are named are shown.
        together = options.all_ranks or (ranks is not None and len(ranks) > 1)
        display = CellDisplay(self.page.shell, running, together)
        submitted = running.submit(
            source,
            ranks=ranks,
            timeout_s=options.timeout_s,
            execution_count=self.page.shell.displayhook.prompt_count,
            shown_ranks=(ranks or range(running.num_processes)) if together else None,
            on_output=None if options.background else display.on_output,
            on_notice=display.on_notice,
            cell_id=self.page.cell_id,
            parent=self.page.parent,
            prompt=None if options.background else display.prompt,
            profile=profile or "",
            is_waited_for=not options.background,
        )
        submitted.on_status = display.on_status
        if display.on_status is not None:
            display.on_status("")  # its turn has come
        if options.background:
            submitted.on_notice = submitted.on_status = None
            display.close()
            self._run_in_background(submitted, options.out, step)
            return
        try:
            try:
                if options.out is not None:
                    self.page.shell.user_ns[options.out] = submitted.record
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
            point_to_push(error, self.page.shell.user_ns)
            raise
        display.finish(record)

    def _run_in_background(
        self, submitted: cluster.RunningCell, out: str | None, step: export.Cell
    ) -> None:
        from IPython.display import display

        number = submitted.record.execution_count
        if out is not None:
            self.page.shell.user_ns[out] = submitted
        hint = f"{out}.wait() waits for it" if out else "%jaxcluster outputs shows what it prints"
        started = {"text/plain": f"Cell [{number}] runs in the background; {hint}."}
        handle = display(started, raw=True, display_id=True) if self.page.rich else None
        if handle is None:
            print(started["text/plain"])

        def done(record: CellRecord) -> None:
            step.ok = record.ok and submitted.refusal is None
            if handle is not None:
                state = "is done" if record.ok else "has failed (%jaxcluster outputs)"
                line = f"Cell [{number}] {state}, {record.seconds:.1f} s."
                shown = record.stdout().rstrip("\n")
                bundle = {"text/plain": f"{line}\n{shown}" if shown else line}
                handle.update(bundle, raw=True)

        submitted.run_in_background(done)


# --------------------------------------------------------------------------- names

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


def tell_where_names_are(shell: Any) -> Callable[[], None]:
    """Have the shell say in a NameError that the ranks have the name. Returns what undoes that."""
    show = shell.showtraceback

    def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
        error = exc_tuple[1] if exc_tuple is not None else sys.exc_info()[1]
        if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
            _explain(error, shell.user_ns)
        return show(exc_tuple, *args, **kwargs)

    shell.showtraceback = showtraceback
    return lambda: setattr(shell, "showtraceback", show)


def _explain(error: NameError, namespace: Mapping[str, Any]) -> None:
    name, names = str(error.name or ""), dict[int, Any]()
    if name not in namespace:
        with contextlib.suppress(JaxClusterError):
            names = cluster.current().world.names
    if have := sorted(rank for rank, own in names.items() if name in own):
        pull = f"%pull {name} brings it here, " if 0 in have else ""
        error.args = (
            f"name {name!r} is not defined in the notebook, but on {name_ranks(have)}: "
            f"{pull}%%spmd runs a cell there.",
        )


def point_to_push(error: CellFailed, namespace: Mapping[str, Any]) -> None:
    """Say in the hint of a cell's NameError that the notebook has the name."""
    found = _UNDEFINED.search(error.message) if error.ename == "NameError" else None
    if found is not None and not found[1].startswith("_") and found[1] in namespace:
        told = f"The notebook has {found[1]}: %push {found[1]} gives it to the ranks."
        error.hint = f"{told}\n{error.hint}" if error.hint else told
