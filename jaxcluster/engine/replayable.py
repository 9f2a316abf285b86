"""What a compiled program's text says of its collectives: may it be replayed with zeros? Pure.

A replay releases the other ranks only if it makes the same collectives as their launch did, in the
same order and as often. Zeros take the other branch of a conditional, and another number of turns
of a loop. So a program is refused if a collective, or whatever else may wait for somebody, stands
inside a conditional, or in a loop whose number of turns the compiler does not know. It is judged by
the compiled program's text (HLO): that is what runs, after branches without a collective have
become selections and loops have been unrolled. What this module does not know may wait.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from jaxcluster.wire import hlo

# What one device computes by itself, however it is told to (the names of HLO's operations).
_QUIET_NAMES = """
    abs acos acosh add add-dependency after-all and asin asinh atan2 atanh batch-norm-grad
    batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil
    cholesky clamp compare complex concatenate conditional constant convert convolution copy
    copy-done copy-start cosh cosine count-leading-zeros divide domain dot dynamic-reshape
    dynamic-slice dynamic-update-slice erf exponential exponential-minus-one fft floor fusion
    gather get-dimension-size get-tuple-element imag iota is-finite log log-plus-one logistic
    map maximum minimum multiply negate not opt-barrier optimization-barrier or pad parameter
    partition-id popcnt power ragged-dot real reduce reduce-precision reduce-window remainder
    replica-id reshape reverse rng rng-bit-generator rng-get-and-update-state round-nearest-afz
    round-nearest-even rsqrt scaled-dot scatter select select-and-scatter set-dimension-size
    shift-left shift-right-arithmetic shift-right-logical sign sine sinh slice sort sqrt
    stochastic-convert subtract tan tanh topk transpose triangular-solve tuple while xor
"""
_QUIET = frozenset(_QUIET_NAMES.split())
# Collectives whose partners and sizes the program's text says once and for all.
_STEADY = re.compile(
    r"(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)"
    r"(?:-start|-done)?"
)
# Libraries of XLA and JAX that compute on one device. Any other custom call is somebody's own code.
_LIBRARIES = re.compile(r"lapack_|blas_|__|TopK$|cu(?:solver|sparse|blas|dnn|fft)_|cu_threefry|hip")
# These run what they call once, wherever they stand.
_ONCE = ("call", "fusion", "async-start", "async-update", "async-done")

_TARGET = re.compile(r'custom_call_target="([^"]*)"')
# Of a collective's attributes: what does not say who sends how much to whom.
_BESIDES = re.compile(r", (?:channel_id=\d+|to_apply=%[^,\s]+|(?:metadata|frontend_attributes)=.*)")


_Computations = Mapping[str, Sequence[hlo.Operation]]


def why_not(text: str) -> str:
    """Why a program must not be run with zeros, as the end of a sentence; "" if it may.

    Args:
      text: the compiled modules'. Some 0.1 s for each megabyte of it.
    """
    if not text:
        return "its compiled text is not available"
    try:
        program = hlo.parse(text).computations
    except ValueError:
        return "its compiled text can't be read"
    everything = [operation for body in program.values() for operation in body]
    for operation in everything:
        if odd := _odd(operation):
            return odd
    waiting = _waiting(program)
    for operation in everything:
        held = waiting.intersection(operation.calls)
        if not held or operation.opcode in _ONCE:
            continue
        if operation.opcode == "while" and hlo.KNOWN_TURNS.search(operation.attributes):
            continue
        what = {"conditional": "a branch", "while": "a loop"}.get(operation.opcode)
        if what is None:
            return f"it has a collective in a {operation.opcode}, which is not known"
        return f"{what} that depends on its inputs has a collective"
    return ""


def course(text: str) -> str:
    """The collectives that a program makes whatever its inputs, in order; "" if that is not known.

    Each with its shape and its partners, but not with what it computes: programs of one course
    meet, and leave nothing over, though a sum of one meets a maximum of the other.
    """
    if why_not(text):
        return ""
    program = hlo.parse(text)
    return _course(program.computations, _waiting(program.computations), program.entry)


def _course(program: _Computations, waiting: set[str], name: str) -> str:
    parts = []
    for operation in program[name]:
        if _STEADY.fullmatch(operation.opcode):
            attributes = _BESIDES.sub("", operation.attributes.removeprefix(")"))
            parts.append(f"{operation.shape} {operation.opcode}{attributes}")
        elif held := [called for called in operation.calls if called in waiting]:
            turns = hlo.KNOWN_TURNS.search(operation.attributes)
            inner = " ".join(_course(program, waiting, called) for called in held)
            parts.append(f"{operation.opcode}{turns.group(1) if turns else ''}({inner})")
    return "[" + "; ".join(parts) + "]"


def _odd(operation: hlo.Operation) -> str:
    """Why an operation may do something that can't be foreseen; "" if it may not."""
    opcode = operation.opcode
    if opcode == "custom-call":
        target = _TARGET.search(operation.attributes)
        name = target.group(1) if target else "?"
        return "" if _LIBRARIES.match(name) else f"it calls {name}, which is not XLA's own"
    if opcode in _QUIET or opcode in _ONCE or _STEADY.fullmatch(opcode):
        return ""
    return f"the effect of zeros on its {opcode} is not known"


def _waiting(program: _Computations) -> set[str]:
    """The computations in which a collective is, or which call one of these."""
    found: set[str] = set()
    while True:
        more = {
            name
            for name, body in program.items()
            if name not in found
            and any(_STEADY.fullmatch(o.opcode) or found.intersection(o.calls) for o in body)
        }
        if not more:
            return found
        found |= more
