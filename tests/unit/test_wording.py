"""Messages are plain English: one list of them all, and phrases that none of them may have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from messages import GOLDEN, ROOT, is_message, messages, rendered

STUMBLES = [  # what it says, and what to say in its place
    (r"(?<!there )\b(is|are|was|were) no\b(?! longer)", "is not a"),
    (r"\b(is|are|was|were) none\b(?! yet)", "is not one of"),
    (r"\bnone of (its|ours|theirs|them)\b", "not one of"),
    (r"\bsigns? of life\b", "is not responding"),
    (r"\b(let|lets|letting) go of\b", "is no longer connected"),
    (r"\bfor good\b", "permanently"),
    (r"\bmend(s|ed|ing)?\b", "fix"),
    (r"\banew\b", "again"),
    (r"\b(put|puts|putting) out\b", "output, print"),
    (r"\b(stand|stands|stood) in\b", "is in, is set in"),
    (r"\btold\b", "reported, asked"),
    (r"\b(asks?|waits? for|knows?) (nobody|no)\b", "has no, does not know"),
    (r"\bnobody\b", "name who or what can't do it"),
    (r"\bwhoever\b", "anyone, any notebook"),
    (r"\bunbound again\b", "removed"),
    (r"\b(is|are) what (it was|they were)\b", "restored"),
    (r"\b(was|were|broke) (broken )?off\b|\bbroken off\b", "aborted, closed"),
    (r"\bany more\b(?! than)", "no longer"),
    (r"\bshall\b", "must, or leave it out"),
    (r"\bexcludes? each other\b", "can't be used together"),
    (r"\bat hand\b", "available"),
    (r"\bse(e|es|en) to (it|that)\b", "handles"),
    (r"\bgiven up\b", "gave up on it, ended it"),
    (r"\bhad to make way\b", "was preempted"),
    (r"\bbeside its\b", "in addition to its"),
    (r"\bis waited for\b", "still waiting"),
    (r"\b(step|cell|rank) anew\b", "again"),
    (r"\broll-?call\b", "poll"),
    (r"\bin step\b|\bout of step\b", "in lockstep, diverged"),
]


def stumbles(text: str) -> list[str]:
    """What a person would stumble over in a text, each with what to say in its place."""
    return [
        f"{found[0]!r}: say {plain!r}"
        for pattern, plain in STUMBLES
        for found in [re.search(pattern, text, re.IGNORECASE)]
        if found
    ]


def test_the_list_of_messages_is_that_of_the_code() -> None:
    is_same = GOLDEN.read_text() == rendered()  # pytest would take minutes to compare the texts
    assert is_same, "Messages have changed. Read them in the list: python tests/messages.py"


@pytest.mark.parametrize("name", messages(ROOT / "jaxcluster"))
def test_messages_are_in_plain_words(name: str) -> None:
    found = {text: hits for text in messages(ROOT / "jaxcluster")[name] if (hits := stumbles(text))}
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "machine is none of its hosts",
        "rank 1 gives no sign of life",
        "the notebook has let go of it",
        "it hangs for good",
        "Mend the file",
        "it was told to",
        "y, z are unbound again",
        "x is what it was before it",
        "the dashboard asks nobody who you are",
        "--hosts stands in line 3",
        "this is no pod",
        "f, broken off by ValueError",
        "--hosts and --tpu exclude each other.",
        "ranks that can't compute any more",
    ],
)
def test_archaic_words_are_found(text: str) -> None:
    assert stumbles(text)


@pytest.mark.parametrize("text", ["there is no cluster", "Host h1 is no longer connected", "amend"])
def test_plain_words_are_left_alone(text: str) -> None:
    assert not stumbles(text)


def test_a_message_is_found_with_its_values_as_holes(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        '"""Not this docstring."""\n'
        'KEY = "key"\n'
        'PATTERN = r"(not found|no such file)"\n'
        "def f(x, name):\n"
        '    raise ValueError(f"{x!r} is not {name:>3}. " + "Try again" + x)\n'
    )
    assert messages(tmp_path) == {"one.py": ["{} is not {}. Try again{}"]}


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("No cluster is running.", True),
        ("recovery auto|ask|never sets it", True),
        ("<p>Not shown: {}</p>", True),
        ("<td title='a b'>{}</td>", False),
        ("from x import y, z", False),
        ("Invalid job id|has expired", False),
        ("stop", False),
    ],
)
def test_what_counts_as_a_message(text: str, is_one: bool) -> None:
    assert is_message(text) == is_one
