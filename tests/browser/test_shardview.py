"""static/shardview in a real browser, with a fake kernel: pictures, keyboard, axe."""

from __future__ import annotations

from typing import Any

import layouts
import pytest
from accessible import violations
from pace import slowness

from jaxcluster import wire
from jaxcluster.model import layout
from jaxcluster.views import arrays, blocks, shards, widget
from jaxcluster.views.messages import SHARDS_MIME

# A page that draws a document as a widget does; its kernel is `reply`.
PAGE = """
async ([source, style, document_, live, theme]) => {
  document.head.append(Object.assign(document.createElement("style"), {textContent: style}));
  for (const [name, value] of Object.entries(theme)) document.body.style.setProperty(name, value);
  const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
  const module = await import(url);
  const listeners = {};
  const model = {
    values: {document: document_, live}, asked: [],
    get(key) { return this.values[key]; },
    set(key, value) { this.values[key] = value; listeners['change:' + key]?.(); },
    on(event, f) { listeners[event] = f; }, off(event) { delete listeners[event]; },
    send(question) { this.asked.push(question); },
    answer(reply) { listeners['msg:custom']?.(reply); },
    listeners,
  };
  window.model = model;
  window.module = module;
  window.dispose = module.default.render({model, el: document.getElementById('view')});
}
"""

# What JupyterLab's themes set (@jupyterlab/theme-*-extension/style/variables.css).
THEMES = {
    "light": {
        "--jp-ui-font-color1": "rgba(0, 0, 0, 0.87)",
        "--jp-layout-color1": "#ffffff",
        "--jp-layout-color2": "#eeeeee",
        "--jp-border-color1": "#bdbdbd",
        "--jp-brand-color1": "#1976d2",
        "--jp-error-color1": "#d32f2f",
        "background": "#ffffff",
    },
    "dark": {
        "--jp-ui-font-color1": "rgba(255, 255, 255, 0.87)",
        "--jp-layout-color1": "#111111",
        "--jp-layout-color2": "#212121",
        "--jp-border-color1": "#616161",
        "--jp-brand-color1": "#2196f3",
        "--jp-error-color1": "#f44336",
        "background": "#111111",
    },
}


def show(page: Any, doc: dict[str, Any], live: bool = False, theme: str = "light") -> None:
    css = (widget.FOLDER / "style.css").read_text()
    page.evaluate(PAGE, [widget.script(), css, doc, live, THEMES[theme]])


def drawing_ms(page: Any) -> float:
    """How long the page needs to draw its document once more."""
    took = page.evaluate(
        """() => {
          const began = performance.now();
          module.draw(document.getElementById('view'), model.get('document'));
          document.body.offsetHeight;  // layout too
          return performance.now() - began;
        }"""
    )
    print(f"drawn in {took:.0f} ms")
    return float(took)


def answer(page: Any, result: Any = None, error: str | None = None) -> dict[str, Any]:
    """Reply to the last question, and return it."""
    page.wait_for_function("() => model.asked.length")
    return dict(
        page.evaluate(
            """([result, error]) => {
              const question = model.asked.pop();
              model.answer(error ? {id: question.id, error} : {id: question.id, result});
              return question;
            }""",
            [result, error],
        )
    )


def grid() -> layout.ArrayLayout:
    return layouts.array((8, 8), {"data": 4, "model": 2}, ("data", "model"))


def replicated() -> layout.ArrayLayout:
    return layouts.array((8,), {"data": 4, "model": 2}, ("model",), name="b")


def cube(ranks: int = 4) -> layout.ArrayLayout:
    return layouts.array((4, 8, 6), {"a": 2, "b": 2, "c": 2}, ("a", "b", "c"), ranks=ranks)


