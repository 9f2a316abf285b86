"""The hosts that a user asked for: ``--hosts`` and hostfiles, read into ``Host`` and checked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from jaxcluster.errors import UsageError

EXAMPLE = "--hosts h1:2,user@h2:2"
FILE_EXAMPLE = "h1 slots=2"
MOST_RANKS = 1024  # on one host; what is above is a port in the place of the ranks
MOST_HOSTS = 65536  # of one range such as n[01-99], which would otherwise fill the memory

_NAME = re.compile(r"\w[\w.+-]*")
_ADDRESS = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[\w.-]+)?")  # IPv6, with its zone
_RANGES = re.compile(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*")


@dataclass(frozen=True)
class Host:
    """One host as it was asked for.

    Attributes:
      name: what the launcher is given: a name, an alias of the ssh config, or an address. IPv6
        stands without brackets.
      ranks: how many ranks it gets; None where that was left open.
      user: None means what the ssh config says.
      port: of its sshd; None means what the ssh config says.
    """

    name: str
    ranks: int | None = None
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        name = f"[{self.name}]" if ":" in self.name else self.name
        counts = "" if self.ranks is None else f":{self.ranks}"
        port = "" if self.port is None else f"{':' if counts else '::'}{self.port}"
        return (f"{self.user}@" if self.user else "") + name + counts + port


def parse_hosts(text: str) -> tuple[Host, ...]:
    """The hosts of ``--hosts``, in the order given.

    Each is ``[USER@]HOST[:RANKS[:PORT]]``. IPv6 addresses stand in brackets, ``[fe80::1]:2``;
    ``n[01-04,07]:2`` names five hosts, as Slurm writes them.

    Raises:
      UsageError: a word is not a host, or a host is there twice. It names the word.
    """
    if not text.strip():
        raise UsageError("--hosts names no host.", f"For example: {EXAMPLE}")
    hosts: list[Host] = []
    for word in _split(text, "--hosts"):
        hosts += _parse_word(word, "--hosts", EXAMPLE)
    _refuse_twins(hosts, "--hosts")
    return tuple(hosts)


def named_hosts(hosts: str, file: str) -> tuple[Host, ...]:
    """The hosts of ``--hosts`` or ``--hostfile``; none where neither was given.

    Raises:
      UsageError: both were, or what was given names no hosts.
    """
    if hosts and file:
        raise UsageError("--hosts and --hostfile can't be used together.", "Leave out one of them.")
    if file:
        return read_hostfile(Path(file))
    return parse_hosts(hosts) if hosts else ()


def read_hostfile(path: Path) -> tuple[Host, ...]:
    """The hosts of a hostfile.

    Raises:
      UsageError: it can't be read, or ``parse_hostfile`` refuses it.
    """
    try:
        text = path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"The hostfile {path} can't be read: {why}.",
            f"A line of it looks like this: {FILE_EXAMPLE}",
        ) from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, name: str) -> tuple[Host, ...]:
    """The hosts of a hostfile's text, in its order; ``name`` is for what is said.

    A line is a host as in ``--hosts``, with ``slots=2``, ``user=me`` and ``port=22`` behind it
    (Open MPI, DeepSpeed), or a Slurm nodelist. Where a host has several lines of its name alone,
    each stands for one rank (PBS_NODEFILE, LSF). ``#`` begins a comment.

    Raises:
      UsageError: a line is none of these, or the file names no host. It names line and word.
    """
    found: list[Host] = []
    example = f"A line of a hostfile: {FILE_EXAMPLE}"
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}, line {number}"
        words = line.partition("#")[0].split()
        if not words:
            continue
        for part in _split(words[0], where):
            for named in _parse_word(part, where, example):
                host = named
                for word in words[1:]:
                    host = _with_setting(host, word, where, example)
                found.append(host)
    if not found:
        raise UsageError(f"The hostfile {name} names no host.", example)
    times = Counter(_key(host) for host in found)
    if all(host.ranks is None for host in found) and len(times) < len(found):
        return tuple(
            replace(host, ranks=times.pop(_key(host))) for host in found if _key(host) in times
        )
    _refuse_twins(found, name)
    return tuple(found)


def expand_nodelist(text: str) -> tuple[str, ...]:
    """The names that ``n[01-04,07],login`` stands for, in order.

    Raises:
      ValueError: it is not a nodelist; the message says which part is wrong.
    """
    return tuple(name for word in _split_list(text) for name in _expand(word))


def place_on(
    many: int, what: str, each: int | None, num_processes: int | None, example: str
) -> tuple[int, ...] | None:
    """As ``place``, for hosts that have no names yet: nodes, pods.

    Args:
      many: how many there are.
      what: one of them.
      each: how many ranks each was asked for.
      example: what to type where the numbers don't fit.

    Raises:
      UsageError: they don't.
    """
    try:
        return place([Host(f"{what} {i}", each) for i in range(many)], num_processes)
    except UsageError as error:
        raise UsageError(
            error.message.replace("hosts", f"{what}s"), f"For example: {example}, without -n"
        ) from None


def place(hosts: Sequence[Host], num_processes: int | None) -> tuple[int, ...] | None:
    """How many ranks each host gets; None where the hosts' own devices are to decide it.

    Raises:
      UsageError: the hosts' numbers and ``-n`` don't fit each other.
    """
    counts = [host.ranks for host in hosts]
    given = [n for n in counts if n is not None]
    if len(given) == len(counts):
        if num_processes is not None and num_processes != sum(given):
            raise UsageError(
                f"-n {num_processes} does not match the hosts' ranks, {sum(given)} in all.",
                "Leave out -n, or the numbers of the hosts.",
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
            f"{num_processes} ranks can't be shared out evenly among {len(hosts)} hosts.",
            f"Give each host its number: --hosts {hosts[0].name}:{each + 1},...",
        )
    return (each,) * len(hosts)


def ranks_by_host(counts: Iterable[int]) -> tuple[range, ...]:
    """The ranks of each host: contiguous, in the hosts' order."""
    ranges, first = [], 0
    for n in counts:
        ranges.append(range(first, first + n))
        first += n
    return tuple(ranges)


