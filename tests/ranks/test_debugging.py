"""``input()`` and debuggers on the ranks, answered in the notebook's own prompt."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import Notebook, plain, until
from overhosts import send_signal

import jaxcluster
from jaxcluster import wire
from jaxcluster.cluster.questions import Prompt
from jaxcluster.cluster.running import RunningCell
from jaxcluster.errors import CellFailed, CellInterrupted, RankDied

pytestmark = pytest.mark.any_jax

STOPS_AT_THE_CALL = sys.version_info >= (3, 13)  # else at the line after breakpoint()

SUM = "total = float(jnp.sum(jnp.arange(8.0) * 1) + jax.jit(lambda v: v.sum())(x))\n"
STOPS_ON_1 = f"if rank == 1:\n    here = 5\n    breakpoint()\n{SUM}"


class Person(Prompt):
    """Who answers: by (the rank that asks, how its prompt begins, what is answered).

    A rank's answers are given in their order, whichever rank asks first. What it asks after the
    last one stays without.
    """

    def __init__(
        self, show: Callable[[wire.RankOutput], None], answers: list[tuple[int, str, str]]
    ) -> None:
        super().__init__(show)
        self.answers, self.asked, self._open = answers, list[wire.Question](), False

    def open(self, question: wire.Question, text: str) -> None:
        self.asked.append(question)
        self._open = True

    def poll(self) -> str | None:
        question = self.asked[-1]
        own = [answer for answer in self.answers if answer[0] == question.rank]
        if not self._open or not own:
            return None
        self.answers.remove(own[0])
        _, prompt, text = own[0]
        assert question.prompt.startswith(prompt)
        self._open = False
        return text


class Talk:
    """A cell that asks, and who answers; what is shown meanwhile is in ``shown``."""

    def __init__(
        self, cluster: jaxcluster.Cluster, source: str, *answers: tuple[int, str, str], **more: Any
    ) -> None:
        self.shown: list[wire.RankOutput] = []
        self.person = Person(self.shown.append, list(answers))
        self.notices: list[str] = []
        self.cell: RunningCell = cluster.submit(
            source,
            prompt=self.person,
            on_notice=self.notices.append,
            **more,
        )

    def wait(self) -> Talk:
        self.cell.wait()
        return self

    def begin(self) -> Talk:
        """Carry it through on a thread."""
        self.cell.run_in_background(lambda record: None)
        return self

    @property
    def asking(self) -> list[tuple[int, str]]:
        return [(question.rank, question.prompt) for question in self.person.asked]

    def text(self, rank: int) -> str:
        return plain("".join(o.content["text"] for o in self.shown if o.rank == rank))


@pytest.fixture
def talk(cluster: jaxcluster.Cluster) -> Iterator[Callable[..., Talk]]:
    check_in_lockstep(cluster)  # the ranks have met: gloo waits for the first time only so long
    made: list[Talk] = []

    def talk(source: str, *answers: tuple[int, str, str], **more: Any) -> Talk:
        made.append(Talk(cluster, source, *answers, **more))
        return made[-1]

    yield talk
    if any(not one.cell.done for one in made):  # after a failed test
        cluster.interrupt()


def check_in_lockstep(cluster: jaxcluster.Cluster) -> None:
    cluster.run(f"{SUM}assert total == 28 + 496", show=False)


# ------------------------------------------------------------------------------------ questions


@pytest.mark.promise("The promise")
def test_ranks_that_ask_the_same_are_asked_once(
    cluster: jaxcluster.Cluster, talk: Callable[..., Talk]
) -> None:
    answers = [(rank, "name? ", "n") for rank in range(4)]
    made = talk("name = input('name? ') + str(rank)\nprint(name)", *answers).wait()
    assert [prompt for _, prompt in made.asking] == ["name? "]
    assert [made.cell.record.stdout(rank) for rank in range(4)] == [f"n{r}\n" for r in range(4)]


def test_a_password_is_asked_as_one(talk: Callable[..., Talk]) -> None:
    source = "import getpass\nsecret = getpass.getpass() if rank == 3 else ''\nprint(len(secret))"
    made = talk(source, (3, "Password: ", "12345")).wait()
    assert [question.secret for question in made.person.asked] == [True]
    assert made.cell.record.stdout(3) == "5\n"


# ------------------------------------------------------------------------------------- debuggers


@pytest.mark.promise("The promise")
@pytest.mark.parametrize("starts", ["breakpoint()", "import pdb; pdb.set_trace()"])
def test_others_wait_for_a_rank_in_the_debugger_as_long_as_they_must(
    cluster: jaxcluster.Cluster, talk: Callable[..., Talk], starts: str
) -> None:
    made = talk(STOPS_ON_1.replace("breakpoint()", starts), timeout_s=2.0).begin()
    until(lambda: made.person.asked, "the debugger's prompt")
    until(lambda: made.cell.paused == {1}, "rank 1 to be paused")
    state = cluster.status()[1]
    assert (state.state, state.paused) == ("running", "debugger")
    assert state.line == (3 if STOPS_AT_THE_CALL else 4)
    time_up = made.cell.started + 4  # longer than its time limit
    until(lambda: time.monotonic() > time_up, "the time limit", 20)
    assert not made.cell.why
    assert made.cell.refusal is None
    made.person.answers += [(1, "ipdb> ", "p here + 1"), (1, "ipdb> ", "c")]
    record = made.cell.wait()
    assert record.ok
    assert f"----> {state.line} " in made.text(1)  # though rank 0's output alone is shown
    assert "6\n" in made.text(1)
    check_in_lockstep(cluster)


def test_steps_go_from_statement_to_statement_and_into_functions(talk: Callable[..., Talk]) -> None:
    source = (
        "def f(a):\n    b = a + 1\n    return b\n"
        "if rank == 0:\n    breakpoint()\nc = f(2)\nd = jnp.ones(2).sum()\ne = 3"
    )
    commands = ["s", "n", "n", "p b", "r", "s", "s", "n", "p 'e' in globals()", "c"]
    if STOPS_AT_THE_CALL:
        commands.insert(0, "n")
    made = talk(source, *((0, "ipdb> ", command) for command in commands)).wait()
    text = plain(made.cell.record.stdout(0))
    print(text)
    places = re.findall(r"^> \S+\((\d+)\)(\S+)", text, re.MULTILINE)
    if STOPS_AT_THE_CALL:
        assert places.pop(0) == ("5", "<module>()")
    assert places[:4] == [("6", "<module>()"), ("1", "f()"), ("2", "f()"), ("3", "f()")]
    assert places[-2:] == [("7", "<module>()"), ("8", "<module>()")]  # not into jnp.ones
    assert "site-packages" not in text


ON_A_THREAD = """import threading
def work():
    local = 3
    breakpoint()
    return local