def checked() -> layout.CheckResult:
    left, right = ((0, 4),), ((4, 8),)
    checks = {
        rank: [
            wire.ShardCheck((), rank, 2048 * rank, left, digest="odd" if rank == 2 else "same"),
            wire.ShardCheck((), rank, 2048 * rank + 1, right, digest="same", nan=3 * (rank == 1)),
        ]
        for rank in range(4)
    }
    return layout.compare("b", checks)


def tree(leaves: int) -> dict[str, Any]:
    return shards.tree(layout.tree_layout("params", *layouts.tree(leaves)))


ALL: dict[str, Any] = {
    "grid": lambda: shards.array(grid()),
    "replicated-checked": lambda: shards.array(replicated(), checked()),
    "cube": lambda: shards.array(cube()),
    "many": lambda: shards.array(
        layouts.array((512, 64), {"a": 512, "b": 8}, ("a", "b"), ranks=512)
    ),
    "tree": lambda: tree(24),
    "big-tree": lambda: tree(2000),
    "mesh": lambda: shards.tables(arrays.mesh(layouts.mesh()))[SHARDS_MIME],
    "memory": lambda: shards.tables(arrays.memory(layouts.memory(4)))[SHARDS_MIME],
}


# ----------------------------------------------------------------------------------- the same as


def test_python_and_the_browser_use_the_same_colours_and_glyphs(page: Any) -> None:
    show(page, ALL["grid"]())
    assert tuple(page.evaluate("() => module.COLORS")) == blocks.COLORS
    assert page.evaluate("() => module.GLYPHS") == blocks.GLYPHS
    for rank in range(64):
        pair = page.evaluate("r => [module.color(r), module.glyph(r)]", rank)
        assert pair == [blocks.Rank(rank, "").color, str(blocks.Rank(rank, ""))[0]]


# ----------------------------------------------------------------------------------- arrays


@pytest.mark.quick
def test_every_part_is_a_tile_with_its_holders(page: Any) -> None:
    show(page, ALL["grid"]())
    tiles = page.locator(".jxc-tile")
    assert tiles.count() == 8
    label = tiles.nth(3).get_attribute("aria-label")
    assert "[2:4, 4:8]" in label
    assert page.locator("#view").bounding_box()["height"] <= 250
    assert "CPU 2049 (rank 1)" in label


def test_the_arrow_keys_go_to_the_neighbour_and_only_one_tile_is_in_the_tab_order(
    page: Any,
) -> None:
    show(page, ALL["grid"]())
    page.locator(".jxc-tile").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "[2:4, 4:8]" in page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert "[2:4, 4:8]" in page.locator(".jxc-info").inner_text()
    assert page.locator('.jxc-tile[tabindex="0"]').count() == 1
    page.keyboard.press("End")
    assert "[6:8, 4:8]" in page.evaluate("() => document.activeElement.getAttribute('aria-label')")


@pytest.mark.quick
def test_replicas_are_stripes_of_one_tile(page: Any) -> None:
    show(page, shards.array(replicated()))
    tiles = page.locator(".jxc-tile")
    assert tiles.count() == 2
    assert tiles.first.locator("rect[style]").count() == 4
    assert "copy 3" in tiles.first.get_attribute("aria-label")


def test_an_array_of_three_dimensions_has_axes_to_choose_and_a_slider(page: Any) -> None:
    show(page, ALL["cube"]())
    assert page.locator("select").count() == 2
    slider = page.locator("input[type=range]")
    assert slider.count() == 1
    before = page.locator(".jxc-tile").first.get_attribute("aria-label")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".jxc-tile").first.get_attribute("aria-label") != before
    assert "(2 of 2)" in page.locator("output").inner_text()
    page.locator("select").first.select_option("0")
    assert page.locator(".jxc-tile").count() == 4


def resize(page: Any, width: int) -> None:
    page.evaluate("w => { document.getElementById('view').style.width = w + 'px'; }", width)


