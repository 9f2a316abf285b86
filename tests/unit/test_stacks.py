"""Stacks are read from another thread without a chance to crash it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from helpers import python

from jaxcluster.rank.stacks import stack_of


class Waiting:
    """A thread that waits three functions deep."""

    def __init__(self) -> None:
        self.ready, self.go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.outer)
        self.thread.start()
        self.ready.wait(20)

    def outer(self) -> None:
        self.inner(depth=150)

    def inner(self, depth: int) -> None:
        if depth:
            self.inner(depth - 1)
        else:
            self.ready.set()
            self.go.wait(60)

    @property
    def ident(self) -> int:
        assert self.thread.ident is not None
        return self.thread.ident


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.go.set()
    made.thread.join(20)


def test_a_stack_is_whole_and_innermost_first(waiting: Waiting) -> None:
    names = [code.co_qualname for code, _ in stack_of(waiting.ident)]
    assert names.count("Waiting.inner") == 151  # a faulthandler's dump ends after 100
    assert names.index("Waiting.inner") < names.index("Waiting.outer")
    lines = {line for code, line in stack_of(waiting.ident) if code.co_name == "outer"}
    assert lines == {Waiting.outer.__code__.co_firstlineno + 1}


def test_of_a_thread_that_has_ended_nothing_is_left(waiting: Waiting) -> None:
    stack_of(waiting.ident)
    waiting.go.set()
    waiting.thread.join(20)
    assert stack_of(waiting.ident) == [] == stack_of(1)
    inner = Waiting.inner.__code__
    assert not [f for f in gc.get_objects() if type(f) is FrameType and f.f_code is inner]


# What follows must also be able to fail: read by f_back, by traceback.extract_stack or by
# faulthandler, one or the other of these ends in a segmentation fault on one Python or another.
STRESS = """
import functools, gc, sys, threading, time
from jaxcluster.rank.stacks import stack_of
sys.setswitchinterval(1e-6)

class Finalizer:
    def __del__(self):
        for i in range(20): str(i)
def called_from_c(x):
    a, b = Finalizer(), Finalizer()
    return x
class Counter:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        a = Finalizer()
        self.n -= 1
        if self.n < 0: raise StopIteration
        return self.n
def generator(n):
    a = Finalizer()
    yield from range(n)
def own_stack():
    frame, n = sys._getframe(1), 0
    while frame is not None:
        n += frame.f_code is not None
        frame = frame.f_back
    return n
def recurse(n):
    a = Finalizer()
    if n % 3 == 0: own_stack()
    if n:
        return recurse(n - 1) + max([1, 2], key=called_from_c)
    list(map(called_from_c, range(5)))
    functools.reduce(lambda x, y: (Finalizer(), x)[1], range(5))
    list(Counter(3)), sum(generator(4))
    try: list(map(lambda x: 1 / 0, [1]))
    except ZeroDivisionError: pass
    return 0

walked = []
def walk():
    main = threading.main_thread().ident
    for _ in range(COUNT):
        walked.append(len(stack_of(main)))
        if len(walked) > 100: del walked[:]
if "gc" in MODE: gc.set_threshold(3, 2, 2)
if "audit" in MODE: sys.addaudithook(lambda *event: [str(i) for i in range(3)])
if "trace" in MODE: sys.settrace(lambda frame, event, arg: lambda *_: None)
walker = threading.Thread(target=walk)
walker.start()
k = 0
while walker.is_alive():
    list(map(recurse, [k % 15]))
    k += 1
assert k > 10 and not ("gc" in MODE and not gc.isenabled())
print("ended")
"""


@pytest.mark.parametrize("mode", ["plain", "trace", "gc", "trace gc audit"])
def test_a_hundred_thousand_stacks_of_a_running_thread(mode: str) -> None:
    count = 100_000 if mode in ("plain", "trace") else 20_000
    done = python("-c", f"COUNT, MODE = {count}, {mode!r}\n{STRESS}")
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr[-2000:]