if rank == 1:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
IN_A_CALLBACK = """@jax.jit
def f(a):
    def look(value):
        local = 3
        if rank == 1: breakpoint()
    jax.debug.callback(look, a)
    return a
jax.block_until_ready(f(1.0))
jax.effects_barrier()
"""


@pytest.mark.parametrize(
    ("source", "answers"),
    [
        (ON_A_THREAD, ["p local + 40", "n", "c"]),
        (IN_A_CALLBACK, ["p local + 40", "c"]),
        ("%%debug\nlocal = 3\nlocal += 1", ["n", "p local + 40", "c"]),
        (
            "import pdb\ndef f(local): return local\nif rank == 1: pdb.runcall(f, 3)",
            ["p local + 40", "c"],
        ),
    ],
    ids=["thread", "callback", "%%debug", "runcall"],
)
def test_debuggers_stop_wherever_the_users_code_runs(
    talk: Callable[..., Talk], source: str, answers: list[str]
) -> None:
    is_on_all = source.startswith("%%debug")
    ranks = range(4) if is_on_all else [1]
    told = talk(source, *[(rank, "", text) for rank in ranks for text in answers]).wait()
    assert told.person.answers == []  # all were asked for
    for rank in ranks:
        shown = plain(told.cell.record.stdout(rank)).splitlines()
        assert "43" in shown


def test_after_the_stop_button_all_ranks_have_left_the_debugger_and_are_in_lockstep(
    cluster: jaxcluster.Cluster, talk: Callable[..., Talk]
) -> None:
    for source in (STOPS_ON_1, f"breakpoint()\n{SUM}", f"input('?')\n{SUM}"):
        made = talk(source).begin()
        until(lambda made=made: made.person.asked, "a prompt")
        made.cell.stop()
        with pytest.raises(CellInterrupted):
            made.cell.wait()
        assert {state.state for state in cluster.status()} == {"idle"}
        assert {state.paused for state in cluster.status()} == {""}
        check_in_lockstep(cluster)


def test_to_quit_the_debugger_ends_the_cell_on_all_ranks(
    cluster: jaxcluster.Cluster, talk: Callable[..., Talk]
) -> None:
    with pytest.raises(CellInterrupted, match=r"The debugger of rank 1 was quit"):
        talk(STOPS_ON_1, (1, "ipdb> ", "q")).wait()
    check_in_lockstep(cluster)