def test_text_keeps_its_size_and_the_user_his_place_when_the_view_gets_narrow(page: Any) -> None:
    show(page, ALL["grid"](), live=True)
    page.locator(".jxc-tile").nth(3).click()
    said = page.locator(".jxc-info").inner_text()
    sizes = """() => [...document.querySelectorAll('svg text')].map(
      text => text.getBoundingClientRect().height)"""
    wide = page.evaluate(sizes)
    resize(page, 260)
    page.wait_for_function("() => document.querySelector('svg').clientWidth < 260")
    assert page.evaluate("() => document.querySelector('svg').getScreenCTM().a") == 1
    assert set(page.evaluate(sizes)) == set(wide)
    assert page.locator(".jxc-tile").nth(3).get_attribute("aria-pressed") == "true"
    assert "[2:4, 4:8]" in page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert page.locator(".jxc-info").inner_text() == said
    page.get_by_role("button", name="statistics on CPU 2049").wait_for()


def test_statistics_and_values_are_asked_of_the_one_rank(page: Any) -> None:
    show(page, ALL["grid"](), live=True)
    page.locator(".jxc-tile").nth(2).click()
    page.get_by_role("button", name="statistics on CPU 2048").click()
    stats = {"minimum": 1.5, "maximum": 9, "mean": 4, "nan": 2, "inf": 0, "size": 8}
    asked = answer(page, stats)
    assert {k: asked[k] for k in ("op", "name", "rank", "device")} == {
        "op": "stats",
        "name": "x",
        "rank": 1,
        "device": 2048,
    }
    page.get_by_text("min 1.5 · max 9 · mean 4 · 2 NaN").wait_for()
    page.get_by_role("button", name="values on CPU 2048").click()
    asked = answer(page, {"shape": [2, 4], "values": ["1", "2", "nan", "4", "5", "6", "7", "8"]})
    assert (asked["op"], asked["start"], asked["stop"]) == ("peek", [0, 0], [2, 4])
    page.locator(".jxc-values td", has_text="nan").wait_for()
    assert page.locator(".jxc-values tbody th").all_inner_texts() == ["2", "3"]


def test_the_check_button_marks_what_differs(page: Any) -> None:
    show(page, shards.array(replicated()), live=True)
    assert page.locator(".jxc-alarm").count() == 0
    page.get_by_role("button", name="Check copies and NaN").click()
    asked = answer(page, shards.layout_view(replicated(), checked())[SHARDS_MIME]["check"])
    assert asked["op"] == "check"
    page.locator(".jxc-tile.jxc-alarm").first.wait_for()
    assert page.locator(".jxc-tile.jxc-alarm").count() == 2
    text = page.locator("#view").inner_text()
    assert "the copies differ: rank 2 (device 4096) against ranks 0, 1, 3" in text
    assert "3 NaN on rank 1" in text
    page.locator(".jxc-tile").first.focus()
    assert "the copies differ: rank 2" in page.locator(".jxc-info").inner_text()


def test_without_a_kernel_there_are_no_buttons_that_do_nothing(page: Any) -> None:
    show(page, ALL["grid"]())
    page.locator(".jxc-tile").first.click()
    assert page.get_by_role("button", name="statistics").count() == 0
    assert "--widget" in page.locator(".jxc-info").inner_text()


def test_a_new_document_replaces_the_old_one(page: Any) -> None:
    show(page, tree(24), live=True)
    page.evaluate("doc => model.set('document', doc)", shards.array(replicated()))
    assert page.locator(".jxc-tile").count() == 2
    page.evaluate("() => dispose()")
    assert page.evaluate("() => Object.keys(model.listeners)") == []


