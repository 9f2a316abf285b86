"""A notebook, as its user sees it: one kernel, one cluster, cell after cell."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import Home, Notebook, plain

from jaxcluster.options.commands import COMMANDS

pytestmark = pytest.mark.any_jax

# The tests of this module share a notebook: the first of them starts its cluster.
OUTPUTS = "application/vnd.jaxcluster.outputs+json"
START = "%jaxcluster start -n 4 --devices-per-process 2"


@pytest.fixture(scope="module", autouse=True)
def started(notebook: Notebook) -> str:
    """What stands under the cell that starts the cluster."""
    cell = notebook.ok(START)
    notebook.ok(
        "%%spmd\n"
        "import jax, jax.numpy as jnp, numpy as np, os, sys, time\n"
        "from IPython.display import HTML, Markdown, clear_output, display\n"
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "mesh = jax.make_mesh((4, 2), ('i', 'j'))\n"
        "x = jax.device_put(np.arange(32).reshape(4, 8), NamedSharding(mesh, P('i', 'j')))\n"
        "rank = jax.process_index()"
    )
    assert cell.kinds == ["display_data"]  # one display, which was updated
    return cell.text


@pytest.fixture
def ok(notebook: Notebook) -> Callable[[str], object]:
    return notebook.ok


# --------------------------------------------------------------------------- starting


def test_the_start_ends_in_one_line(started: str) -> None:
    assert re.fullmatch(
        r"Cluster 'main': ranks 0-3, 2 cpu devices per rank \(8 in all, cpu\), "
        r"ready in \d+\.\d s\.\n",
        started,
    )


def test_the_start_cell_run_again_changes_nothing(notebook: Notebook) -> None:
    notebook.ok("%%spmd\nprecious = rank")
    before = notebook.processes()
    for again in (START, f"{START} --name main", f"{START} --timeout 300"):
        cell = notebook.ok(again)
        assert cell.text == "Cluster 'main' is already running (4 ranks, variables kept).\n"
    assert notebook.processes() == before
    assert notebook.ok("%spmd precious").result == "0"


@pytest.mark.one_machine("on hosts the options differ by the hosts, too")
def test_a_start_with_other_options_is_refused_and_says_what_to_type(notebook: Notebook) -> None:
    before = notebook.processes()
    cell = notebook.run("%jaxcluster start -n 2 --name main")
    assert cell.ename == "ClusterExists"
    assert (
        "Cluster 'main' is already running, with other options: -n 4 --devices-per-process 2 "
        "--platform cpu. It was not changed." in cell.error
    )
    for command in ("stop", "restart", "start --name NAME"):
        assert f"%jaxcluster {command}" in cell.error
    assert notebook.processes() == before


def test_a_failed_start_shows_why_and_no_frame_of_ours(notebook: Notebook) -> None:
    cell = notebook.run(
        "%jaxcluster start -n 2 --name bad --timeout 30 --env XLA_FLAGS=--no_such=1"
    )
    assert cell.text.startswith("The cluster did not start.\n")
    assert "Unknown flag in XLA_FLAGS: --no_such=1" in cell.error
    assert "jaxcluster/" not in cell.error
    assert "Traceback" not in cell.error


# ------------------------------------------------------------------------- messages


def test_help_is_where_it_is_asked_for(notebook: Notebook) -> None:
    text = notebook.ok("%jaxcluster").stdout
    assert "\n  start       Start a cluster: -n 4, or --launcher ssh" in text
    assert {line.split()[0] for line in text.splitlines()[1:-2]} == set(COMMANDS)
    assert notebook.ok("%jaxcluster --help").stdout == text
    started = notebook.ok("%jaxcluster start --help").stdout
    assert "--devices-per-process D" in started
    assert notebook.ok("%jaxcluster start?").stdout == started
    for command in COMMANDS:
        assert f"%jaxcluster {command}" in notebook.ok(f"%jaxcluster {command} ?").stdout


def test_a_name_that_the_other_side_has_is_pointed_to(notebook: Notebook) -> None:
    notebook.ok("%%spmd\nimport jax\non_ranks = 1\nif jax.process_index(): on_some = 2")
    text = notebook.run("on_ranks").text
    assert (
        "name 'on_ranks' is not defined in the notebook, but on ranks 0-3: %%spmd runs a cell "
        "there, %pull on_ranks copies a value here." in text
    )
    assert "but on ranks 1-3: %%spmd runs a cell there." in notebook.run("on_some").text
    assert plain(notebook.run("on_none").text).endswith("name 'on_none' is not defined\n")
    notebook.ok("in_notebook = 1")
    text = notebook.run("%%spmd\nin_notebook").text
    assert "The notebook has in_notebook: %push in_notebook gives it to the ranks." in text
    assert "%push" not in notebook.run("%%spmd\non_none").text
    notebook.ok("%push in_notebook\n%pull on_ranks")
    notebook.ok("assert on_ranks == 1")
    notebook.ok("%%spmd\nassert in_notebook == 1")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("%jaxcluster strat", "There is no %jaxcluster strat: did you mean %jaxcluster start?"),
        ("%jaxcluster logs two", "RANK must be a number, such as 2, not 'two'."),
        ("%spmd", "%spmd needs an expression."),
        ("%%spmd --ranks 0,7\n1", "There is no rank 7: this cluster has ranks 0-3."),
        ("%push", "%push: NAMES... is missing: variables of the notebook."),
        ("%pull a.b", "'a.b' is not a variable name."),
    ],
)
def test_wrong_words_say_what_is_wrong_without_a_traceback(
    notebook: Notebook, line: str, message: str
) -> None:
    cell = notebook.run(line)
    assert cell.ename == "UsageError"
    assert message in cell.error
    assert "Traceback" not in cell.error


# --------------------------------------------------------------------------- rich output


def test_the_last_expression_is_the_cells_result(notebook: Notebook) -> None:
    cell = notebook.ok("%%spmd\n{'rank': rank}")
    assert cell.kinds == ["execute_result"]
    assert cell.result == "{'rank': 0}"
    (output,) = cell.outputs
    assert cell.reply is not None
    assert output["execution_count"] == cell.reply["execution_count"]


def test_a_line_takes_the_options_of_a_cell(notebook: Notebook) -> None:
    assert notebook.ok("%spmd --all rank // 2").text.splitlines() == [
        "── ranks 0, 1 ──",
        "0",
        "── ranks 2, 3 ──",
        "1",
    ]
    assert notebook.ok("%spmd --ranks 2 rank + 5").result == "7"
    notebook.ok("%spmd --out told print('a  b')")
    assert notebook.ok("told.stdout(3)").result == "'a  b\\n'"


def test_a_lines_braces_and_dollars_are_pythons(notebook: Notebook) -> None:
    notebook.ok("rank = 'the notebook has one too'")
    assert notebook.ok("%spmd f'{rank} {{}} $rank'").result == "'0 {} $rank'"


def test_variables_are_put_into_a_command_and_nothing_is_computed(
    notebook: Notebook, tmp_path: Path
) -> None:
    """A click on *Start* runs the start line of a notebook that may be anybody's."""
    taken = tmp_path / "taken"
    notebook.ok("count, name = 3, 'other'")
    plan = notebook.ok("%jaxcluster start -n {count} --name $name --dry-run").stdout
    assert "cluster 'other': 3 processes" in plan
    cell = notebook.run(f"%jaxcluster start -n {{open({str(taken)!r}, 'w').fileno()}} --dry-run")
    assert cell.error
    assert not taken.exists()


