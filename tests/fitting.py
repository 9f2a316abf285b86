"""Whether what a page shows fits the room that it has."""

from __future__ import annotations

from typing import Any

from pace import Deadline

# What stands out of a part of the page to the right, is cut off there, or is scrolled sideways.
# Names that are shortened in their middle have titles; what is 1 px wide is only heard.
BEYOND = """part => {
  const view = document.querySelector(part), right = view.getBoundingClientRect().right + 1;
  const shown = n => n.getBoundingClientRect().width > 1 && !n.closest('thead, title, option');
  const cut = n => n.scrollWidth > n.clientWidth + 1 && n.clientWidth > 1
    && getComputedStyle(n).overflowX !== 'visible' && !n.closest('[class*=-middle]');
  return [...view.querySelectorAll('*')].filter(
    n => shown(n) && (n.getBoundingClientRect().right > right || cut(n))).map(n => n.outerHTML);
}"""


def fits(page: Any, part: str, deadline_s: float = 20) -> None:
    """Fail unless all of a part of the page has room, at the latest when a drawing has followed."""
    deadline = Deadline(deadline_s)
    while (found := page.evaluate(BEYOND, part)) and not deadline.is_over:
        page.wait_for_timeout(50)
    assert found == []
