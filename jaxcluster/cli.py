"""``jaxcluster start|run|list|stop|doctor|mcp`` in a shell."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable

from jaxcluster import cluster, scripts
from jaxcluster.errors import JaxClusterError, UsageError
from jaxcluster.options import arguments
from jaxcluster.options.commands import list_commands
from jaxcluster.views import blocks, status
from jaxcluster.views.live import StartDisplay, show_checks


def start(words: list[str]) -> None:
    parsed = arguments.Parser("jaxcluster start").read(words)
    spec = cluster.make_spec(**arguments.start_options(parsed))
    if parsed.dry_run:
        print(cluster.dry_run(spec))
        return
    with StartDisplay() as display:
        started = cluster.start_spec(spec, display.progress)
        display.done(started.summary())
    if offered := cluster.offer(spec):
        print(offered)
    print(f"In a notebook: %load_ext jaxcluster, then %jaxcluster attach {started.name}")
    if spec.detach:
        started.close()
        print(f"It runs until: jaxcluster stop {started.name}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        print("Ctrl-C stops it.", flush=True)
        while not (started.dead or started.closed) or started.is_restarting:
            time.sleep(0.5)
        if started.closed:
            print("Another process has stopped it.")
        else:
            print(blocks.text(status.look(started)))
    except KeyboardInterrupt:
        print()
    finally:
        started.stop()


def list_clusters(words: list[str]) -> None:
    arguments.Parser("jaxcluster list").read(words)
    print(in_shell(status.running()))


def stop(words: list[str]) -> None:
    parsed = arguments.Parser("jaxcluster stop").read(words)
    if parsed.everything and parsed.name:
        raise UsageError("Give a cluster's name or --all, not both.", "jaxcluster stop --all")
    given = [parsed.name or cluster.attach().name] if not parsed.everything else []
    for name in given or [record.name for record in cluster.live_records()]:
        print(cluster.stop_by_name(name, say_next=False, force=bool(parsed.force)))


def check(words: list[str]) -> None:
    if not show_checks(arguments.Parser("jaxcluster doctor").read(words)):
        raise SystemExit(1)


def serve_assistant(words: list[str]) -> None:
    allow_run = bool(arguments.Parser("jaxcluster mcp").read(words).allow_run)
    try:
        from jaxcluster.mcp import server
    except ImportError as error:
        raise UsageError(
            f"jaxcluster mcp needs version 2 of the Model Context Protocol's SDK: {error}.",
            "pip install -U 'jaxcluster[mcp]'",
        ) from None
    server.serve(allow_run)


def in_shell(text: str) -> str:
    """A text whose commands are spelled for a shell."""
    return re.sub(rf"%(jaxcluster (?:{'|'.join(COMMANDS)})\b)", r"\1", text)


COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "start": start,
    "run": scripts.run,
    "list": list_clusters,
    "stop": stop,
    "doctor": check,
    "mcp": serve_assistant,
}


HELP = f"""{list_commands("jaxcluster", COMMANDS)}

In a notebook: %load_ext jaxcluster, then %jaxcluster attach NAME connects to a running cluster."""


def main(argv: list[str] | None = None) -> int:
    """The console script. Returns the exit status: 0, or 2 for a usage error, or 1."""
    try:
        status = run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:  # `jaxcluster list | head -1`: nobody reads the rest
        _say_no_more(1, 2)
        return 128 + signal.SIGPIPE
    except OSError as error:  # `jaxcluster list > /dev/full`, a current folder that was removed
        _say_no_more(1)
        print(f"jaxcluster: {error}", file=sys.stderr)
        return 1
    return status


def _say_no_more(*descriptors: int) -> None:
    """Else the interpreter tries once more at its end, and complains."""
    for descriptor in descriptors:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if words[0] in ("-V", "--version"):
        print(f"jaxcluster {vars(sys.modules['jaxcluster'])['__version__']}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise UsageError(f"There is no command {words[0]!r}.", HELP)
        return COMMANDS[words[0]](words[1:]) or 0
    except arguments.Help as help:
        print(help)
        return 0
    except UsageError as error:
        print(in_shell(str(error)), file=sys.stderr)
        return 2
    except JaxClusterError as error:
        print(f"{type(error).__name__}: {in_shell(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