def test_html_markdown_and_dataframes_are_shown_as_such(notebook: Notebook) -> None:
    notebook.ok("%spmd import pandas as pd")  # which may take long enough for a line about it
    cell = notebook.ok(
        "%%spmd\ndisplay(HTML('<b>bold</b>'), Markdown('*leaning*'))\npd.DataFrame({'a': [1, 2]})"
    )
    html, markdown, frame = cell.bundles
    assert html["text/html"] == "<b>bold</b>"
    assert markdown["text/markdown"] == "*leaning*"
    assert "<table" in frame["text/html"]
    assert "text/plain" in frame
    assert cell.kinds == ["display_data", "display_data", "execute_result"]


def test_matplotlib_figures_are_pictures(notebook: Notebook) -> None:
    notebook.ok("%spmd import matplotlib.pyplot as plt")  # which may take long enough for a line
    cell = notebook.ok("%%spmd\n%matplotlib inline\nplt.plot([1, 2], [3, 4]);")
    (figure,) = cell.bundles
    assert figure["image/png"].startswith("iVBORw0KGgo")
    assert cell.stderr == ""


def test_a_display_can_be_updated(notebook: Notebook) -> None:
    cell = notebook.ok(
        "%%spmd\nhandle = display(HTML('first'), display_id=True)\nprint('between')\n"
        "handle.update(HTML('second'))"
    )
    assert [bundle["text/html"] for bundle in cell.bundles] == ["second"]
    assert cell.stdout == "between\n"
    later = notebook.ok("%%spmd\nhandle.update(HTML('third'))")
    assert [bundle["text/html"] for bundle in cell.bundles] == ["third"]
    assert later.bundles == []


