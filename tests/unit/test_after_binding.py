"""An interrupt that comes as a launch returns is raised once its results have their names."""

from __future__ import annotations

import ast
import inspect
import itertools
import random
import re
import signal
import sys
import textwrap
import warnings
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from jaxcluster.engine.after_binding import AfterBinding

CALL = "signal.raise_signal(signal.SIGUSR1)"  # a call of C, whose handler stands where it returns


class Way:
    """Of a ``with``: it is in ``inside`` meanwhile."""

    def __init__(self, inside: list[int], number: int) -> None:
        self.inside, self.number = inside, number

    def __enter__(self) -> None:
        self.inside.append(self.number)

    def __exit__(self, *_: object) -> None:
        assert self.inside.pop() == self.number

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class Stopped:
    """Runs code in which a signal comes, and knows whether the interrupt was put off."""

    def __init__(self) -> None:
        self.binding = AfterBinding()
        self.put_off: bool | None = None
        self.before = False

    def handle(self, signum: int, frame: FrameType | None) -> None:
        assert frame is not None
        self.put_off = self.binding.begin(frame, self.note)
        if not self.put_off:
            raise KeyboardInterrupt

    def note(self, frame: FrameType) -> None:
        self.before = True

    def run(self, source: str) -> dict[str, Any]:
        """The names that it leaves, among them what was done ``behind`` the launch."""
        return self.run_code(compile(source, source, "exec"))

    def run_code(self, code: CodeType) -> dict[str, Any]:
        inside: list[int] = []
        behind: list[Any] = []
        names = {"signal": signal, "inside": inside, "caught": [], "behind": behind, "here": Way}
        names |= {"way": lambda n: Way(inside, n), "goes_on": lambda *all: behind.append(all)}
        self.put_off = None
        handled = sys.exc_info()  # of a test before, whose greenlet has not ended
        with pytest.raises(KeyboardInterrupt):
            if (coroutine := eval(code, names)) is not None:
                coroutine.send(None)
        assert self.put_off is not None
        assert sys.gettrace() is None
        assert sys.exc_info() == handled
        assert not self.binding.waits, code.co_filename
        assert inside == [], code.co_filename
        return names


@pytest.fixture
def stopped() -> Iterator[Stopped]:
    before, one = sys.gettrace(), Stopped()
    sys.settrace(None)
    handler = signal.signal(signal.SIGUSR1, one.handle)
    yield one
    signal.signal(signal.SIGUSR1, handler)
    sys.settrace(before)


@pytest.mark.parametrize(
    "source",
    [
        f"value = {CALL}\nafter = 1",
        f"value, other = {CALL}, 1\nafter = 1",
        f"while True: value = {CALL}",
        f"def call():\n    return {CALL}\nvalue = call()\nafter = 1",
        f"for _ in range(2):\n    value = {CALL}\nafter = 1",
        f"import contextlib\nwith contextlib.nullcontext():\n    value = {CALL}\nafter = 1",
        f"try:\n    value = {CALL}\n    after = 1\nfinally:\n    done = 1",
    ],
)
def test_what_is_returned_is_bound_first_and_nothing_else_is_run(
    stopped: Stopped, source: str
) -> None:
    names = stopped.run(source)
    assert "value" in names
    assert "after" not in names
    assert stopped.put_off
    assert stopped.before


@pytest.mark.parametrize(
    "source",
    [
        f"with way(1):\n    value = {CALL}\nafter = 1",
        f"with way(1):\n    value, other = {CALL}, 1\nafter = 1",
        f"while True:\n    with way(1), way(2):\n        value = {CALL}",
        f"def call():\n    with way(1), way(2): return {CALL}\nvalue = call()\nafter = 1",
        f"def call():\n    return {CALL}\nwith way(1):\n    value = call()\nafter = 1",
        f"while (value := {CALL}) is None: after = 1",
    ],
)
def test_what_a_with_ends_in_is_bound_too(stopped: Stopped, source: str) -> None:
    names = stopped.run(source)
    assert "value" in names
    assert "after" not in names


def test_whoever_catches_an_interrupt_of_that_line_catches_it(stopped: Stopped) -> None:
    source = f"try:\n    value = {CALL}\nexcept KeyboardInterrupt:\n    caught = 1\n    raise"
    names = stopped.run(source + "\nafter = 1")
    assert stopped.put_off is False
    assert "caught" in names


