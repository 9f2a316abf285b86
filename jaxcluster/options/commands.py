"""Every command and magic, what it does, and what it takes but a start's options. Pure.

The parser, ``--help`` and the list of commands are made from this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxcluster.options.table import CELL, COUNT, NUMBER, ONOFF, SECONDS, SWITCH, TEXT, Kind, Option


@dataclass(frozen=True)
class Command:
    """A command of ours, or a magic.

    Attributes:
      about: what it does; the first sentence stands in the list.
      takes: its own options and words.
      example: the words after the command in a message's example; if empty, the options' samples.
      takes_start: whether it takes a start's options too.
      refuses: those that it doesn't take.
    """

    about: str
    takes: tuple[Option, ...] = ()
    example: str = ""
    takes_start: bool = False
    refuses: tuple[str, ...] = ()


def _own(
    flag: str, help: str, sample: str = "", kind: Kind = TEXT, metavar: str = "", **more: Any
) -> Option:
    """An option, or a word if it has no dashes; without a sample, a switch."""
    metavar = metavar or (flag.lstrip("-").upper() if sample else "")
    return Option(flag, kind if sample else SWITCH, metavar, help, sample, **more)


COMMANDS = {
    "start": Command(
        "Start a cluster: -n 4, or --launcher ssh --hosts h1:2,h2:2. Each rank is a JAX process, "
        "on this machine or on another host. The same start again leaves the cluster as it is. "
        "`start --help ssh` shows a launcher's options, `start --help all` shows all.",
        example="-n 4 --devices-per-process 2", takes_start=True),
    "stop": Command("End the processes of the cluster. Their variables are lost.", (
        _own("name", "its name (default: this notebook's; in a shell, the only one)", "main-2"),
        _own("--all", "this notebook's clusters; in a shell, all of yours", argument="everything"),
        _own("--force", "forget hosts that can't be reached"),
    )),
    "restart": Command("Give the cluster new processes, with the variables of the old ones.", (
        _own("--clean", "keep no variables"),
        _own("--num-processes", "another number of ranks; leaves out lost hosts", "8", COUNT, "N",
            short="-n"),
    )),
    "interrupt": Command("Stop the cell that runs, on every rank."),
    "status": Command("Show what every rank does now, with its host, process and devices.", (
        _own("--live", "keep it up to date"),
        _own("--stacks", "show the line of each thread of each rank"),
        _own("--memory", "show what each device holds"),
        _own("--mesh", "show which rank holds which device of a mesh (default: of all)", "mesh",
            metavar="[NAME]"),
    )),
    "list": Command(
        "List your running clusters. * marks the one that runs this notebook's cells."),
    "attach": Command(
        "Connect to a running cluster, and run this notebook's cells there. If it runs a cell, the "
        "output of that cell is shown from its beginning.",
        (_own("name", "the cluster's name (default: the only running one)", "main"),)),
    "logs": Command("Show what the processes wrote outside of cells.", (
        _own("rank", "which rank (default: all)", "2", NUMBER),)),
    "outputs": Command(
        "Show what each rank printed in the last cell. If this notebook has run none, show the "
        "last cell of any notebook.", (
        _own("ranks", "which ranks (default: all)", "1-3"),
        _own("--cell", "a cell by its number in --history", "12", COUNT, "N"),
        _own("--history", "list the last cells (default: 20) of all notebooks: how each has ended, "
            "how long it took, who ran it", "100", NUMBER, "[COUNT]"),
    )),
    "report": Command(
        "Show how a cell failed: what each rank did, what was done, and the last launches. "
        "The last 8 reports are kept until the cluster ends.",
        (_own("cell", "the cell's number (default: the last one that failed)", "7", CELL),)),
    "checkpoint": Command("Save the ranks' variables to disk.", (
        _own("name", "its name", "before-tuning", is_needed=True),)),
    "restore": Command("Load what a checkpoint or autosave has saved.", (
        _own("name", "the checkpoint's name", "before-tuning"),
        _own("--last", "load the last autosave"),
    )),
    "autosave": Command(
        "Save all variables at the end of each cell without an error. If a rank dies later, the "
        "process that replaces it loads them. restore --last loads them on all ranks.",
        (_own("switch", "default: show the last save", "on", ONOFF, "on|off"),)),
    "debug": Command("Open the debugger at a rank's last error, while the other ranks wait.", (
        _own("rank", "which rank (default: the one that differs)", "2", NUMBER),)),
    "export": Command(
        "Write this notebook's %%spmd cells as a script, in the order in which they ran. It runs "
        "with jaxcluster run, srun and mpiexec, and on TPU hosts. IPython runs its magics. "
        "Pushed names are listed at the top. Cells that failed are left out.", (
        _own("path", "the script", "train.py", is_needed=True),
        _own("--force", "overwrite an existing script"),
    )),
    "panel": Command(
        "Show JupyterLab's sidebar in the cell's output, for VS Code, Colab, and other pages that "
        "draw ipywidgets."),
    "doctor": Command("Check this machine, or hosts, and say what to fix.",
        example="--launcher ssh --hosts h1,h2", takes_start=True, refuses=("detach", "dry_run")),
    "auto": Command("Make every following cell an %%spmd cell, or stop doing so.", (
        _own("switch", "default: show the setting", "on", ONOFF, "on|off"),)),
}  # fmt: skip
"""The commands of ``%jaxcluster``."""

OTHERS = {
    "run": Command(
        "Start JAX's processes, run a script in each, and end them. Options of jaxcluster run go "
        "before the script (or -m MODULE), the script's own after it. Process 0's output is shown "
        "as it comes. Every rank's output is in a file.",
        (
        _own("--all", "show the lines of all ranks, equal ones once", argument="everything"),
        _own("--logs", "the folder for the files rank-0.txt, rank-1.txt... (default: a new one in "
            "/tmp)", "out", metavar="FOLDER"),
        ), example="-n 4 train.py --steps 100", takes_start=True, refuses=("detach",)),
    "mcp": Command(
        "Let an assistant in your editor see your clusters on this machine. The editor starts "
        "this command, and speaks the Model Context Protocol with it.",
        (_own("--allow-run", "let it run cells, and interrupt them"),)),
    "%%spmd": Command(
        "Run the cell on every rank, and show process 0's output as it comes. --all shows every "
        "rank's output. %spmd [OPTIONS] EXPRESSION runs one line.", (
        _own("--ranks", "run the cell only on these ranks, and show the output of each", "0,2-3",
            metavar="0,2-3"),
        _own("--all", "show the output of all ranks as it comes; equal outputs once",
            argument="all_ranks"),
        _own("--out", "keep the cell's record under this name: r.stdout(rank=3)", "r",
            metavar="NAME"),
        _own("--timeout", "stop the cell after S seconds; all ranks stop before the same launch",
            "60", SECONDS, "S", argument="timeout_s"),
        _own("--async", "don't wait for the cell's end; with --out you can wait for it later",
            argument="background"),
        _own("--profile", "run the cell under JAX's profiler, which writes to FOLDER/rank-N "
            "(default: a new folder)", "before", metavar="[FOLDER]"),
        ), example="--ranks 0,2-3 --timeout 60"),
    "%push": Command("Copy variables of the notebook to every rank.", (
        _own("names", "variables of the notebook", "a b", metavar="NAMES...", is_needed=True),),
        example="a b"),
    "%pull": Command("Copy rank 0's variables to the notebook. Arrays arrive whole, as numpy.", (
        _own("names", "variables of rank 0", "x loss", metavar="NAMES...", is_needed=True),
        _own("--as", "its name in the notebook", "y", metavar="NAME", argument="new_name"),
        ), example="x --as y"),
    "%shards": Command("Show which device holds which part of an array or pytree.", (
        _own("name", "an array or a pytree, or a part of one", "params['w']", is_needed=True),
        _own("--check", "compare all copies, and look for NaN and Inf"),
        _own("--widget", "a view with statistics and values of single shards"),
        ), example="params['w'] --check"),
}  # fmt: skip
"""The shell's own commands, and the other magics."""


