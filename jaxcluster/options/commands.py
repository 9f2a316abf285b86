"""Every command and magic, what it does, and what it takes but a start's options. Pure.

The parser, ``--help`` and the list of commands are made from this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxcluster.options.table import CELL, COUNT, NUMBER, SECONDS, SWITCH, TEXT, Kind, Option


@dataclass(frozen=True)
class Command:
    """A command of ours, or a magic.

    Attributes:
      about: what it does; the first sentence stands in the list.
      takes: its own options and words.
      example: what a message shows behind it; its words if there is none.
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
        "Start a cluster: -n 4, or --launcher ssh --hosts h1:2,h2:2. It has N processes of JAX, "
        "one rank each, on this machine or on others. Run again, with the same options, it leaves "
        "the cluster as it is. `start --help ssh` shows what a launcher takes, `start --help all` "
        "every option.",
        example="-n 4 --devices-per-process 2", takes_start=True),
    "stop": Command("End all processes of the cluster, and all that they hold.", (
        _own("name", "the cluster (default: this notebook's)", "main-2"),
        _own("--all", "every cluster that this notebook is connected to", argument="everything"),
        _own("--force", "forget hosts that can't be reached"),
    )),
    "restart": Command("Give the cluster new processes, with the variables of the old ones.", (
        _own("--clean", "keep no variables"),
        _own("--num-processes", "another number of ranks, or without lost hosts", "8", COUNT, "N",
            short="-n"),
    )),
    "interrupt": Command("Stop the cell that runs, on every rank."),
    "status": Command("What every rank does now, with its host, process and devices.", (
        _own("--live", "keep it up to date"),
        _own("--stacks", "on which line each thread of each rank is"),
        _own("--memory", "what each device holds"),
        _own("--mesh", "which rank holds which device of a mesh (default: of all)", "mesh",
            metavar="[NAME]"),
    )),
    "list": Command(
        "The running clusters of this user. * marks the one that this notebook's cells run on."),
    "attach": Command(
        "Connect to a running cluster, and run this notebook's cells there. A cell that runs "
        "already is shown from its beginning.",
        (_own("name", "the cluster (default: the only one that runs)", "main"),)),
    "logs": Command("What the processes wrote outside of cells.", (
        _own("rank", "which rank (default: all)", "2", NUMBER),)),
    "outputs": Command(
        "What each rank printed in the last cell. If this notebook has run none, it is the last "
        "cell of any notebook.", (
        _own("ranks", "which ranks (default: all)", "1-3"),
        _own("--cell", "a cell by its number in --history", "12", COUNT, "N"),
        _own("--history", "the last cells of all notebooks (20): how each has ended, how long it "
            "took, who ran it", "100", NUMBER, "[COUNT]"),
    )),
    "report": Command(
        "How a cell went wrong: what happened, on which ranks, what was done about it, the cell, "
        "and the last launches. The last 8 reports are kept until the cluster ends.",
        (_own("cell", "the cell's number (default: the last one that went wrong)", "7", CELL),)),
    "checkpoint": Command("Save the ranks' variables to disk.", (
        _own("name", "its name", "before-tuning", is_needed=True),)),
    "restore": Command("Bring back what a checkpoint, or autosave, has saved.", (
        _own("name", "the checkpoint's name", "before-tuning"),
        _own("--last", "the end of the last cell that ended well, by autosave"),
    )),
    "autosave": Command(
        "Save all variables at each cell's end, while nothing runs. A rank that dies later has its "
        "own from there, and restore --last brings back those of all ranks.",
        (_own("switch", "on or off; without one, what is saved is shown", "on"),)),
    "debug": Command("Look at a rank's last error in the debugger, while the other ranks wait.", (
        _own("rank", "which rank (default: the one that differs)", "2", NUMBER),)),
    "export": Command(
        "Write this notebook's %%spmd cells as a script. They stand in the order in which they "
        "ran, for srun, mpiexec, jaxcluster run and TPU hosts. Magics become Python or comments; "
        "what was pushed is named at its top. Cells that failed are left out.", (
        _own("path", "the script", "train.py", is_needed=True),
        _own("--force", "overwrite an existing script"),
    )),
    "panel": Command(
        "Show JupyterLab's sidebar in the cell's output. It is for VS Code, Colab, and other pages "
        "that draw ipywidgets."),
    "doctor": Command("Check this machine, or hosts, and say what to fix.",
        example="--launcher ssh --hosts h1,h2", takes_start=True, refuses=("detach", "dry_run")),
    "auto": Command("Make every following cell an %%spmd cell, or stop doing so.", (
        _own("switch", "on or off; without one, the current setting is shown", "on"),)),
}  # fmt: skip
"""Those of ``%jaxcluster``."""

