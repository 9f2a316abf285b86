"""The magics, and what else the extension registers in a notebook."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable
from typing import Any

from IPython.core.extensions import ExtensionManager
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    no_var_expand,
)

from jaxcluster import cluster
from jaxcluster.cluster import transfer
from jaxcluster.errors import CellInterrupted, UsageError
from jaxcluster.hosts.here import quit_warm
from jaxcluster.model import rewrite
from jaxcluster.notebook import cells, debugging, export
from jaxcluster.notebook.commands import Commands
from jaxcluster.notebook.completion import ask_rank_0
from jaxcluster.notebook.page import Page
from jaxcluster.notebook.panel import Panel
from jaxcluster.options import arguments
from jaxcluster.options.commands import list_commands
from jaxcluster.views import shards as array_views


def tells_plainly(magic: Callable[..., Any]) -> Callable[..., Any]:
    """A magic that prints what ``--help`` asks for, and shows no frames of ours after a stop."""

    @functools.wraps(magic)
    def call(self: JaxClusterMagics, *args: Any, **kwargs: Any) -> Any:
        try:
            return magic(self, *args, **kwargs)
        except arguments.Help as help:
            print(help)
        except CellInterrupted:
            raise
        except KeyboardInterrupt:
            raise CellInterrupted("stopped.") from None

    return call


@magics_class
class JaxClusterMagics(Magics):
    """``%jaxcluster``, ``%%spmd``, ``%spmd``, ``%shards``, ``%push`` and ``%pull``."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.page = page = Page(shell)
        self.logs = export.Logs()
        self.auto = rewrite.AutoMode(page.is_silent)
        self.commands = Commands(page, self.logs, self.auto)

    @no_var_expand
    @line_magic
    @tells_plainly
    def jaxcluster(self, line: str) -> None:
        """Start, look at and control clusters."""
        self.commands.run(line)

    @no_var_expand
    @line_cell_magic
    @tells_plainly
    def spmd(self, line: str, cell: str | None = None) -> None:
        """Run a cell, or a line, on every rank."""
        cells.run(self.page, self.logs, line, cell)

    @line_magic
    @tells_plainly
    def shards(self, line: str) -> None:
        """Show which rank and device holds which part of an array."""
        name, options = arguments.shards_line(line)
        running = cluster.current()
        view = array_views.shards(running, name, check="--check" in options)
        if "--widget" in options and self.page.rich:
            from jaxcluster.views.widget import ShardWidget  # with all of ipywidgets

            widget = ShardWidget(view, functools.partial(array_views.answer, running, name))
            self.page.show_widget(widget, {"text/html": view["text/html"]})
        else:
            self.page.show(view)

    @line_magic
    @tells_plainly
    def push(self, line: str) -> None:
        """Bind the notebook's variables on every rank."""
        names = arguments.Parser("%push").read(line.replace(",", " ")).names
        transfer.check_names(names)
        missing = [n for n in names if n not in self.page.shell.user_ns]
        if missing:
            raise UsageError(
                f"The notebook has no variable {', '.join(missing)}.",
                "To copy a rank's variable to the notebook: %pull NAME",
            )
        values = {n: self.page.shell.user_ns[n] for n in names}
        running = cluster.current()
        running.push(values)
        self.logs.of(running).pushed += values

    @line_magic
    @tells_plainly
    def pull(self, line: str) -> None:
        """Bind rank 0's variables here, arrays whole, as numpy."""
        parsed = arguments.Parser("%pull").read(line.replace(",", " "))
        if parsed.new_name is not None and len(parsed.names) > 1:
            raise UsageError("--as takes one variable, and you named several.", "%pull x --as y")
        transfer.check_names([*parsed.names, *filter(None, [parsed.new_name])])
        running = cluster.current()
        values = {n: running.pull(n) for n in parsed.names}
        if parsed.new_name is not None:
            values = {parsed.new_name: values[parsed.names[0]]}
        self.page.shell.user_ns.update(values)


# Shown by %%spmd? and Shift-Tab.
JaxClusterMagics.jaxcluster.__doc__ = list_commands()
for _name in ("%%spmd", "%push", "%pull", "%shards"):
    getattr(JaxClusterMagics, _name.strip("%")).__doc__ = arguments.Parser(_name).format_help()


_loaded: dict[int, contextlib.ExitStack] = {}  # what takes it all back, by shell


def load(ipython: Any) -> None:
    """Register the magics, auto mode, completion and the panel; a second time does nothing."""
    if id(ipython) in _loaded:
        return
    undo = _loaded[id(ipython)] = contextlib.ExitStack()
    magics = JaxClusterMagics(ipython)
    if magics.page.rich:
        panel = magics.commands.panel = Panel(ipython, magics.auto)
        panel.install()
        undo.callback(panel.uninstall)  # after the panel has shown the clusters' end
    undo.callback(quit_warm)
    undo.callback(cluster.stop_owned)
    ipython.register_magics(magics)
    undo.callback(_unregister, ipython, magics)
    # First of all transformers: it must see the cell as it was typed.
    cleanup, own = ipython.input_transformers_cleanup, [magics.auto.transform, rewrite.ask_for_help]
    cleanup[:0] = own
    for transform in own:
        undo.callback(cleanup.remove, transform)
    undo.callback(ask_rank_0(ipython, lambda: magics.auto.on))
    undo.callback(cells.tell_where_names_are(ipython))
    undo.callback(
        debugging.take_debug(ipython, lambda: ipython.run_line_magic("jaxcluster", "debug"))
    )


def _unregister(ipython: Any, magics: JaxClusterMagics) -> None:
    for name in (name for names in magics.magics.values() for name in names):
        for registered in ipython.magics_manager.magics.values():
            registered.pop(name, None)


def _is_reloading() -> bool:
    """Whether it is ``%reload_ext`` that unloads the extension: IPython says so to nobody."""
    reload_extension = ExtensionManager.reload_extension.__code__
    return any(frame.f_code is reload_extension for frame, _ in traceback.walk_stack(None))


def unload(ipython: Any) -> None:
    """Stop this notebook's clusters, and leave nothing registered; ``%reload_ext`` keeps all."""
    if id(ipython) in _loaded and not _is_reloading():
        _loaded.pop(id(ipython)).close()