def test_output_can_be_cleared(notebook: Notebook) -> None:
    assert notebook.ok("%%spmd\nprint('old')\nclear_output()\nprint('new')").stdout == "new\n"
    cell = notebook.ok(
        "%%spmd\nfor k in range(5):\n    clear_output(wait=True)\n    print(k)\n    display(k)"
    )
    assert cell.text == "4\n4\n"


def test_a_bars_end_is_above_what_is_printed_after_it(notebook: Notebook) -> None:
    """Both streams are flushed now and then, each by itself."""
    loop = "from tqdm import tqdm\nfor _ in tqdm(range(30)): time.sleep(0.02)\nprint('after')"
    cell = notebook.ok(f"%%spmd\nimport time\n{loop}")
    assert cell.kinds[0] == "display_data"  # for what the cell waits for: not in the bar's middle
    assert set(cell.kinds[1:-1]) == {"stderr"}
    assert cell.outputs[-1]["text"] == "after\n"


def test_magics_inside_a_cell_are_the_ranks(notebook: Notebook) -> None:
    cell = notebook.ok("%%spmd\n%timeit -n 2 -r 2 sum(range(10))\nfiles = !echo one\nprint(files)")
    assert "2 runs, 2 loops each" in cell.stdout
    assert "['one']" in cell.stdout


@pytest.mark.parametrize("typed", ["%shards mine", "%pull mine", "%jaxcluster status", "%%spmd"])
def test_the_notebooks_magics_say_where_they_belong(notebook: Notebook, typed: str) -> None:
    cell = notebook.run(f"%%spmd\nmine = 1\n{typed}")
    name = typed.partition(" ")[0]
    assert f"{name} runs in the notebook, not on ranks: type it at the top of a cell" in cell.text
    again = notebook.ok("%%spmd\n%load_ext jaxcluster\nprint(mine)").text
    assert "already loaded" in again and again.endswith("1\n")


def test_what_other_ranks_print_is_not_shown_but_kept(notebook: Notebook) -> None:
    assert notebook.ok("%%spmd\nprint('I am', rank)").text == "I am 0\n"
    kept = notebook.ok("%jaxcluster outputs").stdout
    assert all(f"── rank {r} ──\nI am {r}\n" in kept for r in range(4))
    some = notebook.ok("%jaxcluster outputs 1,3").stdout
    assert "I am 1" in some
    assert "I am 3" in some
    assert "I am 2" not in some


# --------------------------------------------------------------------------- all and some


def test_all_shows_every_rank_and_equal_outputs_once(notebook: Notebook) -> None:
    cell = notebook.ok("%%spmd --all\nprint('group', rank // 2)")
    assert cell.kinds == ["display_data"]
    assert cell.text.splitlines() == [
        "── ranks 0, 1 ──",
        "group 0",
        "── ranks 2, 3 ──",
        "group 1",
    ]
    [bundle] = cell.bundles
    assert bundle["text/html"].count("<details open><summary><b>ranks") == 2
    groups = bundle[OUTPUTS]["groups"]
    assert [group["ranks"] for group in groups] == [[0, 1], [2, 3]]