def test_what_no_process_holds_is_a_tile_that_says_so(page: Any) -> None:
    known = layouts.devices(4, 2)
    infos = layouts.named(known, (8, 8), {"i": 4, "j": 2}, ("i", "j"))
    del infos[2]
    show(page, shards.array(layout.array_layout("x", infos, known, {2: "dead"})))
    assert page.locator(".jxc-gap").count() == 2
    label = page.locator(".jxc-tile").last.get_attribute("aria-label")
    assert label == "[4:6, 4:8] · held by no process that answered"
    page.evaluate("() => dispose()")
    gone = wire.ArrayInfo((8, 8), "float32", note="deleted or donated")
    show(page, shards.array(layout.array_layout("x", {0: gone, 1: gone}, {})))
    assert "Ranks 0, 1: deleted or donated" in page.locator("#view").inner_text()


def test_4096_devices_are_joined_by_host_at_once_and_can_be_drawn_apart(page: Any) -> None:
    doc = ALL["many"]()
    show(page, doc)
    assert drawing_ms(page) < 1000 * slowness()
    assert page.locator(".jxc-tile").count() == 64
    assert "host-03" in page.locator(".jxc-tile").nth(3).get_attribute("aria-label")
    assert "folded into 64 hosts" in page.locator("#view").inner_text()
    page.get_by_label("join the parts of a host").uncheck()
    canvas = page.locator("canvas")
    canvas.focus()
    page.keyboard.press("ArrowDown")
    assert "[1:2, 0:8]" in page.locator(".jxc-info").inner_text()


# ----------------------------------------------------------------------------------- trees


def test_a_tree_folds_and_unfolds_by_keyboard_and_a_leaf_opens_its_picture(page: Any) -> None:
    show(page, ALL["tree"]())
    box = page.get_by_role("tree")
    box.focus()
    count = page.get_by_role("treeitem").count()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("treeitem").count() < count
    page.keyboard.press("ArrowRight")
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".jxc-leaf .jxc-tile").first.wait_for()
    assert "params['layers'][0]['kernel']" in page.locator(".jxc-leaf").inner_text()


def test_a_tree_is_searched_by_path_and_sorted_by_bytes(page: Any) -> None:
    show(page, ALL["tree"]())
    page.get_by_label("find").fill("bias")
    assert "6 rows" in page.locator(".jxc-bar").inner_text()
    page.get_by_label("find").fill("")
    page.get_by_label("order").select_option("bytes")
    rows = page.get_by_role("treeitem").all_inner_texts()
    leaves = [row for row in rows if "float32" in row]
    assert "['up']" in leaves[0]


def test_2000_leaves_open_within_a_second_and_few_rows_are_drawn(page: Any) -> None:
    doc = ALL["big-tree"]()
    show(page, doc)
    assert drawing_ms(page) < 1000 * slowness()
    page.get_by_role("tree").focus()
    page.keyboard.press("End")
    assert page.get_by_role("treeitem").count() < 60
    assert "[499]" in page.get_by_role("treeitem").last.inner_text()


# ----------------------------------------------------------------------------------- the others


def test_a_document_of_a_newer_version_is_not_drawn_wrongly(page: Any) -> None:
    show(page, ALL["grid"]() | {"v": 99})
    assert "another version" in page.locator("#view").inner_text()


# ----------------------------------------------------------------------------------- accessible


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", ALL)
def test_axe_finds_nothing_and_each_view_fits_a_sidebar(
    page: Any, axe: str, beyond: Any, name: str, theme: str
) -> None:
    show(page, ALL[name](), live=True, theme=theme)
    if name == "tree":
        page.get_by_role("tree").focus()
        page.keyboard.press("End")
        page.keyboard.press("Enter")
    for details in page.locator("summary").all():
        details.click()
    if page.locator(".jxc-tile").count():
        page.locator(".jxc-tile").first.click()
    for width in (900, 600, 250) if theme == "light" else (900,):  # of one theme: rows become lines
        resize(page, width)
        page.wait_for_function(
            "w => !!document.querySelector('.jxc-narrow') === (w < 560)", arg=width
        )
        if width < 900:
            beyond()
        assert violations(page, axe, contrast_alone=theme != "light") == []
