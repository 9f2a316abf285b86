"""A running cell and a starting cluster, shown in IPython as they go on."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
from dataclasses import replace
from html import escape
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, TextIO

from jaxcluster import wire
from jaxcluster.cluster import array_queries
from jaxcluster.cluster.questions import here
from jaxcluster.cluster.spec import make_spec
from jaxcluster.errors import JaxClusterError
from jaxcluster.hosts import doctor
from jaxcluster.hosts.allocation import examine
from jaxcluster.model.layout import SEED, ArrayLayout, TreeLayout, tell_groups
from jaxcluster.model.lines import Lines, fit
from jaxcluster.model.outputs import CellRecord
from jaxcluster.options import arguments
from jaxcluster.views import arrays, cell_outputs, shards
from jaxcluster.views.displays import (
    Bundle,
    Display,
    Throttle,
    dimmed,
    is_console,
    show_message,
)
from jaxcluster.views.messages import SHARDS_MIME, RanksOutputs

if TYPE_CHECKING:
    from jaxcluster.cluster import Cluster


class CellDisplay:
    """Shows the output of a cell's first rank as that of a local cell.

    A notebook shows several ranks in one display, which is updated. A terminal shows their lines,
    which begin with their ranks.

    Args:
      shell: IPython's, of the notebook or the terminal.
      all_ranks: show every rank that runs the cell, equal outputs once.

    Attributes:
      prompt: where the ranks' questions are put; None on a thread that may not ask.
      on_status: shows the line that says what the cell waits for; None where displays are not
        updated.
    """

    def __init__(self, shell: Any, cluster: Cluster, all_ranks: bool = False) -> None:
        self.shell, self.cluster, self.all_ranks = shell, cluster, all_ranks
        self._rich = hasattr(shell, "kernel")
        self.on_status = self._show_status if self._rich and not is_console() else None
        # It stands under a running cell. At the end it is gone; a log has notices now and then.
        self._status, self._told = Display(shell), ""
        self._stream: TextIO | None = None  # that was written to last
        self._result: wire.RankOutput | None = None  # which is shown at the end
        self.prompt = here(self._show_asking, self._make_way)
        # Waits for several ranks' output, once there is some: in a page, and in a terminal.
        self._record: CellRecord | None = None
        self._groups = Display(shell)
        self._last: RanksOutputs | None = None
        self._lines, self._lock = Lines(), threading.Lock()  # more may come while they are shown
        self._later = Throttle(self._show_groups)
        if self.on_status is None:
            self._later = Throttle(self._show_lines, share=1)

    def on_output(self, record: CellRecord, what: wire.RankOutput | wire.CellReply) -> None:
        """Show what has come."""
        if isinstance(what, wire.CellReply):
            return
        is_first = what.rank == record.ranks[0]
        is_result = is_first and what.kind == "execute_result"
        if is_result and ("array" in what.content or (self.all_ranks and self.on_status is None)):
            self._result = what
        elif self.all_ranks:
            self._record = record
            if self.on_status is None:
                self._add_lines(what)
            elif is_first and what.kind == "update_display_data":
                self.show(what)  # an earlier cell's, perhaps
            self._later.more()
        elif is_first:
            self.show(what)

    def on_notice(self, message: str) -> None:
        """Show a notice under the cell."""
        self._pause()
        show_message(self.shell, message)

    def now(self) -> None:
        """Show what has come."""
        if self._record is not None:
            self._later.now()

    def _show_groups(self) -> None:
        """Show all groups of ranks with equal output again, if they have changed."""
        assert self._record is not None
        shown = cell_outputs.document(self._record, list(self._record.ranks))
        if shown != self._last:
            self._last = shown
            self._groups.show(cell_outputs.bundle(shown) if shown else {"text/plain": ""})

    def _add_lines(self, output: wire.RankOutput) -> None:
        content = output.content
        with self._lock:
            if output.kind == "stream":
                self._lines.add(output.rank, content["name"], content["text"])
            elif "array" not in content:
                plain = (content.get("data") or {}).get("text/plain")
                self._lines.add(output.rank, "stdout", f"{plain}\n" if plain else "")

    def _show_lines(self) -> None:
        """Show the lines that have ended; those that come together, once."""
        with self._lock:
            said = self._lines.take()
        for name, texts in itertools.groupby(said, lambda one: one[0]):
            target = sys.stderr if name == "stderr" else sys.stdout
            target.write("".join(text for _, text in texts))
            target.flush()

    def _show_status(self, told: str) -> None:
        self.now()
        if told or self._told:
            self._tell(told)

    def _tell(self, told: str) -> None:
        self._told = told
        # An empty text takes no room in JupyterLab.
        self._status.show(dimmed(told) if told else {"text/plain": ""})

    def _show_asking(self, output: wire.RankOutput) -> None:
        """The output of a rank's debugger, above its prompt; a terminal has it there already."""
        if self.on_status is not None or self._record is None:
            self.show(output)

    def _make_way(self) -> None:
        """A rank is about to ask."""
        self._pause()
        if self.on_status is not None:
            self.on_status("")

    def _pause(self) -> None:
        """Something else is about to be shown, in a terminal below all that is there."""
        if self.on_status is None:
            self.now()

    def show(self, output: wire.RankOutput) -> None:
        """One output, as if this process had made it."""
        content = output.content
        if output.kind == "stream":
            stream = sys.stderr if content["name"] == "stderr" else sys.stdout
            if self._stream is not None and self._stream is not stream:
                self._stream.flush()  # else it would come below what is printed after it
            is_early = self.on_status is not None and not self._status.is_shown
            if is_early and "\r" in content["text"].replace("\r\n", "\n"):
                self._tell("")  # in the middle of a bar it would leave its first half as it was
            stream.write(content["text"])
            self._stream = stream
            if not self._rich:  # a notebook flushes 5 times a second anyway
                stream.flush()
        elif output.kind in ("display_data", "update_display_data"):
            self.shell.display_pub.publish(
                data=content["data"],
                metadata=content["metadata"],
                transient=content["transient"],
                update=output.kind == "update_display_data",
            )
        elif output.kind == "execute_result":
            self.show_result(content["data"], content["metadata"])
        elif output.kind == "clear_output":
            self.shell.display_pub.clear_output(content["wait"])

    def show_result(self, data: Bundle, metadata: Bundle) -> None:
        """A value as ``Out[n]``."""
        hook = self.shell.displayhook
        hook.start_displayhook()
        hook.write_output_prompt()
        hook.write_format_data(data, metadata)
        hook.finish_displayhook()

    def close(self) -> None:
        """Show the rest of the output, and remove the status line."""
        if self.on_status is not None and self._told:
            self._tell("")
        if self._record is not None:
            with self._lock:
                self._lines.end()
            self._later.finish()

    def finish(self, record: CellRecord) -> None:
        """After all ranks have ended the cell, and ``close``: show what it ended in."""
        if self._result is not None and "array" in self._result.content:
            self._show_array(record, self._result)
        elif self._result is not None:
            self.show(self._result)

    def _show_array(self, record: CellRecord, output: wire.RankOutput) -> None:
        """An array's values come from all ranks."""
        found: ArrayLayout | TreeLayout | None = None
        shown: str = output.content["data"]["text/plain"]  # without values
        try:
            found = array_queries.look(self.cluster.world, "", record.ranks)
            values, cut = arrays.corners(self.cluster.world, found)
            if isinstance(found, ArrayLayout):
                shown = arrays.values(found, values, cut)
                if not found.ready:  # it is now: compare its copies
                    found = array_queries.look(self.cluster.world, "", record.ranks)
        except JaxClusterError as error:
            self.on_notice(str(error))
        if isinstance(found, ArrayLayout) and found.odd:
            groups = tell_groups(found.odd)
            self.on_notice(f"Ranks have different copies of it: {groups}. {SEED}\n")
        bundle: Bundle = {}
        if self._rich and isinstance(found, ArrayLayout):  # drawn in a notebook
            last = record.source.strip().rpartition("\n")[2].strip()
            name = last if last.isidentifier() else "Array"
            bundle = shards.layout_view(replace(found, name=name))
            bundle[SHARDS_MIME]["values"] = shown.partition("\n")[2].partition("\n")[2]
            bundle["text/html"] = f"<pre>{escape(shown)}</pre>\n{bundle['text/html']}"
        self.show_result({**bundle, "text/plain": shown}, {})


