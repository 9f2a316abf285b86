"""What the Python API takes: each method's annotations, and an error in words for all else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcluster.cluster.argument_types import checked
from jaxcluster.cluster.handle import Cluster
from jaxcluster.errors import UsageError

Progress = Callable[[str], None]


@checked
class Taking:
    """Gives back what it was given."""

    def text(self, source: str, *, clean: bool = False) -> Any:
        return source, clean

    def number(self, nbytes: int | None = None) -> Any:
        return nbytes

    def ranks(self, ranks: Sequence[int] | None = None, folder: str | Path = ".") -> Any:
        return ranks, folder

    def values(self, values: Mapping[str, Any], progress: Progress | None = None) -> Any:
        return values

    def anything(self, value: Any) -> Any:
        return value

    def _own(self, source: str) -> Any:
        return source


def test_what_is_annotated_goes_through_and_numbers_of_numpy_are_numbers() -> None:
    taking = Taking()
    assert taking.text("x", clean=True) == ("x", True)
    assert type(taking.number(np.int64(3))) is int and taking.number() is None
    assert taking.ranks({2}, Path("a")) == ([2], Path("a"))
    assert taking.ranks(np.arange(2)) == ([0, 1], ".")
    assert taking.ranks(range(2)) == ([0, 1], ".") and taking.ranks([]) == ([], ".")
    assert taking.values({"a": 1}, print) == {"a": 1}
    assert taking.anything(None) is None and taking._own(3) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda t: t.text(None), "source must be text, not None."),
        (lambda t: t.text(b"x"), "source must be text, not b'x'."),
        (lambda t: t.text("x", clean="no"), "clean must be True or False, not 'no'."),
        (lambda t: t.number("1GB"), "nbytes must be a whole number, or None, not '1GB'."),
        (lambda t: t.number(2.5), "nbytes must be a whole number, or None, not 2.5."),
        (lambda t: t.number(True), "nbytes must be a whole number, or None, not True."),
        (lambda t: t.ranks("0"), "ranks must be a list of ranks like [0, 2], or None, not '0'."),
        (lambda t: t.ranks(0), "ranks must be a list of ranks like [0, 2], or None, not 0."),
        (lambda t: t.ranks(["0"]), ", or None, not ['0']."),
        (lambda t: t.ranks([True]), ", or None, not [True]."),
        (lambda t: t.ranks(folder=3), "folder must be a path, not 3."),
        (lambda t: t.values("x" * 99), "values must be a dict of names and values, not 'xxx"),
        (lambda t: t.values({}, "yes"), "progress must be a function, or None, not 'yes'."),
    ],
)
def test_all_else_is_refused_in_words(call: Callable[[Taking], Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(Taking())
    assert told in str(caught.value) and len(caught.value.message) < 150
    assert caught.value.hint.startswith("help(cluster.")


def test_a_missing_argument_is_pythons_to_tell() -> None:
    with pytest.raises(TypeError, match=r"text\(\) missing 1 required positional argument"):
        Taking().text()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.run(None),
        lambda c: c.run("x = 1", ranks="0"),
        lambda c: c.submit(3),
        lambda c: c.logs(None),
        lambda c: c.push(None),
        lambda c: c.restart("yes"),
        lambda c: c.restart(clean="no"),
        lambda c: c.resize("3"),
        lambda c: c.resize(2.5),
        lambda c: c.resize(None),
        lambda c: c.outputs([9]),
        lambda c: c.interrupt(1),
        lambda c: setattr(c, "recovery", "sometimes"),
        lambda c: c.checkpoint(None),
        lambda c: c.restore("a", 3),
    ],
)
def test_a_clusters_methods_refuse_before_they_do_anything(call: Callable[[Cluster], Any]) -> None:
    with pytest.raises(UsageError, match=" must be "):
        call(Cluster.__new__(Cluster))
