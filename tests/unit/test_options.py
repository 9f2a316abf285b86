"""The table of a start's options: each is declared once, and reaches all that is made of it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import startform

from jaxcluster.errors import UsageError
from jaxcluster.options.arguments import Parser, start_options
from jaxcluster.options.known import known
from jaxcluster.options.table import COMMON, SWITCH
from jaxcluster.wire import ClusterSpec

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [DOCS / f"{name}.md" for name in ("magics", "launchers", "tpu", "kubernetes")]


def test_each_option_is_declared_once() -> None:
    written = [flag for option in known().options for flag in (option.flag, option.short) if flag]
    assert len(set(written)) == len(written)
    assert len(known().by_name) == len(known().options)
    assert all(option.metavar or option.kind is SWITCH for option in known().options)


def test_what_every_start_takes_is_a_field_of_its_spec() -> None:
    spec = ClusterSpec("main", 1)
    assert all(hasattr(spec, name) for name in COMMON)


def test_what_an_option_must_match_is_what_its_example_has() -> None:
    for option in known().options:
        if option.pattern:
            value = shlex.split(option.sample)[0]
            option.value([value] if option.is_repeated else value)
            with pytest.raises(UsageError, match=option.flag) as caught:
                option.value([""] if option.is_repeated else "-\n")
            assert option.typed in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_processes", 0), ("num_processes", True), ("devices_per_process", "some"),
     ("timeout_s", float("nan")), ("initialization_timeout", 1.5)],
)  # fmt: skip
def test_a_number_that_is_none_is_refused_with_a_line_to_type(name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        known().by_name[name].value(value)
    assert str(caught.value).startswith(f"{known().by_name[name].shown} must be ")
    line = caught.value.hint.removeprefix("For example: %jaxcluster start ")
    assert start_options(Parser("%jaxcluster start").read(line))[name] is not None


# --------------------------------------------------------------------------- the pages


def test_the_pages_name_every_option() -> None:
    text = " ".join(page.read_text() for page in PAGES)
    for option in known().options:
        assert re.search(rf"(?<![\w-]){option.shown}(?![\w-])", text), option.flag


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_of_a_page_write_options_as_help_does(page: Path) -> None:
    own = {option.flag: option for option in known().options}
    for row in re.findall(r"^\| (`(?:\.\.\. )?-.*?) \|", page.read_text(), re.M):
        for flag, value in re.findall(r"(--[a-z][a-z-]*)(?: ([A-Z][A-Z=]*)\b(?![-:\w]))?", row):
            if flag in own and value:
                assert value == own[flag].metavar, row
            # "..." stands for the command above, which may have options of its own.
            assert flag in own or row.startswith("`... "), row


# --------------------------------------------------------------------------- the form


def test_the_page_is_built_with_the_table_s_fields() -> None:
    """``python tests/startform.py > labextension/src/widgets/options.json``"""
    assert (ROOT / "labextension/src/widgets/options.json").read_text() == startform.text()
