"""``jaxcluster start|run|list|stop|doctor|mcp`` in a shell."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable

from jaxcluster import cluster, doctor, scripts
from jaxcluster.errors import JaxClusterError, UsageError
from jaxcluster.options import arguments
from jaxcluster.options.commands import list_commands
from jaxcluster.ranks import name_ranks
from jaxcluster.views import blocks, status
from jaxcluster.views.live import StartDisplay, show_hosts


def start(words: list[str]) -> None:
    parsed = arguments.Parser("jaxcluster start").read(words)
    spec = cluster.make_spec(**arguments.start_options(parsed))
    if parsed.dry_run:
        print(cluster.dry_run(spec))
        return
    with StartDisplay(rich=False) as display:
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
            print("It was stopped from elsewhere.")
        else:
            print(blocks.text([status.table(started.status(), started.dead)]))
    except KeyboardInterrupt:
        print()
    finally:
        started.stop()


def list_clusters(words: list[str]) -> None:
    arguments.Parser("jaxcluster list").read(words)
    records, unreachable = cluster.listed()
    print(status.clusters(records, [], time.time_ns(), unreachable, socket.gethostname()))


def stop(words: list[str]) -> None:
    parsed = arguments.Parser("jaxcluster stop").read(words)
    if parsed.everything and parsed.name:
        raise UsageError("Give a cluster's name or --all, not both.", "jaxcluster stop --all")
    names = [r.name for r in cluster.live_records()] if parsed.everything else [parsed.name]
    for name in names:
        running = cluster.attach(name)
        took = running.stop(bool(parsed.force))
        print(
            f"Stopped {running.name!r}: {name_ranks(range(running.num_processes))}, {took:.1f} s."
        )


def check(words: list[str]) -> None:
    parsed = arguments.Parser("jaxcluster doctor").read(words)
    if parsed.launcher is not None:
        spec = cluster.make_spec(**arguments.start_options(parsed))
        if not spec.is_here:  # which "auto" may come to
            show_hosts(spec, rich=False)
            return
    checks = doctor.run_checks()
    print(doctor.render(checks))
    if any(c.ok is False for c in checks):
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
    """What a text says to type next, as it is typed here."""
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


if __name__ == "__main__":
    sys.exit(main())