def command_of(prog: str) -> Command:
    """The command of ``%jaxcluster start``, ``jaxcluster start`` or ``%%spmd``."""
    return {**COMMANDS, **OTHERS}[prog.rpartition(" ")[2]]


def list_commands(prog: str = "%jaxcluster", names: Iterable[str] = COMMANDS) -> str:
    """Every command, with a line."""
    abouts = [(name, command_of(name).about.partition(". ")[0].rstrip(".")) for name in names]
    lines = [f"  {name:<12}{about}" for name, about in abouts]
    return "\n".join([f"{prog} COMMAND", *lines, "", f"{prog} COMMAND --help shows its options."])


# For commands that were removed, the lines that replace them. It goes after 0.1.
REMOVED = {
    "resize": "%jaxcluster restart -n 8",
    "stacks": "%jaxcluster status --stacks",
    "memory": "%jaxcluster status --memory",
    "mesh": "%jaxcluster status --mesh",
    "history": "%jaxcluster outputs --history",
    "use": "%jaxcluster attach NAME",
    "copies": "%jaxcluster autosave on",
    "profile": "%%spmd --profile FOLDER",
    "compare": "%spmd --all EXPRESSION",
    "undo": "%jaxcluster restore --last, with %jaxcluster autosave on",
    "steps": "a save every N steps with Orbax, see docs/how-to/train.md",
    "cost": "JAX's own cost_analysis(), see docs/how-to/slow.md",
}
