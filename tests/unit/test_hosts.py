"""``--hosts`` and hostfiles: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jaxcluster.errors import UsageError
from jaxcluster.launchers.hosts import Host, parse_hosts, read_hostfile
from jaxcluster.plan.shares import place, ranks_by_host


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    return str(caught.value)


# ------------------------------------------------------------------------------------- --hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1:2,user@h2:2", [Host("h1", 2), Host("h2", 2, "user")]),
        ("bob@corp.example@h1:2", [Host("h1", 2, "bob@corp.example")]),
        ("h1", [Host("h1")]),
        ("[fe80::1]:2", [Host("fe80::1", 2)]),
        ("me@[fe80::1%eth0]:2:2222", [Host("fe80::1%eth0", 2, "me", 2222)]),
        ("h1:2:2222", [Host("h1", 2, None, 2222)]),
        ("h1::2222", [Host("h1", None, None, 2222)]),
        ("n[01-04,07]:2", [Host(f"n{i}", 2) for i in ("01", "02", "03", "04", "07")]),
        ("n[1,2]:1,m:3", [Host("n1", 1), Host("n2", 1), Host("m", 3)]),
        ("r[1-2]n[1-2].site", [Host(f"r{r}n{n}.site") for r in (1, 2) for n in (1, 2)]),
        (r"CORP\me@h1:1", [Host("h1", 1, r"CORP\me")]),
        ("h1:2,H1:1,h2", [Host("h1", 3), Host("h2", 1)]),
        # A container behind each port is a host of its own.
        (
            "localhost:2:2201,localhost:2:2202",
            [Host("localhost", 2, None, p) for p in (2201, 2202)],
        ),
    ],
)
def test_hosts_are_read_in_the_order_given(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == tuple(hosts)


@pytest.mark.parametrize(
    "word",
    ["", "h1:0", "h1:two", "h1:-1", "h1:2.5", "h1:", "h1:٣", ":2", "@h1:2", "a b@h1", "h1 h2",
     "h1;rm", "$(id)", "-oProxyCommand=x", "me@-oProxyCommand=x", "-l@h1", "fe80::1:2",
     "[fe80::1:2", "[h1]:2", "[fe80::1]2", "h1:2222", "h1:2:0", "h1:2:99999"],
)  # fmt: skip
def test_what_is_no_host_says_which_word_with_an_example(word: str) -> None:
    for text in (word, f"h9,{word}", f"{word},h9"):
        message, hint = refused(text).split("\n")
        assert message == f"--hosts: {word!r} is not a host: [USER@]HOST[:RANKS[:PORT]]."
        assert hint.startswith("For example: --hosts h1:2")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("n[3-1]", "'3-1' in 'n[3-1]' counts backwards"),
        ("n[1-]", "has no ranges such as [01-04,07]"),
        ("n[1-999999999]", "names too many hosts"),
        ("n[1-300]m[1-300]", "names too many hosts"),
        ("n[[1]]", "has no ranges"),
    ],
)
def test_lists_that_name_no_hosts_are_refused(text: str, said: str) -> None:
    assert said in refused(text)


# ------------------------------------------------------------------------------------ hostfiles


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("hosts")


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("h1 slots=2\nh2 slots=2 max_slots=4\n", [Host("h1", 2), Host("h2", 2)]),
        ("# all\n\nh1\nh2 # the second\n", [Host("h1"), Host("h2")]),
        ("n[1-2]::2222  slots=4\n", [Host(f"n{i}", 4, None, 2222) for i in (1, 2)]),
        ("h1 SLOTS=2 Max-Slots=2\r\n", [Host("h1", 2)]),
        # PBS_NODEFILE and LSF: a line for each slot.
        ("h1\nh1\nh2\nh2\n", [Host("h1", 2), Host("h2", 2)]),
    ],
)
def test_hostfiles_of_other_tools_are_read(text: str, hosts: list[Host], here: Path) -> None:
    here.write_text(text)
    assert read_hostfile(here) == tuple(hosts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "The hostfile hosts names no host."),
        ("h1 slots=two\n", "hosts, line 1: 'slots=two' is not slots=N."),
        ("h1\nh2 slots=0\n", "hosts, line 2: 'slots=0' is not slots=N."),
        ("h1:x\n", "hosts, line 1: 'h1:x' is not a host"),
    ],
)
def test_a_wrong_line_of_a_hostfile_is_named(text: str, said: str, here: Path) -> None:
    here.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        read_hostfile(here)


def test_a_hostfile_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match=rf"The hostfile {path} can't be read: "):
            read_hostfile(path)


# -------------------------------------------------------------------------------- ranks of hosts


def test_ranks_are_contiguous_on_a_host_in_the_order_given() -> None:
    assert ranks_by_host([2, 1, 3]) == (range(2), range(2, 3), range(3, 6))


@pytest.mark.parametrize(
    ("hosts", "n", "counts"),
    [
        ("h1:2,h2:3", None, (2, 3)),
        ("h1:2,h2:3", 5, (2, 3)),
        ("h1,h2", 4, (2, 2)),
        ("h1,h2", None, None),
    ],
)
def test_how_many_ranks_a_host_gets(hosts: str, n: int | None, counts: object) -> None:
    assert place([(h.name, h.ranks) for h in parse_hosts(hosts)], n) == counts


@pytest.mark.parametrize(
    ("hosts", "n", "said"),
    [
        ("h1:2,h2:2", 5, "-n 5 does not match the hosts' ranks, 4 in all."),
        ("h1:2,h2", None, "h2 has no number of ranks, and other hosts have one."),
        ("h1,h2", 3, "3 ranks can't be shared out evenly among 2 hosts."),
    ],
)
def test_numbers_that_do_not_fit(hosts: str, n: int | None, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        place([(h.name, h.ranks) for h in parse_hosts(hosts)], n)
