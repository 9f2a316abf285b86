"""What ``--help`` says: of each command what it does, of each of its options what for, and how.

Of an option there is an example, which is a line that can be typed. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from jaxcluster.options.table import Option

WIDTH = 26  # of the column of options


@dataclass(frozen=True)
class Entry:
    """One option or word: how it is written, what it is for, and an example of it."""

    written: str
    what: str
    example: str
    is_needed: bool = False


# What a command does, in a sentence or two.
ABOUT = {
    "start": (
        "Start a cluster: N processes of JAX, one rank each, on this machine or on others. Run "
        "again, with the same options, it leaves the cluster as it is."
    ),
    "run": (
        "Run a script on all ranks of a new cluster, with JAX's processes initialized, then end "
        "the cluster. Options of jaxcluster run go before the script (or -m MODULE), the "
        "script's own after it. Process 0's output is shown as it comes; every rank's output is "
        "in a file."
    ),
    "status": "What every rank does now, with its host, process and devices.",
    "panel": (
        "Show JupyterLab's sidebar in the cell's output: what every rank does, and the buttons. "
        "For VS Code, Colab, and other pages that draw ipywidgets."
    ),
    "list": "The running clusters of this user; * marks the one that this notebook's cells run on.",
    "attach": (
        "Connect this notebook to a running cluster, and run its cells there. A cell that runs "
        "already is shown from its beginning."
    ),
    "use": "Run this notebook's cells on another connected cluster.",
    "stop": "End all processes of the cluster, and all that they hold.",
    "restart": "Give the cluster new processes, with the variables of the old ones.",
    "interrupt": "Stop the cell that runs, on every rank.",
    "report": (
        "How a cell went wrong: what happened, on which ranks, what was done about it, the cell, "
        "and the last launches. The last 8 reports are kept until the cluster ends."
    ),
    "debug": "Look at a rank's last error in the debugger, while the other ranks wait.",
    "logs": "What the processes wrote outside of cells.",
    "outputs": (
        "What each rank printed in the last cell of this notebook; if it has run none, in the "
        "last cell of any notebook. %jaxcluster history has the numbers for --cell."
    ),
    "history": (
        "The cells that all notebooks have run on the cluster, also closed ones: how each has "
        "ended, how long it took, who ran it. %jaxcluster outputs --cell N shows the output of one."
    ),
    "mesh": "Which rank holds which device of a mesh.",
    "memory": "What each device holds.",
    "checkpoint": "Save the ranks' variables to disk.",
    "restore": "Bring back what a checkpoint, or autosave, has saved.",
    "autosave": (
        "Save all variables at each cell's end, while nothing runs. A rank that dies later has its "
        "own from there, and restore --last brings back those of all ranks."
    ),
    "export": (
        "Write this notebook's %%spmd cells, in the order in which they ran, as a script: for "
        "jaxcluster run, srun, mpiexec and TPU hosts. Magics become Python or comments; what was "
        "pushed is named at its top. Cells that failed are left out."
    ),
    "auto": "Make every following cell an %%spmd cell, or stop doing so.",
    "recovery": "What happens when a rank has died or hangs permanently.",
    "doctor": "Check this machine, or hosts, and say what to fix.",
    "mcp": (
        "Serve an assistant in your editor, by the Model Context Protocol on standard input. It "
        "sees your clusters on this machine."
    ),
    "%%spmd": (
        "Run the cell on every rank. Process 0's output is shown as it comes; with --ranks "
        "and --all, the output of all of them. %spmd [OPTIONS] EXPRESSION does one line."
    ),
    "%push": "Bind variables of the notebook on every rank.",
    "%pull": "Bind rank 0's variables in the notebook, arrays whole, as numpy.",
    "%shards": "Who holds which part of an array or pytree.",
}

# By command and word or option, but those of a start: what for, and what stands behind the command
# in the example. "": the command alone.
WORDS = {
    "status --live": ("keep it up to date", "--live"),
    "status --stacks": ("on which line each thread of each rank is", "--stacks"),
    "attach name": ("the cluster (default: the only one that runs)", "main"),
    "use name": ("the cluster", "main-2"),
    "stop name": ("the cluster (default: this notebook's)", "main-2"),
    "stop --all": ("every cluster that this notebook is connected to", "--all"),
    "stop --force": ("forget hosts that can't be reached", "--force"),
    "mcp --allow-run": ("let it run cells, interrupt and restart", "--allow-run"),
    "restart --clean": ("keep no variables", "--clean"),
    "restart -n": ("another number of ranks, or without lost hosts", "-n 8"),
    "restart --mesh": (
        "the sizes of the meshes' axes, where several could take the change",
        "-n 8 --mesh data=8,model=2",
    ),
    "report cell": ("the cell's number (default: the last one that went wrong)", "7"),
    "debug rank": ("which rank (default: the one that differs)", "2"),
    "logs rank": ("which rank (default: all)", "2"),
    "outputs ranks": ("which ranks (default: all)", "1-3"),
    "outputs --cell": ("a cell of %jaxcluster history", "--cell 12"),
    "outputs --follow": (
        "from the cell's beginning to its end, as it comes; the stop button ends only that",
        "--follow",
    ),
    "history count": ("how many cells (20)", "100"),
    "mesh name": ("a variable that is a mesh (default: all of them)", "mesh"),
    "checkpoint name": ("its name", "before-tuning"),
    "restore name": ("the checkpoint's name", "before-tuning"),
    "restore --mesh": (
        "the sizes of the meshes' axes, where another number of ranks has saved it",
        "before-tuning --mesh data=8,model=2",
    ),
    "restore --last": ("the end of the last cell that ended well, by autosave", "--last"),
    "autosave switch": ("on or off; without one, what is saved is shown", "on"),
    "export path": ("the script", "train.py"),
    "export --as-written": (
        "the cells in the order of the notebook's file, as it was saved",
        "train.py --as-written",
    ),
    "export --force": ("overwrite an existing script", "train.py --force"),
    "auto switch": ("on or off; without one, the current setting is shown", "on"),
    "recovery mode": ("auto, ask or never; without one, the current setting is shown", "ask"),
    "%%spmd --ranks": (
        "run the cell only on these ranks, and show the output of each",
        "--ranks 0,2-3",
    ),
    "%%spmd --all": ("show the output of all ranks as it comes; equal outputs once", "--all"),
    "%%spmd --out": ("keep the cell's record under this name: r.stdout(rank=3)", "--out r"),
    "%%spmd --timeout": (
        "stop the cell after S seconds, on all ranks at the same launch",
        "--timeout 60",
    ),
    "%%spmd --async": (
        "don't wait for the cell's end; with --out you can wait for it later",
        "--async --out job",
    ),
    "%%spmd --profile": (
        "run it under JAX's profiler on each rank, whose files go to FOLDER/rank-N (default: a new "
        "folder)",
        "--profile before",
    ),
    "%push names": ("variables of the notebook", "a b"),
    "%pull names": ("variables of rank 0", "x loss"),
    "%pull --as": ("its name in the notebook", "x --as y"),
    "%shards name": ("an array or a pytree, or a part of one", "params['w']"),
    "%shards --check": ("compare all copies, and look for NaN and Inf", "x --check"),
    "%shards --widget": ("a view with statistics and values of single shards", "x --widget"),
    "run --all": ("show the lines of all ranks, each with its rank", "-n 4 --all"),
    "run --logs": (
        "the folder for the files rank-0.txt, rank-1.txt... (default: a new one in /tmp)",
        "-n 4 --logs out",
    ),
}


NEEDED = (
    "%shards name",
    "%push names",
    "%pull names",
    "use name",
    "checkpoint name",
    "export path",
)


def command_of(prog: str) -> str:
    """``start`` of ``%jaxcluster start``, ``%%spmd`` of itself."""
    return prog.rpartition(" ")[2]


def explain(prog: str, flag: str, written: str, option: Option | None = None) -> Entry:
    """What ``--help`` says of one option, or of one word.

    Args:
      flag: as it is typed; of a plain word, its name.
      written: with its value, as it is in the list.
      option: of a start; None where it is this command's own.
    """
    command = command_of(prog)
    if option is None:
        what, typed = WORDS.get(f"{command} {flag}", ("", ""))
    else:
        what, typed = option.help, option.example
        if option.launchers:
            what += f" ({', '.join(option.launchers)})"
    if command == "doctor" and "--launcher" not in typed:
        own = typed if flag == "-n" else typed.removeprefix("-n 4 ")
        typed = f"--launcher ssh --hosts h1,h2 {own}"
    elif command == "run":
        typed += " train.py"
    if not prog.startswith("%"):  # in a shell
        what = what.replace("%jaxcluster", "jaxcluster")
    is_needed = f"{command} {flag}" in NEEDED
    return Entry(written, what, f"{prog} {typed}" if typed else "", is_needed)


def format_help(prog: str, entries: Sequence[Entry]) -> str:
    """All of it: what can be typed, what it does, each option with an example."""
    shown = [one.written if one.is_needed else f"[{one.written}]" for one in entries[:4]]
    lines = [" ".join([f"usage: {prog}", *shown, *(["..."] if len(entries) > 4 else [])])]
    if about := ABOUT.get(command_of(prog)):
        lines += ["", *_wrapped(about, 96)]
    lines.append("")
    for entry in entries:
        fits = len(entry.written) < WIDTH - 3
        first = f"  {entry.written:<{WIDTH - 2}}" if fits else f"  {entry.written}"
        told = _wrapped(entry.what, 96 - WIDTH)
        if not fits:
            lines.append(first)
            first = " " * WIDTH
        lines += [first + told[0], *(" " * WIDTH + line for line in told[1:])]
        if entry.example:
            lines.append(" " * WIDTH + entry.example)
    return "\n".join(lines).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
