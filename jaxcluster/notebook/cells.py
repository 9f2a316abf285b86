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
from jaxcluster.views.displays import Display
from jaxcluster.views.live import CellDisplay


def run(page: Page, logs: export.Logs, line: str, cell: str | None) -> None:
    """Run a cell, or a line's expression, on every rank; rank 0's output is shown as it comes.

    Args:
      page: where it is typed.
      logs: what the notebook has run.
      line: the options, and without a cell the expression.
    """
    typed = line.replace("--no-magic-line", "")  # auto mode's cells have no %%spmd above
    source = cell if cell is None or typed != line else rewrite.with_magic_line(cell)
    if source is None:
        typed, source = arguments.split_spmd(line)
    options = arguments.Parser("%%spmd").read(typed)
    if not source.strip() and cell is None:
        raise UsageError("%spmd needs an expression.", "For example: %spmd --all x.sharding")
    if options.out is not None:
        transfer.check_names([options.out])
    running, shell, ranks = cluster.current(), page.shell, None
    if options.ranks is not None:
        ranks = arguments.read_ranks(options.ranks, running.num_processes, "%%spmd --ranks")
        print(f"Only on {name_ranks(ranks)}:")
    number = shell.displayhook.prompt_count
    step = export.Cell(number, typed, source if cell is None else cell, ok=False)
    logs.of(running).cells.append(step)
    relay_comms(running, shell)
    together = options.all_ranks or (ranks is not None and len(ranks) > 1)  # if named, then shown
    display = CellDisplay(shell, running, together)
    is_waited_for = not options.background
    submitted = running.submit(
        source,
        ranks=ranks,
        timeout_s=options.timeout_s,
        execution_count=number,
        shown_ranks=(ranks or range(running.num_processes)) if together else None,
        on_output=display.on_output if is_waited_for else None,
        on_notice=display.on_notice,
        cell_id=page.cell_id,
        parent=page.parent,
        prompt=display.prompt if is_waited_for else None,
        profile=_profile_folder(options.profile),
        is_waited_for=is_waited_for,
    )
    if options.out is not None:
        shell.user_ns[options.out] = submitted.record if is_waited_for else submitted
    if not is_waited_for:
        submitted.on_notice = None
        display.close()
        _run_in_background(page, submitted, options.out, step)
        return
    submitted.on_status = display.on_status
    try:
        _wait(submitted, display)
    except CellFailed as error:
        display.finish(submitted.record)
        point_to_push(error, shell.user_ns)
        raise
    display.finish(submitted.record)
    step.ok = True


def _profile_folder(named: str | None) -> str:
    """The folder of a cell's profile, which is printed; "" for none."""
    if named is None:
        return ""
    names = (named or f"profile-{number}" for number in itertools.count(1))
    folders = (Path(name).expanduser().absolute() for name in names)
    folder = next(one for one in folders if named or not one.exists())
    print(
        f"Each rank's profile: {folder}/rank-N. To open them: xprof {folder}, or a "
        "perfetto_trace.json.gz at ui.perfetto.dev."
    )
    return str(folder)


def _wait(submitted: cluster.RunningCell, display: CellDisplay) -> None:
    try:
        submitted.wait()
    except KeyboardInterrupt:
        if submitted.done:
            raise
        submitted.stop()  # it was pressed before the wait
        submitted.wait()
    finally:
        display.close()


def _run_in_background(
    page: Page, submitted: cluster.RunningCell, out: str | None, step: export.Cell
) -> None:
    number = submitted.record.execution_count
    hint = f"{out}.wait() waits for it" if out else "%jaxcluster outputs shows what it prints"
    place = Display(page.shell) if page.rich else None
    told = f"Cell [{number}] runs in the background; {hint}."
    if place is None:
        print(told)
    else:
        place.show({"text/plain": told})

    def done(record: CellRecord) -> None:
        step.ok = record.ok and submitted.refusal is None
        if place is not None:
            state = "is done" if record.ok else "has failed (%jaxcluster outputs)"
            line = f"Cell [{number}] {state}, {record.seconds:.1f} s."
            place.show({"text/plain": f"{line}\n{record.stdout()}".rstrip("\n")})

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
        pull = f", %pull {name} copies a value here" if 0 in have else ""
        error.args = (
            f"name {name!r} is not defined in the notebook, but on {name_ranks(have)}: "
            f"%%spmd runs a cell there{pull}.",
        )


def point_to_push(error: CellFailed, namespace: Mapping[str, Any]) -> None:
    """Say in the hint of a cell's NameError that the notebook has the name."""
    found = _UNDEFINED.search(error.message) if error.ename == "NameError" else None
    if found is not None and not found[1].startswith("_") and found[1] in namespace:
        told = f"The notebook has {found[1]}: %push {found[1]} gives it to the ranks."
        error.hint = f"{told}\n{error.hint}" if error.hint else told