def test_an_error_of_another_rank_does_not_end_a_debugger(
    cluster: jaxcluster.Cluster, talk: Callable[..., Talk]
) -> None:
    made = talk("if rank == 1: breakpoint()\nassert rank != 2\nok = 1").begin()
    until(lambda: made.person.asked and 2 in made.cell.record.errors, "the error and the prompt")
    end = made.cell.started + 4  # longer than the others get after an error
    until(lambda: time.monotonic() > end, "the grace period", 20)
    assert not made.cell.why
    made.person.answers += [(1, "ipdb> ", "c")]
    with pytest.raises(CellFailed) as raised:
        made.cell.wait()
    assert raised.value.ranks == (2,)


def test_a_rank_that_dies_while_it_asks_ends_the_cell(start: Callable[..., Any]) -> None:
    pair = start(2, devices_per_process=1)
    pair.run("import jax, os, signal\nrank = jax.process_index()", show=False)
    made = Talk(pair, "import time\nif rank == 1: input('?')\nelse: time.sleep(600)").begin()
    until(lambda: len(made.person.asked) == 1, "a question")
    send_signal(pair, 1)
    with pytest.raises(RankDied):
        made.cell.wait()
    assert Talk(pair, "v = input('again? ')", (0, "again", "1"), (1, "again", "2")).wait()


# ---------------------------------------------------------------------------------- in a notebook


@pytest.fixture(scope="module")
def ranks(notebook: Notebook) -> Notebook:
    notebook.ok("%jaxcluster start -n 3 --devices-per-process 1")
    notebook.ok(
        "%%spmd\nimport jax, jax.numpy as jnp, numpy as np\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "rank = jax.process_index()\nmesh = jax.make_mesh((3,), ('i',))\n"
        "x = jax.device_put(np.arange(3.), NamedSharding(mesh, P('i')))"
    )
    return notebook


def test_the_notebooks_own_prompt_says_which_rank_asks(ranks: Notebook) -> None:
    cell = ranks.talk(
        "%%spmd\nname = input('name? ')\nprint('hello', name)",
        ("ranks 0-2> name? ", "a"),
    )
    assert "hello a" in cell.stdout


def test_a_notebook_without_a_prompt_gets_a_clear_error(ranks: Notebook) -> None:
    for source in ("input('name? ')", "breakpoint()\npass"):
        cell = ranks.run(f"%%spmd\n{source}")
        assert cell.ename == "CellFailed"
        assert "nbconvert" in cell.text
        assert "interrupted" not in cell.text
    assert "nbconvert" in ranks.run("%debug").text


def test_a_post_mortem_opens_where_the_rank_that_differs_has_failed(ranks: Notebook) -> None:
    failing = (
        "%%spmd\ndef f(a):\n    inner = a * 2\n    return jnp.ones(3) @ jnp.ones(inner)\n"
        "if rank == 2: 1 / 0\nf(2)"
    )
    assert ranks.run(failing).ename == "CellFailed"
    cell = ranks.talk("%debug", ("rank 2> ipdb> ", "p rank"), ("rank 2> ipdb> ", "q"))
    assert not cell.error
    assert "rank 2: ZeroDivisionError" in cell.text
    cell = ranks.talk("%jaxcluster debug 0", ("rank 0> ipdb> ", "p inner"), ("rank 0> ipdb> ", "q"))
    text = plain(cell.stdout)
    assert "return jnp.ones(3) @ jnp.ones(inner)" in text
    assert "jax/_src" not in text
    assert "4\n" in text
    assert ranks.ok("%%spmd\nfloat(jax.jit(jnp.sum)(x))").result == "3.0"


def test_a_launch_in_a_post_mortem_that_no_other_rank_makes_is_refused(ranks: Notebook) -> None:
    """The debugger prints it, and goes on."""
    assert ranks.run("%%spmd\n1 / 0").ename == "CellFailed"
    launch = "p float(jax.jit(jnp.sum)(x))"
    answers = [("rank 1> ipdb> ", text) for text in (launch, "p 40 + 3", "q")]
    cell = ranks.talk("%jaxcluster debug 1", *answers)
    assert "rank 1 waits for ranks 0, 2, which run no cell" in cell.text
    assert "43\n" in cell.text
    assert "pdb_convenience" not in cell.text
    assert ranks.ok("%%spmd\nfloat(jax.jit(jnp.sum)(x))").result == "3.0"