def test_all_shows_every_rank_while_the_cell_goes_on(notebook: Notebook) -> None:
    cell = notebook.begin(
        "%%spmd --all\nfor step in range(1000):\n    print('rank', rank, 'step', step)\n"
        "    time.sleep(0.05)"
    )
    notebook.until(
        lambda: all(f"rank {r} step 5\n" in cell.text for r in range(4)), "all are shown"
    )
    assert not cell.done
    notebook.manager.interrupt_kernel()
    notebook.wait(cell)
    assert [OUTPUTS in bundle for bundle in cell.bundles].count(True) == 1  # whatever is said too
    lines = cell.text.splitlines()
    shown = [int(line.split()[-1]) for line in lines if re.match("rank 3 step", line)]
    assert shown == list(range(len(shown)))  # in order, and none twice


def test_all_says_once_what_all_say(notebook: Notebook) -> None:
    cell = notebook.ok("%%spmd --all\nprint('same')\nhandle = display(HTML('x'), display_id=True)")
    assert cell.text.splitlines()[:2] == ["── ranks 0-3 ──", "same"]
    assert cell.text.count("same\n") == 1
    assert notebook.ok("%%spmd --all\npass").outputs == []
    # The display is still the first rank's, for a later cell to update.
    later = notebook.ok("%%spmd --all\nhandle.update(HTML('y'))\nprint('done')")
    assert later.text.splitlines() == ["── ranks 0-3 ──", "done"]


def test_ranks_that_are_named_are_shown(notebook: Notebook) -> None:
    one = notebook.ok("%%spmd --ranks 3\nprint(rank)")
    assert one.text == "Only on rank 3:\n3\n"
    cell = notebook.ok("%%spmd --ranks 1,3\nprint(rank)")
    shown = ["── rank 1 ──", "1", "── rank 3 ──", "3"]
    assert cell.text.splitlines() == ["Only on ranks 1, 3:", *shown]
    same = notebook.ok("%%spmd --ranks 2-3 --all\nprint('same')")
    assert same.text.splitlines() == ["Only on ranks 2, 3:", "── ranks 2, 3 ──", "same"]


# --------------------------------------------------------------------------- arrays


def test_a_spanning_array_is_assembled(notebook: Notebook) -> None:
    first, second, values = notebook.ok("%%spmd\nx").result.split("\n", 2)
    assert first == "Array(shape=(4, 8), dtype=int32)"
    assert second.startswith("sharding: NamedSharding(")
    assert [int(word) for word in re.findall(r"\d+", plain(values))] == list(range(32))


# --------------------------------------------------------------------------- errors


def test_an_error_has_the_notebooks_own_cell_and_line(notebook: Notebook) -> None:
    cell = notebook.run("%%spmd\na = 1\n\n1 / 0")
    assert cell.reply is not None
    number = cell.reply["execution_count"]
    assert cell.ename == "CellFailed"
    assert "On all 4 ranks:" in cell.error
    assert f"Cell In[{number}], line 4" in cell.error
    assert "----> 4 1 / 0" in cell.error
    assert cell.error.count("ZeroDivisionError: division by zero") == 1
    for ours in ("jaxcluster/", "ipyparallel", "run_cell_magic"):
        assert ours not in cell.error


def test_a_syntax_error_has_the_notebooks_own_line(notebook: Notebook) -> None:
    notebook.ok("%%spmd\ncounted = 0")
    cell = notebook.run("%%spmd\ncounted += 1\ndef f(:\n    pass")
    assert cell.reply is not None
    assert f"Cell In[{cell.reply['execution_count']}], line 3" in cell.error
    assert "def f(:" in cell.error
    assert "SyntaxError" in cell.error
    assert notebook.ok("%spmd counted").result == "0"


# --------------------------------------------------------------------------- in the background


def test_a_cell_in_the_background_leaves_the_notebook_free(
    notebook: Notebook, tmp_path: Path
) -> None:
    go_on = tmp_path / "go"
    cell = notebook.ok(
        "%%spmd --async --out background\nprint('begun')\n"
        f"while not os.path.exists({str(go_on)!r}): time.sleep(0.01)\nprint('ended', rank)"
    )
    assert "runs in the background; background.wait() waits for it." in cell.text
    assert notebook.ok("1 + 1").result == "2"
    go_on.touch()
    waited = notebook.ok("background.wait().stdout(3)")
    assert waited.result == "'begun\\nended 3\\n'"
    notebook.until(lambda: "is done" in cell.text, "the background cell's display is updated")
    assert "ended 0" in cell.text