def test_a_loop_in_a_try_is_stopped_inside_of_it(stopped: Stopped) -> None:
    source = f"for _ in range(2):\n        value = {CALL}\nexcept KeyboardInterrupt:\n    raise"
    assert "value" in stopped.run(f"try:\n    {source}")
    assert stopped.put_off


@pytest.mark.parametrize(
    "source",
    [
        f"value = list({CALL} for _ in range(1))",
        f"value = str({CALL})",
        f"def call():\n    return {CALL}\nvalue = str(call())",
    ],
)
def test_what_gets_no_name_at_once_is_not_waited_for(stopped: Stopped, source: str) -> None:
    assert "value" not in stopped.run(source)


def test_a_debuggers_trace_stays(stopped: Stopped) -> None:
    def trace(frame: FrameType, event: str, argument: Any) -> None: ...

    with pytest.raises(KeyboardInterrupt):
        exec(f"import sys\nsys.settrace(trace)\n{CALL}", {"signal": signal, "trace": trace})
    assert sys.gettrace() is trace
    sys.settrace(None)
    assert stopped.put_off is False


# ------------------------------------------------------- programs of all shapes

LAUNCHES = [
    "value = LAUNCH",
    "value, other = LAUNCH, 1",
    "value = other = LAUNCH",
    "here.value = LAUNCH",
    "value = LAUNCH; goes_on()",
    "value = LAUNCH; break",
    "value = LAUNCH; continue",
    "value = LAUNCH; return",
    "while (value := LAUNCH) is None: goes_on()",
    "value = str(LAUNCH)",
    "value = [LAUNCH for _ in range(2)]",
    "LAUNCH",
    "return LAUNCH",
]
AROUND = [
    "with way(N):\n    BODY\ngoes_on()",
    "with way(N): BODY",
    "while True:\n    with way(N):\n        BODY",
    "with way(N), way(-N):\n    BODY",
    "async with way(N):\n    BODY\ngoes_on()",
    "try:\n    BODY\nexcept KeyboardInterrupt:\n    caught.append(N)\n    raise\ngoes_on()",
    "while True:\n    try: BODY\n    except KeyboardInterrupt:\n        caught.append(N); raise",
    "inside.append(N)\ntry:\n    BODY\nfinally:\n    inside.remove(N)",
    "try: BODY\nexcept ValueError: goes_on()\nelse: goes_on()",
    "try: 1 / 0\nexcept ZeroDivisionError as error:\n    BODY\ngoes_on()",
    "for _ in range(2):\n    BODY",
    "for _ in range(2):\n    if here: BODY\n    else: FAR",
    "if here:\n    BODY\nelse:\n    goes_on()",
    "async def f():\n    BODY\nvalue = await f()\ngoes_on()",
    "def f():\n    BODY\nvalue = f()",
    "def f():\n    BODY\nreturn f()",
    "def f():\n    BODY\n    yield\nfor value in f(): goes_on()",
    "class A:\n    def __enter__(self):\n        BODY\n    __exit__ = goes_on\nwith A(): goes_on()",
]
FAR = "here; " * 300  # what jumps over it has an argument of more than a byte


def program(launch: str, arounds: list[str]) -> CodeType | None:
    """None: Python takes no such program, or it is an asynchronous generator."""
    source = launch.replace("LAUNCH", CALL)
    for number, around in enumerate(arounds, 1):
        indent = re.search(r"^ *(?=BODY)", around, re.MULTILINE)
        if indent is None and "\n" in source:
            return None  # one line has no place for it
        source = textwrap.indent(source, indent[0] if indent else "").lstrip()
        outer = re.sub(r"\bN\b", str(number), around).replace("FAR", FAR)
        source = outer.replace("BODY", source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(source, source, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return None
    return None if any(each.co_flags & inspect.CO_ASYNC_GENERATOR for each in codes(code)) else code


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes(each)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_stop_runs_all_that_is_around_a_launch_and_nothing_behind_it(
    stopped: Stopped, depth: int
) -> None:
    shapes = list(itertools.product(LAUNCHES, *[AROUND] * depth))
    shapes = random.Random(depth).sample(shapes, min(2000, len(shapes)))
    num_run, num_put_off = 0, 0
    for launch, *arounds in shapes:
        if (code := program(launch, arounds)) is None:
            continue
        names = stopped.run_code(code)
        is_caught = [n for n, around in enumerate(arounds, 1) if "caught" in around]
        assert names["caught"] == is_caught, code.co_filename
        assert names["behind"] == [], code.co_filename
        num_run, num_put_off = num_run + 1, num_put_off + bool(stopped.put_off)
    assert num_put_off > num_run / 3
