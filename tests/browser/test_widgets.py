"""The Lab extension's widgets in a real browser, with a fake kernel: words, keys, speed, axe."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accessible import violations
from pace import slowness

from jaxcluster.views import drawing

EXTENSION = Path(__file__).parents[2] / "labextension"
SHOTS = os.environ.get("SCREENSHOTS")  # a folder to leave pictures in, for people to look at
THEMES = ("light", "dark", "dark-high-contrast")
WIDTHS = {"sidebar": 300, "form": 440, "inspector-long": 300}


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> str:
    """labextension/tests/gallery.tsx as a script: every widget, on a page without Jupyter."""
    node = shutil.which("node")
    if node is None or not (EXTENSION / "node_modules/@rspack/core").is_dir():
        pytest.skip("the extension's packages are not installed: npm ci in labextension/")
    script = tmp_path_factory.mktemp("gallery") / "gallery.js"
    done = subprocess.run(
        [node, EXTENSION / "tests/gallery.mjs", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return script.read_text()


@pytest.fixture
def widgets(page: Any, gallery: str) -> Any:
    page.evaluate("() => { document.getElementById('view').style.overflow = 'auto'; }")
    for style in sorted((EXTENSION / "style").glob("*.css")):
        if style.name != "index.css":
            page.add_style_tag(content=style.read_text())
    page.add_style_tag(content=drawing.style())
    page.add_script_tag(content=gallery)
    return page


def show(page: Any, name: str) -> Any:
    width = WIDTHS.get(name) or WIDTHS.get(name.partition("-")[0], 800)
    page.evaluate(
        "([name, width]) => { document.getElementById('view').style.width = width + 'px';"
        " gallery.show(name); }",
        [name, width],
    )
    return page.locator("#view")


def asked(page: Any) -> list[Any]:
    found: list[Any] = page.evaluate("() => gallery.asked")
    return found


# ------------------------------------------------------------------------------- the sidebar


@pytest.mark.quick
def test_a_rank_is_a_row_that_says_where_it_is(widgets: Any) -> None:
    text = show(widgets, "sidebar").locator(".jxl-rank").first.inner_text()
    for part in ("0", "waiting", "[7] line 3", "cpu 0-1", "512.0 MiB"):
        assert part in text
    assert "killed by SIGKILL" in widgets.locator(".jxl-rank[data-status=dead]").inner_text()
    # What all ranks have alike is told of by their numbers: the host, and one device each.
    assert "host-a" not in text
    number = widgets.locator(".jxl-number").first
    assert number.get_attribute("title") == "rank 0, pid 4100 on host-a, cpu 0-1"
    assert "host-0" in show(widgets, "sidebar-16").locator(".jxl-gridDetail").inner_text()


def test_time_goes_on_by_itself(widgets: Any) -> None:
    time = show(widgets, "sidebar").locator(".jxl-time").first
    before = time.inner_text()
    widgets.wait_for_function(
        "before => document.querySelector('.jxl-time').innerText !== before", arg=before
    )


@pytest.mark.parametrize(
    ("name", "primary", "command"),
    [
        ("sidebar", "Interrupt", "interrupt"),
        ("sidebar-diverged", "Resync", "resync"),
        ("sidebar-no-cluster", "Start", "start"),
        ("sidebar-idle", None, None),
    ],
)
def test_there_is_one_thing_to_do_and_the_rest_is_in_a_menu(
    widgets: Any, name: str, primary: str | None, command: str | None
) -> None:
    view = show(widgets, name)
    found = view.locator(".jxl-mod-primary")
    assert found.all_inner_texts() == ([primary] if primary else [])
    if primary:
        found.click()
        wanted = ["start", {"number": 4}] if command == "start" else [f"jaxcluster:{command}"]
        assert asked(widgets) == [wanted]
    if command != "start":
        view.get_by_role("button", name="More actions").click()
        assert asked(widgets)[-1] == ["menu"]
    # A cluster is stopped in the list of clusters, and nowhere else.
    assert view.get_by_role("button", name="Stop main").count() <= 1
    assert view.get_by_role("button", name="Stop …").count() == 0


def test_what_ranks_use_is_drawn_and_said(widgets: Any) -> None:
    view = show(widgets, "sidebar-used")
    row = view.locator(".jxl-rank").nth(1)
    assert re.search(r"\d+ % CPU", row.inner_text())
    assert "80 % GPU" in row.inner_text()
    assert "60.0 GiB of 80.0 GiB" in row.inner_text()
    paths = [p.get_attribute("d") for p in row.locator(".jxl-spark path").all()]
    assert len(paths) == 4
    assert all(path.startswith("M") and "NaN" not in path for path in paths)
    assert re.search(r"[\d.]+ CPUs|\d+ % CPU", view.locator(".jxl-total").inner_text())


def test_a_cluster_is_attached_and_stopped_by_its_name(widgets: Any) -> None:
    view = show(widgets, "sidebar")
    row = view.locator("[data-cluster=exp1]")
    assert "orphaned" in row.inner_text()
    assert "2 ranks · cuda · local · 1 h · from a shell" in row.inner_text()
    row.get_by_role("button", name="Attach").click()
    row.get_by_role("button", name="Stop").click()
    view.locator("[data-cluster=left-behind]").get_by_role("button", name="Stop").click()
    assert asked(widgets) == [
        ["jaxcluster:attach", {"name": "exp1"}],
        ["jaxcluster:stop", {"name": "exp1"}],
        ["jaxcluster:stop", {"name": "left-behind", "id": "x"}],
    ]


def test_arrow_keys_go_from_log_to_log_and_tab_leaves_them(widgets: Any) -> None:
    view = show(widgets, "sidebar")
    view.get_by_role("button", name="More actions").focus()
    widgets.keyboard.press("Tab")
    for key in ("ArrowDown", "ArrowDown", "End", "ArrowUp", "Enter"):
        widgets.keyboard.press(key)
    assert asked(widgets) == [["jaxcluster:logs", {"rank": 2}]]
    widgets.keyboard.press("Tab")
    assert widgets.evaluate("document.activeElement.innerText") == "Stop"
    widgets.keyboard.press("Shift+Tab")
    assert widgets.evaluate("document.activeElement.ariaLabel") == "Log of rank 2"


@pytest.mark.parametrize(
    ("name", "words", "button"),
    [
        ("sidebar-no-notebook", "No notebook is open", "Start"),
        ("sidebar-not-loaded", "jaxcluster is not loaded", "Start"),
        ("sidebar-not-loaded", "jaxcluster is not loaded", "Load it"),
        ("sidebar-no-cluster", "This notebook has no cluster.", "Start"),
        ("sidebar-no-cluster", "This notebook has no cluster.", "Other options …"),
        ("sidebar-starting", "engines 3/4", "Cancel"),
        ("sidebar-starting", "rank 2 its process comes up", None),
        ("sidebar-starting", "ranks 0-1,3 up", None),
        ("sidebar-failed", "no GPU is visible there", "Start on CPU"),
        ("sidebar-failed", "Cluster main did not start.", "Try again"),
        ("sidebar-hang", "Line 2 runs jnp.sum only", "Show who was where"),
    ],
)
def test_it_says_what_there_is_and_what_to_do(
    widgets: Any, name: str, words: str, button: str | None
) -> None:
    view = show(widgets, name)
    assert words in view.inner_text()
    if button:
        view.get_by_role("button", name=button, exact=True).click()
        assert len(asked(widgets)) == 1


def test_from_8_ranks_on_each_has_a_tile_the_odd_ones_first(widgets: Any) -> None:
    view = show(widgets, "sidebar-64")
    tiles = view.locator(".jxl-tile")
    assert tiles.count() == 64
    assert tiles.first.get_attribute("aria-label") == "rank 17: dead, killed by SIGKILL"
    # Then those that wait, and then all that run.
    assert tiles.nth(1).get_attribute("data-status") == "waiting"
    assert tiles.last.get_attribute("data-rank") == "63"
    detail = view.locator(".jxl-gridDetail")
    assert "killed by SIGKILL" in detail.inner_text()  # of the first, while none is looked at
    view.locator(".jxl-tile[data-rank='30']").hover()
    assert detail.locator(".jxl-rank").get_attribute("data-rank") == "30"
    assert "[7] line 3" in detail.inner_text()
    view.locator(".jxl-tile[data-rank='40']").focus()
    assert detail.locator(".jxl-rank").get_attribute("data-rank") == "40"
    widgets.keyboard.press("Enter")
    widgets.keyboard.press("Tab")
    widgets.keyboard.press("Enter")
    assert asked(widgets) == [["jaxcluster:logs", {"rank": 40}]]


def test_64_ranks_leave_room_for_the_clusters_at_250_pixels(widgets: Any) -> None:
    widgets.set_viewport_size({"width": 1000, "height": 700})
    view = show(widgets, "sidebar-64")
    widgets.evaluate("() => { document.getElementById('view').style.width = '250px'; }")
    top = view.bounding_box()["y"]
    clusters = view.locator(".jxl-clusters").bounding_box()
    assert clusters["y"] + clusters["height"] - top < 700
    assert view.locator(".jxl-sidebar").evaluate("s => s.scrollWidth <= s.clientWidth")
    # The one host is no part of a row; its number tells of it.
    assert view.locator(".jxl-gridDetail .jxl-where").count() == 0
    number = view.locator(".jxl-gridDetail .jxl-number").get_attribute("title")
    assert "on a-node-with-a-long-name-0017.cluster.example" in number


def test_arrow_keys_go_among_the_tiles_as_they_lie(widgets: Any) -> None:
    view = show(widgets, "sidebar-64")
    tiles = view.locator(".jxl-tile")
    tiles.first.focus()
    columns = widgets.evaluate(
        "() => { const tiles = [...document.querySelectorAll('.jxl-tile')];"
        " const top = tiles[0].getBoundingClientRect().top;"
        " return tiles.filter(t => t.getBoundingClientRect().top === top).length; }"
    )
    for key, at in [("ArrowRight", 1), ("ArrowDown", 1 + columns), ("ArrowUp", 1), ("End", 63)]:
        widgets.keyboard.press(key)
        assert tiles.nth(at).evaluate("tile => tile === document.activeElement"), key
    assert view.locator(".jxl-tile[tabindex='0']").count() == 1


def test_several_hosts_have_tiles_of_their_own(widgets: Any) -> None:
    view = show(widgets, "sidebar-16")
    hosts = view.locator(".jxl-host")
    assert hosts.count() == 2
    assert view.locator(".jxl-tile").count() == 16
    assert "ranks 8-15" in hosts.nth(1).inner_text()
    hosts.nth(0).locator("summary").press("Enter")
    widgets.wait_for_function("() => document.querySelectorAll('.jxl-tile').length === 8")
    assert "7 running" in hosts.nth(0).locator("summary").inner_text()


def test_hosts_of_one_rank_each_are_tiles_and_no_lines(widgets: Any) -> None:
    view = show(widgets, "sidebar-hosts")
    assert view.locator(".jxl-host").count() == 0
    assert view.locator(".jxl-tile").count() == 32
    view.locator(".jxl-tile[data-rank='30']").hover()
    assert "host-30" in view.locator(".jxl-gridDetail").inner_text()


def test_256_ranks_are_quick(widgets: Any) -> None:
    view = show(widgets, "sidebar-256")
    assert view.locator(".jxl-host").count() == 32
    assert "1 dead" in view.locator(".jxl-host").nth(2).inner_text()
    took = [widgets.evaluate("() => gallery.time(256)") for _ in range(5)]
    slow = slowness()
    for what, limit in {"first": 100, "again": 50, "unfold": 150}.items():
        assert min(t[what] for t in took) < limit * slow, (slow, took)
    # Few nodes: one tile's glyph, words and tone, its place, and what its host's summary counts.
    assert 0 < took[0]["changed"] < 30, took
    # The one line that has changed has been drawn again.
    assert view.locator(".jxl-host summary", has_text="1 diverged").count() == 1


# ------------------------------------------------------------------------------- toolbar


def test_the_switch_says_what_it_is_and_why_it_is_out_of_use(widgets: Any) -> None:
    view = show(widgets, "toolbar")
    switches = view.get_by_role("switch", name="SPMD")
    assert switches.nth(0).get_attribute("aria-checked") == "true"
    assert switches.nth(1).get_attribute("aria-checked") == "false"
    last = switches.nth(4)
    assert "%load_ext jaxcluster" in last.get_attribute("title")
    last.focus()
    widgets.keyboard.press("Space")
    assert asked(widgets) == []
    switches.nth(1).press("Space")
    view.get_by_role("button", name="JAX cluster: 4/4 idle").click()
    assert asked(widgets) == [["click", {"i": 0}], ["click", {"i": 1}]]
    assert view.locator(".jxl-chip").count() == 3


def test_without_a_cluster_the_toolbar_starts_one_of_so_many_ranks(widgets: Any) -> None:
    view = show(widgets, "toolbar")
    fields = view.get_by_label("Number of ranks")
    assert fields.count() == 2  # where there is none, and where jaxcluster is not loaded
    field = fields.last
    assert field.input_value() == "4"
    start = view.get_by_role("button", name="Start", exact=True).last
    for wrong in ("0", "", "2.5"):
        field.fill(wrong)
        assert start.is_disabled(), wrong
    field.fill("8")
    field.press("Enter")
    start.click()
    assert asked(widgets) == [["start", {"number": 8}]] * 2


# ------------------------------------------------------------------------------- badges


def test_a_badge_says_how_its_rank_ended_and_shows_its_output(widgets: Any) -> None:
    view = show(widgets, "badges")
    strip = view.locator(".jxl-badges").nth(0)
    slow = strip.locator(".jxl-badge").nth(2)
    assert slow.get_attribute("title") == "rank 2: done after 2.40 s, 1.21 s behind"
    assert "2.40 s · Rank 2 was 1.2 s behind." in strip.inner_text()
    slow.press("Enter")
    assert asked(widgets) == [["show", {"rank": 2}]]


def test_of_256_ranks_those_that_deviate_are_named(widgets: Any) -> None:
    strip = show(widgets, "badges").locator(".jxl-badges").nth(4)
    text = strip.inner_text()
    assert "11 failed" in text
    assert "245 done" in text
    assert "and 3 more" in text
    assert strip.locator(".jxl-badge").count() == 8
    assert strip.locator(".jxl-badge").nth(1).inner_text().endswith("28")


def test_a_failed_cell_is_undone_with_a_button_that_says_where_it_can_not_be(widgets: Any) -> None:
    view = show(widgets, "badges")
    buttons = view.get_by_role("button", name="Undo cell")
    assert buttons.count() == 2
    for n, disabled, why in (
        (0, "false", "Take back what this cell did to the ranks' variables"),
        (1, "true", "Another cell has run since."),
    ):
        assert buttons.nth(n).get_attribute("aria-disabled") == disabled
        assert buttons.nth(n).get_attribute("title") == why
        buttons.nth(n).press("Enter")  # also one that does nothing can be reached
    assert asked(widgets) == [["undo"]]
    assert view.locator(".jxl-badges").last.inner_text().endswith("undone")


def test_another_ranks_output_is_chosen_and_closed(widgets: Any) -> None:
    view = show(widgets, "badges")
    view.get_by_label("Output of rank").select_option("0")
    view.get_by_role("button", name="close").click()
    assert asked(widgets) == [["show", {"rank": 0}], ["close"]]


# ------------------------------------------------------------------------------- inspector


def test_variables_are_sorted_and_filtered_and_one_is_looked_at_by_keyboard(widgets: Any) -> None:
    view = show(widgets, "inspector")

    def names() -> list[str]:
        return [
            row.get_attribute("data-variable") for row in view.locator("tr[data-variable]").all()
        ]

    assert names()[:2] == ["batch", "loss"]
    view.get_by_role("columnheader", name="bytes").get_by_role("button").click()
    assert names() == ["params", "batch", "x", "loss"]
    sorted_by = view.locator("th[aria-sort]")
    assert (sorted_by.count(), sorted_by.get_attribute("aria-sort")) == (1, "descending")
    view.get_by_label("Filter variables").fill("float32 None")
    assert names() == ["batch"]
    assert "1 of 4 variables" in view.inner_text()
    view.get_by_label("Filter variables").fill("")
    view.get_by_role("button", name="per device").focus()
    # Tab goes to where it was last, and that was batch.
    for key in ("Tab", "ArrowDown", "Enter"):
        widgets.keyboard.press(key)
    assert asked(widgets) == [["look", {"kind": "variable", "name": "x"}]]
    assert view.locator(".jxc-tile").count() > 0


@pytest.mark.parametrize("width", [250, 300, 420, 700])
def test_the_inspector_fits_a_sidebar(widgets: Any, beyond: Any, width: int) -> None:
    view = show(widgets, "inspector-long")
    widgets.evaluate("w => { document.getElementById('view').style.width = w + 'px'; }", width)
    beyond()
    if SHOTS:
        view.screenshot(path=str(Path(SHOTS) / f"inspector-{width}.png"))
    row = view.locator("tr[data-variable^=decoder]")
    for part in ("decoder_layers_attention_kernel_ema", "(4096, 32, 128)", "bfloat16", "32.0 MiB"):
        assert part in row.text_content()
    # Each part is below its header, and a shape is never shortened.
    lefts = {
        part: [
            view.locator(f"{row} .jxl-of-{part}").first.bounding_box()["x"]
            for row in ("thead", "tr[data-variable^=decoder]", "tr[data-variable=loss]")
        ]
        for part in ("name", "type", "dtype", "sharding")
    }
    assert all(max(xs) - min(xs) < 1 for xs in lefts.values()), lefts
    assert view.locator(".jxl-of-type .jxl-middle").count() == 0
    # What is shortened keeps its ends, and is whole in its title.
    name = row.locator(".jxl-of-name .jxl-middle")
    assert name.get_attribute("title") == "decoder_layers_attention_kernel_ema"
    assert row.locator(".jxl-of-sharding [title]").get_attribute("title").startswith("P(('data'")


# ------------------------------------------------------------------------------- logs


def test_logs_are_searched_followed_and_chosen_by_rank(widgets: Any) -> None:
    view = show(widgets, "logs")
    text = view.locator(".jxl-text")
    assert text.inner_text().count("\n") == 3
    view.get_by_label("Search in the log").fill("info LOAD")
    assert text.inner_text() == "[0] INFO: loading\n[1] INFO: loading"
    assert "2 lines" in view.inner_text()
    view.get_by_role("combobox", name="Rank").select_option("1")
    view.get_by_label("Follow").click()
    assert asked(widgets) == [["rank", {"rank": 1}], ["follow", {"follow": False}]]


# ------------------------------------------------------------------------------- report, form


def test_a_report_says_who_waited_and_what_was_done(widgets: Any) -> None:
    view = show(widgets, "report")
    text = view.inner_text()
    for part in ("rank 0 waited", "rank 1 did not", "Line 2 runs", "Back in lockstep after 0.3 s"):
        assert part in text
    assert view.get_by_role("heading", level=2).inner_text().startswith("Branch on line 2")
    assert widgets.get_by_role("button", name="Resync").count() == 0
    view = show(widgets, "report-open")
    assert "ranks 0, 2, 3 waited" in view.inner_text()
    for name in ("Resync", "Restart …"):
        view.get_by_role("button", name=name).click()
    assert asked(widgets) == [["jaxcluster:resync"], ["jaxcluster:restart"]]
    assert not view.locator(".jxl-stacks").is_visible()
    view.locator("summary").press("Enter")
    assert "total = jnp.sum(x)" in view.locator(".jxl-stacks").inner_text()


def test_a_death_is_told_as_a_death(widgets: Any) -> None:
    view = show(widgets, "report-death")
    assert view.get_by_role("heading", level=2).inner_text().startswith("Rank 2 died")
    assert view.locator(".jxl-sides li").all_inner_texts() == ["✖rank 2 died"]
    assert "wait" not in view.locator(".jxl-sides, .jxl-lines").first.inner_text()


def test_each_place_in_a_report_is_a_way_there(widgets: Any) -> None:
    view = show(widgets, "report")
    lines = view.locator(".jxl-lines")
    lines.get_by_role("button", name="cell [7] line 3").click()
    lines.get_by_role("button", name="cell [6] line 2").click()
    lines.get_by_role("button", name="Line 2", exact=True).click()  # of the report's own cell
    assert asked(widgets) == [
        ["place", {"cell": 7, "line": 3}],
        ["place", {"cell": 6, "line": 2}],
        ["place", {"cell": 7, "line": 2}],
    ]


def test_the_last_launches_stand_side_by_side(widgets: Any) -> None:
    view = show(widgets, "report-timeline")
    table = view.get_by_role("table", name="Last launches of ranks 0-3")
    assert table.locator("thead th").all_inner_texts()[-3:] == ["40 ≠", "41", "42"]
    assert table.locator("thead th[data-first]").inner_text() == "40 ≠"
    row = table.get_by_role("row", name="rank 3")
    assert row.locator(".jxl-launch.jxl-mod-none").count() == 2
    odd = table.get_by_role("row", name="rank 1").locator("[data-odd]")
    assert odd.all_inner_texts() == ["≠H"]  # where it first differs
    # What differs is told, with the ways to the lines; a letter leads there too.
    difference = view.locator(".jxl-difference").first
    assert "rank 1: H _reduce_sum [7] line 11" in difference.inner_text()
    difference.get_by_role("button", name="[7] line 11").first.click()
    row.get_by_role("button", name="Launch 31 on rank 3: A _reduce_sum, [7] line 2").click()
    assert asked(widgets) == [["place", {"cell": 7, "line": n}] for n in (11, 2)]


def test_a_timeline_is_used_by_keyboard_and_keeps_its_place(widgets: Any) -> None:
    view = show(widgets, "journal")
    ranks = view.locator(".jxl-timelineBox").last
    told = ranks.locator(".jxl-launchTold")
    ranks.locator("button[tabindex='0']").first.focus()  # where they part
    assert told.inner_text() == "Launch 40 on rank 0: A _reduce_sum, [7] line 11"
    assert ranks.locator("tbody button[tabindex='0']").count() == 1
    for key, text in {
        "ArrowDown": "Launch 40 on rank 1: H _reduce_sum, [7] line 11",
        "ArrowRight": "Launch 41 on rank 1: H train_step, [7] line 12",
        "Home": "Launch 31 on rank 1: A _reduce_sum, [7] line 2",
        "ArrowLeft": "Launch 31 on rank 1: A _reduce_sum, [7] line 2",
        "ArrowUp": "Launch 31 on rank 0: A _reduce_sum, [7] line 2",
        "End": "Launch 42 on rank 0: C train_step, [7] line 13",
    }.items():
        widgets.keyboard.press(key)
        assert told.inner_text() == text, key
    widgets.keyboard.press("Enter")
    assert asked(widgets) == [["place", {"cell": 7, "line": 13}]]
    # Asked again, it is the same place that has the focus; what is under the pointer is told.
    widgets.evaluate("() => gallery.again('journal')")
    assert told.inner_text() == "Launch 42 on rank 0: C train_step, [7] line 13"
    focused = "() => document.activeElement.getAttribute('aria-label')"
    assert widgets.evaluate(focused) == told.inner_text()
    ranks.get_by_role("button", name="Launch 41: none on rank 3").hover()
    assert told.inner_text() == "Launch 41: none on rank 3"
    widgets.keyboard.press("ArrowLeft")  # from where the focus is
    assert widgets.evaluate(focused) == "Launch 41 on rank 0: B train_step, [7] line 12"


def test_64_ranks_that_launched_the_same_share_a_row(widgets: Any) -> None:
    view = show(widgets, "journal")
    ranks = view.locator(".jxl-timelineBox").first
    rows = ranks.locator("tbody tr")
    assert rows.count() == 2
    # Who is in the cell still may launch the rest: that is no difference.
    assert rows.last.locator(".jxl-mod-later").all_inner_texts() == ["…", "…"]
    assert ranks.locator("[data-odd], [data-first], .jxl-difference").count() == 0
    # The newest are in view.
    assert ranks.locator(".jxl-timeline").evaluate("box => box.scrollLeft") > 0
    ranks.get_by_label("A row for each rank").check()
    assert rows.count() == 64
    assert rows.last.locator("th").inner_text() == "rank 63"
    box = ranks.locator(".jxl-timeline").evaluate("b => [b.scrollHeight, b.clientHeight]")
    assert box[0] > box[1]  # it scrolls by itself
    ranks.get_by_role("button", name="Launch 1005 on rank 62").hover()
    told = ranks.locator(".jxl-launchTold").inner_text()
    assert told.endswith(", [3] line 1, train.py line 4: step()")
    ranks.get_by_role("button", name="Launch 1005 on rank 62").click()
    assert asked(widgets) == []  # that cell is not in the notebook any more
    widgets.evaluate("() => { document.getElementById('view').style.width = '250px'; }")
    # Only the table itself is scrolled sideways.
    assert widgets.evaluate(
        "() => { const view = document.getElementById('view');"
        " return view.scrollWidth <= view.clientWidth; }"
    )


def test_the_form_shows_its_line_and_what_is_wrong(widgets: Any) -> None:
    view = show(widgets, "form")
    line = view.locator(".jxl-command")
    assert line.inner_text() == "%jaxcluster start -n 4 --env 'XLA_FLAGS=--a b'"
    view.get_by_label("Ranks").fill("eight")
    assert view.get_by_label("Ranks").get_attribute("aria-invalid") == "true"
    assert "A whole number" in view.inner_text()
    view.get_by_label("Ranks").fill("8")
    view.get_by_label("Environment").fill("")
    view.get_by_label("Platform").select_option("cpu")
    view.get_by_label("Keep it running").check()
    assert line.inner_text() == "%jaxcluster start -n 8 --platform cpu --detach"


def test_the_form_has_the_main_options_of_each_launcher(widgets: Any) -> None:
    view = show(widgets, "form-pods")
    line = view.locator(".jxl-command")
    assert line.inner_text() == "%jaxcluster start --launcher kubernetes --pods 2 --gpus eight"
    # Nothing is called wrong before it was typed.
    assert view.locator("[aria-invalid]").count() == 0
    view.get_by_label("GPUs").press_sequentially("s")
    assert view.get_by_label("GPUs").get_attribute("aria-invalid") == "true"
    assert view.locator("[aria-invalid]").count() == 1
    view.get_by_label("Image").fill("team/jax:1")
    view.get_by_label("In each pod").fill("4")
    assert not view.get_by_label("Ranks").count()  # the pods have them
    where = view.get_by_label("Where")
    values = where.locator("option").evaluate_all("all => all.map(one => one.value)")
    assert values == ["", "auto", "ssh", "slurm", "mpi", "tpu", "kubernetes", "ipp"]
    where.select_option("tpu")
    view.get_by_label("TPU").fill("my-pod")
    view.get_by_label("Zone").fill("us-central2-b")
    assert line.inner_text() == (
        "%jaxcluster start --launcher tpu --tpu my-pod --zone us-central2-b"
    )
    where.select_option("auto")
    assert "batch system" in view.inner_text()
    assert line.inner_text() == "%jaxcluster start --launcher auto"
    # What it is called is read from end to end. A queue takes longer than a start on this machine.
    fits = "one => one.scrollWidth <= one.clientWidth && one.clientWidth > 280"
    assert where.evaluate(fits)
    where.select_option("slurm")
    assert line.inner_text() == "%jaxcluster start --launcher slurm --timeout 1h"
    where.select_option("ssh")
    assert "--timeout" not in line.inner_text()


def test_the_form_writes_half_a_variable_as_it_is_typed(widgets: Any) -> None:
    view = show(widgets, "form")
    view.get_by_label("Environment").fill("BAR")
    assert view.locator(".jxl-command").inner_text() == "%jaxcluster start -n 4 --env BAR"
    assert "not of the form NAME=VALUE" in view.inner_text()


# ------------------------------------------------------------------------------- looks


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing(widgets: Any, axe: str, theme: str) -> None:
    themes = Path(sys.prefix) / "share/jupyter/lab/themes/@jupyterlab"
    style = themes / f"theme-{theme}-extension/index.css"
    if not style.is_file():
        pytest.skip("JupyterLab is not installed: its themes are missing")
    widgets.add_style_tag(content=style.read_text())
    widgets.add_style_tag(content="#view { background: var(--jp-layout-color1); }")
    found = {}
    for name in widgets.evaluate("() => gallery.names"):
        view = show(widgets, name)
        for details in view.locator(".jxl-report summary").all():
            details.click()
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            view.screenshot(path=f"{SHOTS}/widgets-{name}-{theme}.png")
        hits = violations(widgets, axe, contrast_alone=theme != "light")
        if hits:
            found[name] = hits
    assert found == {}