# --------------------------------------------------------------------------- values


def test_values_are_pushed_and_pulled_by_name(notebook: Notebook) -> None:
    notebook.ok("import numpy as np\na, b = np.arange(5), {'k': [1, 2]}\n%push a b")
    assert notebook.ok("%%spmd --all\nint(a.sum()), b").text.count("(10, {'k': [1, 2]})") == 1
    notebook.ok("%%spmd\nc = b | {'rank': rank}")
    assert notebook.ok("%pull c\nc").result == "{'k': [1, 2], 'rank': 0}"
    assert notebook.ok("%pull x --as y\ntype(y).__name__, y.sum()").result.startswith(
        "('ndarray', "
    )
    assert notebook.ok("%pull a, c\nlen(a)").result == "5"


# --------------------------------------------------------------------------- auto mode


@pytest.fixture
def auto(notebook: Notebook) -> Notebook:
    notebook.ok("here = 'notebook'")
    notebook.ok("%jaxcluster auto on")
    yield notebook
    assert "Cells run in the notebook again." in notebook.ok("%jaxcluster auto off").text
    assert notebook.ok("here").result == "'notebook'"


def test_auto_mode_runs_cells_on_the_ranks(auto: Notebook) -> None:
    assert auto.ok("z = rank + 3\nz").result == "3"
    assert auto.ok("'here' in globals()").result == "False"
    assert auto.ok("%timeit -n 2 -r 2 pass\nz").result == "3"


def test_auto_mode_leaves_the_notebooks_magics_alone(auto: Notebook) -> None:
    assert auto.ok("%pull x\nx.shape").result == "(4, 8)"
    assert "idle" in auto.ok("%jaxcluster status").text
    assert auto.ok("%%html\n<b>x</b>").bundles[0]["text/html"].strip() == "<b>x</b>"
    assert "'here'" in auto.ok("%who_ls").result
    assert auto.ok("%%spmd --ranks 1\nprint(rank)").stdout == "Only on rank 1:\n1\n"
    assert auto.ok("!echo from the shell").stdout.strip() == "from the shell"


# ------------------------------------------------- the end, each in a notebook of its own


def test_stop_all_stops_every_cluster_of_the_notebook_and_the_fork_server(
    private_home: Home, open_notebook: Callable[[], Notebook]
) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 1 --name one")
    notebook.ok("%jaxcluster start -n 2 --name two --detach")
    listed = notebook.ok("%jaxcluster list").text
    assert [row.split()[:2] for row in listed.splitlines()[1:3]] == [["+", "one"], ["*", "two"]]
    again = notebook.ok("%jaxcluster start -n 1 --name one").text
    assert "This notebook uses 'two'. To use this one: %jaxcluster attach one" in again
    used = notebook.ok("%jaxcluster attach one").text
    assert used.startswith("Cluster 'one': rank 0,")
    assert notebook.ok("%spmd __import__('jax').process_count()").result == "1"
    refused = notebook.run("%jaxcluster start -n 1")  # a second cell without a name
    assert "Cluster 'one' is already running" in refused.text
    assert "There is no cluster 'none' here" in notebook.run("%jaxcluster attach none").error
    third = notebook.ok("%jaxcluster start -n 1 --name three").text
    assert "Cluster 'three'" in third
    stopped = notebook.ok("%jaxcluster stop").stdout
    assert re.fullmatch(
        r"Stopped rank 0 of 'three' in \d+\.\d s\. Cells of this notebook now run on 'one'\.\n",
        stopped,
    )
    said = notebook.ok("%jaxcluster stop --all").stdout
    assert re.fullmatch(
        r"Stopped ranks 0, 1 of 'two' in \d+\.\d s\.\nStopped rank 0 of 'one' in \d+\.\d "
        r"s\.\n(The preloaded fork server has ended too\.\n)?",
        said,
    )
    notebook.until(lambda: len(notebook.processes()) == 1, "only the kernel is left", 30)
    assert notebook.run("%jaxcluster stop --all").ename == "NoCluster"