OTHERS = {
    "run": Command(
        "Run a script on all ranks of a new cluster, with JAX's processes initialized, then end "
        "the cluster. Options of jaxcluster run go before the script (or -m MODULE), the script's "
        "own after it. Process 0's output is shown as it comes; every rank's output is in a file.",
        (
        _own("--all", "show the lines of all ranks, each with its rank", argument="everything"),
        _own("--logs", "the folder for the files rank-0.txt, rank-1.txt... (default: a new one in "
            "/tmp)", "out", metavar="FOLDER"),
        ), example="-n 4 train.py --steps 100", takes_start=True, refuses=("detach",)),
    "mcp": Command(
        "Serve an assistant in your editor, by the Model Context Protocol on standard input. It "
        "sees your clusters on this machine.",
        (_own("--allow-run", "let it run cells, and interrupt them"),)),
    "%%spmd": Command(
        "Run the cell on every rank. Process 0's output is shown as it comes; with --ranks and "
        "--all, the output of all of them. %spmd [OPTIONS] EXPRESSION does one line.", (
        _own("--ranks", "run the cell only on these ranks, and show the output of each", "0,2-3",
            metavar="0,2-3"),
        _own("--all", "show the output of all ranks as it comes; equal outputs once",
            argument="all_ranks"),
        _own("--out", "keep the cell's record under this name: r.stdout(rank=3)", "r",
            metavar="NAME"),
        _own("--timeout", "stop the cell after S seconds, on all ranks before the same launch", "60",
            SECONDS, "S", argument="timeout_s"),
        _own("--async", "don't wait for the cell's end; with --out you can wait for it later",
            argument="background"),
        _own("--profile", "run it under JAX's profiler on each rank, whose files go to "
            "FOLDER/rank-N (default: a new folder)", "before", metavar="[FOLDER]"),
        ), example="--ranks 0,2-3 --timeout 60"),
    "%push": Command("Bind variables of the notebook on every rank.", (
        _own("names", "variables of the notebook", "a b", metavar="NAMES...", is_needed=True),),
        example="a b"),
    "%pull": Command("Bind rank 0's variables in the notebook, arrays whole, as numpy.", (
        _own("names", "variables of rank 0", "x loss", metavar="NAMES...", is_needed=True),
        _own("--as", "its name in the notebook", "y", metavar="NAME", argument="new_name"),
        ), example="x --as y"),
    "%shards": Command("Who holds which part of an array or pytree.", (
        _own("name", "an array or a pytree, or a part of one", "params['w']", is_needed=True),
        _own("--check", "compare all copies, and look for NaN and Inf"),
        _own("--widget", "a view with statistics and values of single shards"),
        ), example="params['w'] --check"),
}  # fmt: skip
"""The shell's own, and the magics."""


def command_of(prog: str) -> Command:
    """What is typed as ``%jaxcluster start``, ``jaxcluster start`` or ``%%spmd``."""
    return {**COMMANDS, **OTHERS}[prog.rpartition(" ")[2]]


def list_commands(prog: str = "%jaxcluster", names: Iterable[str] = COMMANDS) -> str:
    """Every command, with a line."""
    abouts = [(name, command_of(name).about.partition(". ")[0].rstrip(".")) for name in names]
    lines = [f"  {name:<12}{about}" for name, about in abouts]
    return "\n".join([f"{prog} COMMAND", *lines, "", f"{prog} COMMAND --help says what it takes."])


# What takes the place of commands that early users may know. It goes after 0.1.
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
    "steps": "Orbax: see docs/how-to/train.md",
    "cost": "JAX's own cost_analysis(): see docs/how-to/slow.md",
}
