"""Which rank ``%jaxcluster debug`` looks at, and IPython's ``%debug``."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.errors import CellFailed, UsageError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.notebook.debugging import choose, take_debug


def failed(errors: dict[int, str], interrupted: tuple[int, ...] = ()) -> CellRecord:
    record = CellRecord(1, 7, "", range(4))
    for rank in record.ranks:
        error = wire.ErrorInfo(errors[rank], "why 5", [], 3) if rank in errors else None
        status = "interrupted" if rank in interrupted else "error" if error else "ok"
        record.add_reply(wire.CellReply(rank, 1, status, 0.1, error))
    return record


def test_the_rank_that_differs_is_chosen_and_it_is_said_how_to_see_others() -> None:
    errors = {0: "KeyError", 1: "KeyError", 2: "ValueError", 3: "KeyError"}
    told = "Cell [7], rank 2: ValueError. For another one: %jaxcluster debug 0"
    assert choose(failed(errors)) == (2, told)
    assert choose(failed(dict.fromkeys(range(4), "E"))) == (0, "Cell [7], ranks 0-3: E.")
    numbers = failed(dict.fromkeys(range(4), "E"))
    error = wire.ErrorInfo("E", "why 3", [], 3)
    numbers.records[1].reply = wire.CellReply(1, 1, "error", 0.1, error)
    assert choose(numbers)[0] == 1
    with pytest.raises(UsageError, match="has failed"):
        choose(None)


def test_a_rank_that_was_only_interrupted_is_not_the_one_that_differs() -> None:
    errors = {0: "KeyboardInterrupt", 1: "KeyError", 2: "KeyError"}
    assert choose(failed(errors, (0,)))[0] == 1
    assert choose(failed({0: "KeyboardInterrupt"}, (0,)))[0] == 0


def test_ipythons_debug_leads_to_the_ranks_only_after_a_cell_that_failed_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[Any] = []
    magics = {"debug": lambda line, cell=None: said.append(("own", line, cell))}
    before = dict(magics)
    shell = types.SimpleNamespace(
        find_line_magic=magics.get,
        register_magic_function=lambda function, kind, name: magics.update({name: function}),
    )
    undo = take_debug(shell, lambda: said.append("ranks"))
    monkeypatch.setattr(sys, "last_value", ValueError("here"), raising=False)
    magics["debug"]("")
    monkeypatch.setattr(sys, "last_value", CellFailed("there"), raising=False)
    magics["debug"]("")
    magics["debug"]("f(3)")
    magics["debug"]("", "f(3)")
    assert said == [("own", "", None), "ranks", ("own", "f(3)", None), ("own", "", "f(3)")]
    undo()
    assert magics == before
