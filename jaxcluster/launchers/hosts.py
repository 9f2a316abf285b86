"""The hosts that a user asked for: ``--hosts`` and hostfiles, read into ``Host`` and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from jaxcluster.errors import UsageError

EXAMPLE = "For example: --hosts h1:2,user@h2:2"
FILE_EXAMPLE = "A line of a hostfile: h1 slots=2"
MOST_RANKS = 1024  # on one host; what is above is a port in the place of the ranks
MOST_HOSTS = 65536  # of one range such as n[01-99], which would otherwise fill the memory

# DOMAIN\user and user@domain, too. An IPv6 address stands in brackets, with its zone.
_USER = r"[\w.+\\][\w.+\\-]*(@[\w.-]+)?"
_WORD = re.compile(
    rf"((?P<user>{_USER})@)?(\[(?P<address>[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?)\]"
    r"|(?P<name>\w[\w.+,\[\]-]*))"
    r"(:(?P<ranks>[0-9]+|(?=:[0-9]))(:(?P<port>[0-9]{1,5}))?)?"
)
_RANGES = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")


@dataclass(frozen=True)
class Host:
    """One host as it was asked for; None stands for what was left open."""

    name: str  # a name, an alias of the ssh config, or an address; IPv6 without brackets
    ranks: int | None = None
    user: str | None = None
    port: int | None = None  # of its sshd

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        counts = "" if self.ranks is None else f":{self.ranks}"
        port = "" if self.port is None else f"{':' if counts else '::'}{self.port}"
        return (f"{self.user}@" if self.user else "") + name + counts + port


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

    A line is a host as in ``--hosts``, with ``slots=2``, ``user=me`` and ``port=22`` behind it
    (Open MPI, DeepSpeed), or a Slurm nodelist. ``#`` begins a comment.

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
        words, where = line.partition("#")[0].split(), f"{path}, line {number}"
        if words:
            settings = _settings(words[1:], where)
            found += [replace(h, **settings) for h in _parse(words[0], where, FILE_EXAMPLE)]
    if not found:
        raise UsageError(f"The hostfile {path} names no host.", FILE_EXAMPLE)
    return _merged(found)


def expand_nodelist(text: str) -> tuple[str, ...]:
    """The names that ``n[01-04,07],login`` stands for, in order. Raises ValueError."""
    return tuple(name for word in _split(text) for name in _expand(word))


def place_on(
    many: int, what: str, each: int | None, num_processes: int | None, example: str
) -> tuple[int, ...] | None:
    """As ``place``, for hosts that have no names yet (nodes, pods), with ``each`` so many ranks."""
    hosts = [Host(f"{what} {i}", each) for i in range(many)]
    return place(hosts, num_processes, what, f"For example: {example}, without -n")


def place(
    hosts: Sequence[Host], num_processes: int | None, what: str = "host", hint: str = ""
) -> tuple[int, ...] | None:
    """How many ranks each host gets; None where the hosts' own devices are to decide it.

    Raises:
      UsageError: the hosts' numbers and ``-n`` don't fit each other.
    """
    given = [host.ranks for host in hosts if host.ranks is not None]
    if len(given) == len(hosts):
        if num_processes not in (None, sum(given)):
            raise UsageError(
                f"-n {num_processes} does not match the {what}s' ranks, {sum(given)} in all.",
                hint or "Leave out -n, or the numbers of the hosts.",
            )
        return tuple(given)
    if given:
        host = next(host for host in hosts if host.ranks is None)
        raise UsageError(
            f"{host.name} has no number of ranks, and other hosts have one.",
            f"For example: --hosts {hosts[0].name}:2,{hosts[-1].name}:2",
        )
    if num_processes is None:
        return None
    each, rest = divmod(num_processes, len(hosts))
    if rest:
        raise UsageError(
            f"{num_processes} ranks can't be shared out evenly among {len(hosts)} {what}s.",
            hint or f"Give each host its number: --hosts {hosts[0].name}:{each + 1},...",
        )
    return (each,) * len(hosts)


def ranks_by_host(counts: Iterable[int]) -> tuple[range, ...]:
    """The ranks of each host: contiguous, in the hosts' order."""
    ends = [0, *accumulate(counts)]
    return tuple(range(first, end) for first, end in pairwise(ends))


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


def _settings(words: Iterable[str], where: str) -> dict[str, Any]:
    """What a hostfile says of a host: ``slots=2``, ``user=me``, ``port=22``."""
    settings: dict[str, Any] = {}
    for word in words:
        key, _, value = word.partition("=")
        key, number = key.lower().replace("-", "_"), int(value) if value.isdecimal() else 0
        if key == "slots" and 0 < number <= MOST_RANKS:
            settings["ranks"] = number
        elif key == "port" and 0 < number < 65536:
            settings["port"] = number
        elif key in ("user", "username") and re.fullmatch(_USER, value):
            settings["user"] = value
        elif key != "max_slots":  # Open MPI's; what is asked for is less
            raise UsageError(f"{where}: {word!r} is not slots=, user= or port=.", FILE_EXAMPLE)
    return settings


def _merged(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Each host once, with the ranks of all its words; then each word stands for one or more.

    Behind each port of a machine a container may be a host.
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
