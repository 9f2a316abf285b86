"""What axe-core finds in a page."""

from __future__ import annotations

from typing import Any


def violations(
    page: Any, axe: str, part: str = "#view", *, contrast_alone: bool = False
) -> list[Any]:
    """Each rule of axe's that is broken, with what breaks it: [rule, its help, nodes].

    Args:
      axe: its source, as the fixture of that name has it.
      contrast_alone: of a second theme, where only colours differ; all of them cost more.
    """
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe)
    rules = {"runOnly": ["color-contrast"]} if contrast_alone else {}
    found: list[Any] = page.evaluate(
        """async ([part, rules]) => (await axe.run(part, rules)).violations.map(v =>
             [v.id, v.help, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200))])""",
        [part, rules],
    )
    return found
