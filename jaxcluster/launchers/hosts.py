"""The hosts that a user asked for: ``--hosts`` and hostfiles, read into ``Host`` and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from jaxcluster.errors import UsageError

EXAMPLE = "For example: --hosts h1:2,user@h2:2"
FILE_EXAMPLE = "A line of a hostfile: h1 slots=2"
MOST_RANKS = 1024  # on one host; a larger number is a port in the ranks' place
MOST_HOSTS = 65536  # of one range such as n[01-99], which would otherwise fill the memory

# DOMAIN\user and user@domain, too. An IPv6 address stands in brackets, with its zone.
_USER = r"[\w.+\\][\w.+\\-]*(@[\w.-]+)?"
_WORD = re.compile(
    rf"((?P<user>{_USER})@)?(\[(?P<address>[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?)\]"
    r"|(?P<name>\w[\w.+,\[\]-]*))"
    r"(:(?P<ranks>[0-9]+|(?=:[0-9]))(:(?P<port>[0-9]{1,5}))?)?"
)
# The other number is Open MPI's; what is asked for is less.
_SLOTS = re.compile(r"slots=([1-9][0-9]{0,2})( max[-_]slots=[0-9]+)?", re.IGNORECASE)
_RANGES = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")


@dataclass(frozen=True)
class Host:
    """One host as it was asked for; None stands for what was left open."""

    name: str  # a name, an alias of the ssh config, or an address; IPv6 without brackets
    ranks: int | None = None
    user: str | None = None
    port: int | None = None  # of its sshd


def parse_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of ``--hosts``, in the order given: ``[USER@]HOST[:RANKS[:PORT]],...``.

    ``n[01-04,07]:2`` names five hosts, as Slurm writes them. ``h1,h1`` is ``h1:2``, as for mpiexec.

    Raises:
      UsageError: a word is not a host.
    """
    return _merged(_parse(text, "--hosts", EXAMPLE))


def named_hosts(hosts: str, file: str) -> tuple[Host, ...]:
    """The hosts of ``--hosts`` or ``--hostfile``; none where neither was given."""
    if hosts and file:
        raise UsageError("--hosts and --hostfile can't be used together.", "Leave out one of them.")
    if file:
        return read_hostfile(Path(file))
    return parse_hosts(hosts) if hosts else ()


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a hostfile, in its order.

    A line is a host as in ``--hosts``, with ``slots=2`` after it (Open MPI, DeepSpeed), or a Slurm
    nodelist. ``#`` begins a comment.

    Raises:
      UsageError: it can't be read, a line is none of these, or the file names no host.
    """
    found: list[Host] = []
    try:
        lines = path.expanduser().read_text(errors="replace").splitlines()
    except OSError as error:
        told = f"The hostfile {path} can't be read: {error.strerror}."
        raise UsageError(told, FILE_EXAMPLE) from None
    for number, line in enumerate(lines, 1):
        word, _, slots = " ".join(line.partition("#")[0].split()).partition(" ")
        where, count = f"{path}, line {number}", _SLOTS.fullmatch(slots)
        if slots and not count:
            raise UsageError(f"{where}: {slots!r} is not slots=N.", FILE_EXAMPLE)
        ranks = int(count[1]) if count else None
        for host in _parse(word, where, FILE_EXAMPLE) if word else ():
            found.append(replace(host, ranks=ranks or host.ranks))
    if not found:
        raise UsageError(f"The hostfile {path} names no host.", FILE_EXAMPLE)
    return _merged(found)


def expand_nodelist(text: str) -> tuple[str, ...]:
    """The names that ``n[01-04,07],login`` stands for, in order. Raises ValueError."""
    return tuple(name for word in _split(text) for name in _expand(word))


def _parse(text: str, where: str, example: str) -> Iterator[Host]:
    """The hosts of ``[USER@]HOST[:RANKS[:PORT]],...``; more than one for ``n[1-2]``."""
    try:
        for word in _split(text):
            found = _WORD.fullmatch(word)
            ranks, port = (int(found[k]) if found and found[k] else None for k in ("ranks", "port"))
            limits = ((ranks, MOST_RANKS), (port, 65535))
            if not found or any(n is not None and not 0 < n <= most for n, most in limits):
                raise ValueError(f"{word!r} is not a host: [USER@]HOST[:RANKS[:PORT]]")
            for name in [found["address"]] if found["address"] else _expand(found["name"]):
                yield Host(name, ranks, found["user"], port)
    except ValueError as error:
        raise UsageError(f"{where}: {error}.", example) from None


def _merged(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Each host once, with the ranks of all its words; then each word stands for one or more.

    Each port of a machine may lead to a container, which is a host.
    """
    listed = list(hosts)
    found: dict[tuple[str, int | None], list[Host]] = {}
    for host in listed:
        found.setdefault((host.name.lower(), host.port), []).append(host)
    if len(found) == len(listed):
        return tuple(listed)
    return tuple(replace(of[0], ranks=sum(h.ranks or 1 for h in of)) for of in found.values())


def _split(text: str) -> list[str]:
    """``text`` at its commas, but not at those in brackets."""
    return [word.strip() for word in re.split(r",(?![^\[]*\])", text)]


def _expand(word: str) -> tuple[str, ...]:
    """The names of one word of a nodelist: ``r[1-2]n[1-2]`` has four."""
    before, opened, rest = word.partition("[")
    if not opened:
        return (word,)
    ranges, closed, after = rest.partition("]")
    if not closed or not _RANGES.fullmatch(ranges):
        raise ValueError(f"{word!r} has no ranges such as [01-04,07] in its brackets")
    names: list[str] = []
    tails = _expand(after)
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        numbers = range(int(low), int(high or low) + 1)
        if not numbers or len(names) + len(numbers) * len(tails) > MOST_HOSTS:
            raise ValueError(f"{part!r} in {word!r} counts backwards, or names too many hosts")
        names += [f"{before}{i:0{len(low)}}{tail}" for i in numbers for tail in tails]
    return tuple(names)