class StartDisplay:
    """One line that says how far a start has come, and in the end what it made.

    A terminal writes it over; a log has the last one alone.

    Args:
      shell: IPython's, where there is one.
    """

    def __init__(self, shell: Any = None, failed: str = "The cluster did not start.") -> None:
        is_dumb = os.environ.get("TERM", "dumb") in ("", "dumb")  # it can't write over a line
        self._is_terminal = not is_dumb and sys.stderr is not None and sys.stderr.isatty()
        self._failed = failed
        is_updated = hasattr(shell, "kernel") and not is_console()
        self._display = Display(shell) if is_updated else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """A failed step leaves no line as if it went on."""
        if kind is not None:
            self.progress(self._failed if self._display is not None else "")

    def progress(self, line: str) -> None:
        if self._display is not None:
            self._display.show({"text/plain": line})
        elif self._is_terminal:
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{fit(line, columns)}\r", end="", file=sys.stderr, flush=True)

    def done(self, line: str) -> None:
        if self._display is not None:
            self._display.show({"text/plain": line})
        else:
            self.progress("")
            print(line)


def show_checks(parsed: SimpleNamespace, shell: Any = None) -> bool:
    """Show what the doctor finds here, or on a launcher's hosts; returns whether all is well here.

    Raises:
      LaunchError: an agent did not come up.
    """
    given = arguments.start_options(parsed)
    if parsed.launcher is not None and not (spec := make_spec(**given)).is_here:  # "auto" may be
        with StartDisplay(shell, "The hosts could not be checked.") as display:
            display.done(examine(spec, doctor.look, display.progress, spec.timeout_s))
        return True
    checks = doctor.run_checks()
    print(doctor.render(checks))
    return all(check.ok is not False for check in checks)
