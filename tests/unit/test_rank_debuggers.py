"""The ranks' debuggers as one: what needs no rank."""

from __future__ import annotations

import pytest

from jaxcluster.cluster.rank_debuggers import Numbers, cell_digests, cell_of_file, on_lines_of_code
from jaxcluster.engine import dap
from jaxcluster.model import rewrite


def test_each_ranks_numbers_are_told_apart_and_found_again() -> None:
    numbers = Numbers()
    first, second = numbers.of("frame", 0, 7), numbers.of("frame", 1, 7)
    assert len({first, second, numbers.of("variable", 0, 7)}) == 3
    assert numbers.of("frame", 0, 7) == first
    assert numbers.meant({"frameId": second}) == (1, {"frameId": 7})
    assert numbers.meant({"frameId": 7}) is None  # the notebook's own
    assert numbers.of("variable", 0, 0) == 0  # in DAP: it has no parts
    assert numbers.meant({"variablesReference": 0}) is None


def test_numbers_are_integers_to_a_browser_and_no_addresses() -> None:
    number = Numbers().of("thread", 0, 1)
    assert 2**48 < number < 2**53


def source_digest(source: str) -> str:
    return cell_digests(source)[0]


@pytest.mark.parametrize("line", ["", " --all", " --ranks 0,1 --out r"])
@pytest.mark.parametrize("body", ["x = 1\n", "\n\nx = 1\n", "    x = 1\n", "%%time\nx = 1\n"])
def test_a_cell_is_known_by_what_the_ranks_are_sent(line: str, body: str) -> None:
    sent = rewrite.with_all_lines(rewrite.with_magic_line(line.strip(), body))
    for code in (f"%%spmd{line}\n{body}", f"%%spmd{line}\n{body}".rstrip("\n")):
        assert source_digest(sent) in cell_digests(code)


def test_a_cell_of_auto_mode_is_known_too() -> None:
    assert source_digest(rewrite.with_all_lines("\n\nx = 1\n")) in cell_digests("\n\nx = 1")


def test_a_cell_is_known_by_its_file_name() -> None:
    assert cell_of_file("/tmp/ipykernel_jaxcluster/12-0123abcdef45.py") == (12, "0123abcdef45")
    assert cell_of_file("/home/me/12-0123abcdef45.py") is None
    assert cell_of_file("/tmp/ipykernel_jaxcluster/odd.py") is None


@pytest.mark.parametrize(
    ("code", "line", "moved"),
    [
        ("%%spmd\nx = 1\n\n# a comment\ny = 2", 4, 2),
        ("%%spmd\nx = 1\n\n# a comment\ny = 2", 5, 5),
        ("%%spmd\n%matplotlib inline\nif x:\n    !ls\n    y = 2", 4, 4),
        ("def f():\n    return [\n        1,\n    ]\nf()", 3, 3),
        ("%%spmd\nawait f()\n", 2, 2),
        ("%%spmd\n# nothing\nx = 1", 2, 2),  # no line of code before it
        ("%%spmd\nx = (", 2, 2),  # no Python
    ],
)
def test_a_breakpoint_moves_to_a_line_of_code(code: str, line: int, moved: int) -> None:
    found = on_lines_of_code(code, [{"line": line, "condition": "x > 1"}])
    assert found == [{"line": moved, "condition": "x > 1"}]


def test_the_debuggers_own_files_are_known() -> None:
    assert dap.is_inside("/x/site-packages/debugpy/_vendored/pydevd/pydevd.py")
    assert not dap.is_inside("/tmp/ipykernel_jaxcluster/12-0123abcdef45.py")