# ------------------------------------------------------------------------------------- one word


def _parse_word(word: str, where: str, example: str) -> Iterator[Host]:
    """The hosts of ``[USER@]HOST[:RANKS[:PORT]]``; more than one for ``n[1-2]``."""

    def refuse(why: str) -> NoReturn:
        hint = example if example.startswith("A line") else f"For example: {example}"
        raise UsageError(f"{where}: {why}.", hint)

    if not word:
        refuse("there is nothing between two commas, or before the first or after the last")
    if word.startswith("-"):  # ssh would take it for an option
        refuse(f"{word!r} is not a host: no host's name begins with '-'")
    user, at, rest = word.rpartition("@")
    if at and not re.fullmatch(r"[\w.+\\-]+(@[\w.-]+)?", user):  # DOMAIN\user, user@domain too
        refuse(f"{word!r} has no user before the '@'" if not user else f"{user!r} is not a user")
    if rest.startswith("["):
        name, closed, tail = rest[1:].partition("]")
        if not closed or not _ADDRESS.fullmatch(name):
            refuse(f"{word!r} is not an IPv6 address in brackets, such as [fe80::1]:2")
        names: tuple[str, ...] = (name,)
        if tail and not tail.startswith(":"):
            refuse(f"{tail!r} after the bracket of {word!r} is not a number of ranks, such as :2")
        numbers = tail.split(":")[1:]
    else:
        name, *numbers = rest.split(":")
        if len(numbers) > 2:
            refuse(f"{word!r} looks like an IPv6 address. Write it in brackets: [{rest}]:2")
        try:
            names = _expand(name)
        except ValueError as error:
            refuse(str(error))
        for one in names:
            if not _NAME.fullmatch(one):
                refuse(
                    f"{one!r} in {word!r} is not the name of a host"
                    if one
                    else f"{word!r} names no host"
                )
    ranks = port = None
    if numbers and (numbers[0] or len(numbers) == 1):
        if not re.fullmatch(r"[0-9]+", numbers[0]) or int(numbers[0]) == 0:
            refuse(f"{numbers[0]!r} in {word!r} is not a number of ranks from 1 up")
        ranks = int(numbers[0])
        if ranks > MOST_RANKS:
            refuse(
                f"{word!r} asks for {ranks} ranks on one host. Write a port after them: "
                f"{name}:2:{ranks}"
            )
    if len(numbers) > 1:
        port = _port(numbers[1])
        if port is None:
            refuse(f"{numbers[1]!r} in {word!r} is not a port from 1 to 65535")
    for one in names:
        yield Host(one, ranks, user or None, port)


def _with_setting(host: Host, word: str, where: str, example: str) -> Host:
    """``host`` with a hostfile's ``slots=2``, ``user=me`` or ``port=22``."""
    key, equals, value = word.partition("=")
    key = key.lower().replace("-", "_")
    if key == "slots" and re.fullmatch(r"0*[1-9][0-9]{0,3}", value) and int(value) <= MOST_RANKS:
        return replace(host, ranks=int(value))
    if key in ("user", "username") and re.fullmatch(r"[\w.+\\-]+", value):
        return replace(host, user=value)
    if key == "port" and _port(value) is not None:
        return replace(host, port=_port(value))
    if key == "max_slots" and value:  # Open MPI's; what is asked for is less
        return host
    known = ("slots", "user", "username", "port", "max_slots")
    raise UsageError(
        f"{where}: {value!r} in {word!r} is not a valid value."
        if equals and key in known
        else f"{where}: {word!r} is not slots=, user= or port=.",
        example,
    )


def _port(text: str) -> int | None:
    good = re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) < 65536
    return int(text) if good else None


def _key(host: Host) -> tuple[str, int | None]:
    """What makes two words the same host: a machine may have a container behind each port."""
    return host.name.lower(), host.port


def _refuse_twins(hosts: Iterable[Host], where: str) -> None:
    seen: dict[tuple[str, int | None], Host] = {}
    for host in hosts:
        if (first := seen.get(_key(host))) is not None:
            both = (first.ranks or 1) + (host.ranks or 1)
            raise UsageError(
                f"{where}: {host.name} is listed twice.",
                f"List it once, with all its ranks: {replace(host, ranks=both)}",
            )
        seen[_key(host)] = host


# ------------------------------------------------------------------------------------ nodelists


def _split(text: str, where: str) -> list[str]:
    try:
        return [word.strip() for word in _split_list(text)]
    except ValueError as error:
        raise UsageError(f"{where}: {error}.", f"For example: {EXAMPLE}") from None


def _split_list(text: str) -> list[str]:
    """``text`` at its commas, but not at those in brackets."""
    words, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            break
        if char == "," and not depth:
            words.append("")
        else:
            words[-1] += char
    if depth:
        raise ValueError(f"the brackets of {text!r} don't match")
    return words


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
        first, last = int(low), int(high or low)
        if first > last:
            raise ValueError(f"{part!r} in {word!r} counts backwards: write {high}-{low}")
        if len(names) + (last - first + 1) * len(tails) > MOST_HOSTS:
            raise ValueError(f"{word!r} names more than {MOST_HOSTS} hosts")
        names += [
            f"{before}{i:0{len(low)}}{tail}" for i in range(first, last + 1) for tail in tails
        ]
    return tuple(names)
