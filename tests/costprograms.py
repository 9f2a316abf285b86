"""Programs as people write them, each with what its devices send, mostly counted by hand.

``python costprograms.py`` compiles them all on 8 CPU devices, and prints what jaxcluster says of
each, and what is counted from XLA's protobuf of it: another reading of another form.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

Built = tuple[Any, tuple[Any, ...]]
F32 = 4  # bytes
PROGRAMS: dict[str, tuple[Callable[[], Built], dict[str, int] | None]] = {}


def program(**sent: int) -> Callable[[Callable[[], Built]], Callable[[], Built]]:
    """What each device sends over each axis (``data_model``: over both); nothing: not by hand."""

    def register(build: Callable[[], Built]) -> Callable[[], Built]:
        known = {axis.replace("_", " x "): count for axis, count in sent.items()}
        PROGRAMS[build.__name__] = build, None if "unknown" in known else known
        return build

    return register


def all_reduced(nbytes: int, ways: int) -> int:
    return 2 * nbytes * (ways - 1) // ways


def mesh(*axes: tuple[str, int]) -> Any:
    import jax

    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    return jax.make_mesh(tuple(sizes), tuple(names), axis_types=auto)


def grid() -> Any:
    return mesh(("data", 4), ("model", 2))


def put(over: Any, shape: tuple[int, ...], *spec: Any) -> Any:
    import jax
    import numpy as np

    sharding = jax.sharding.NamedSharding(over, jax.sharding.PartitionSpec(*spec))
    return jax.device_put(np.ones(shape, np.float32), sharding)


def shard_map(function: Any, over: Any, in_specs: Any, out_specs: Any) -> Any:
    import jax

    return jax.jit(jax.shard_map(function, mesh=over, in_specs=in_specs, out_specs=out_specs))


# --------------------------------------------------------------------------- JAX's guides


@program(data=all_reduced(F32, 4), model=all_reduced(F32, 2))
def sum_of_all() -> Built:
    import jax

    return jax.jit(lambda x: x.sum()), (put(grid(), (16, 64), "data", "model"),)


@program()
def matmul_without_communication() -> Built:
    import jax

    m = grid()
    x, y = put(m, (16, 64), "data", None), put(m, (64, 32), None, "model")
    return jax.jit(lambda x, y: x @ y), (x, y)


@program(model=all_reduced(16 // 4 * 128 * F32, 2))
def contraction_over_model() -> Built:
    import jax

    m = grid()
    x, w = put(m, (16, 64), "data", "model"), put(m, (64, 128), "model", None)
    return jax.jit(lambda x, w: x @ w), (x, w)


@program(data_model=all_reduced(F32, 8))
def psum_of_a_shard_map() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def total(x: Any) -> Any:
        return jax.lax.psum(x.sum(), ("data", "model"))

    m = grid()
    return shard_map(total, m, P("data", "model"), P()), (put(m, (16, 64), "data", "model"),)


@program(data=3 * 4 * 64 * F32)
def all_gather() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def gather(x: Any) -> Any:
        return jax.lax.all_gather(x, "data", axis=0, tiled=True).sum() * jax.numpy.ones((1, 1))

    m = grid()
    x = put(m, (16, 64), "data", None)
    return shard_map(gather, m, P("data", None), P("data", "model")), (x,)


@program(data=16 * 64 * F32 * 3 // 4)
def reduce_scatter() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def scatter(x: Any) -> Any:
        return jax.lax.psum_scatter(x, "data", tiled=True)

    m = grid()
    return shard_map(scatter, m, P(None, "model"), P("data", "model")), (
        put(m, (16, 128), None, "model"),
    )


@program(model=4 * 32 * F32 // 2)
def all_to_all() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def exchange(x: Any) -> Any:
        return jax.lax.all_to_all(x, "model", 1, 0, tiled=True)

    m = grid()
    return shard_map(exchange, m, P("data", "model"), P(("data", "model"), None)), (
        put(m, (16, 64), "data", "model"),
    )


@program(unknown=1)
def resharded() -> Built:
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    m = grid()

    def other(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(m, P("model", "data")))

    return jax.jit(other), (put(m, (16, 64), "data", "model"),)


# --------------------------------------------------------------------------- training


def _loss(w: Any, x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.mean(jnp.tanh(x @ w) ** 2)


@program(data=all_reduced(64 * 64 * F32, 4))
def data_parallel_gradient() -> Built:
    import jax

    m = grid()
    return jax.jit(jax.grad(_loss)), (put(m, (64, 64)), put(m, (16, 64), "data", None))


@program(unknown=1)
def fsdp() -> Built:
    import jax

    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(_loss)(w, x)
        return w - 0.1 * gradient, loss

    m = mesh(("data", 8))
    w, x = put(m, (64, 64), "data", None), put(m, (16, 64), "data", None)
    return jax.jit(step, donate_argnums=0), (w, x)


@program(data=7 * 8 * 64 * F32 + 64 * 64 * F32 * 7 // 8)
def fsdp_by_hand() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def step(w: Any, x: Any) -> Any:
        whole = jax.lax.all_gather(w, "data", tiled=True)
        # Of the local loss alone: a gradient by the gathered one would be summed twice.
        gradient = x.T @ (x @ whole)
        return w - jax.lax.psum_scatter(gradient, "data", tiled=True)

    m = mesh(("data", 8))
    w, x = put(m, (64, 64), "data", None), put(m, (16, 64), "data", None)
    return shard_map(step, m, (P("data", None), P("data", None)), P("data", None)), (w, x)


def megatron(unroll: int) -> Built:
    import jax

    def forward(layers: Any, x: Any) -> Any:
        def layer(x: Any, ws: Any) -> Any:
            return jax.numpy.tanh(x @ ws[0]) @ ws[1], None

        return jax.lax.scan(layer, x, layers, unroll=unroll)[0]

    m = grid()
    layers = put(m, (5, 64, 128), None, None, "model"), put(m, (5, 128, 64), None, "model", None)
    return jax.jit(forward), (layers, put(m, (16, 64), "data", None))


@program(model=5 * all_reduced(4 * 64 * F32, 2))
def megatron_layers_in_a_scan() -> Built:
    return megatron(unroll=1)


@program(model=5 * all_reduced(4 * 64 * F32, 2))
def megatron_layers_unrolled() -> Built:
    return megatron(unroll=5)


@program(unknown=1)
def gradient_accumulation() -> Built:
    import jax

    def step(w: Any, batches: Any) -> Any:
        def micro(total: Any, x: Any) -> Any:
            return total + jax.grad(_loss)(w, x), None

        return jax.lax.scan(micro, w * 0, batches)[0]

    m = grid()
    return jax.jit(step), (put(m, (64, 64)), put(m, (4, 16, 64), None, "data", None))


@program(unknown=1)
def attention_by_heads() -> Built:
    import jax

    def attend(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q, k, v = (jax.numpy.einsum("bsd,dhf->bshf", x, w) for w in (wq, wk, wv))
        scores = jax.nn.softmax(jax.numpy.einsum("bshf,bthf->bhst", q, k))
        return jax.numpy.einsum("bhst,bthf,hfd->bsd", scores, v, wo)

    m = grid()
    x = put(m, (8, 16, 32), "data", None, None)
    ws = [put(m, (32, 4, 8), None, "model", None) for _ in range(3)]
    return jax.jit(attend), (x, *ws, put(m, (4, 8, 32), "model", None, None))


@program(unknown=1)
def batch_norm() -> Built:
    import jax

    def norm(x: Any) -> Any:
        mean = x.mean(0)
        return (x - mean) / jax.numpy.sqrt(((x - mean) ** 2).mean(0) + 1e-5)

    return jax.jit(norm), (put(grid(), (16, 64), "data", "model"),)


@program(unknown=1)
def momentum_by_optax() -> Built:
    import jax
    import optax

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(w: Any, state: Any, x: Any) -> Any:
        updates, state = optimizer.update(jax.grad(_loss)(w, x), state, w)
        return optax.apply_updates(w, updates), state

    m = grid()
    w = put(m, (64, 64), None, "model")
    return jax.jit(step), (w, jax.jit(optimizer.init)(w), put(m, (16, 64), "data", None))


# --------------------------------------------------------------------------- rings and pipelines


@program(data=7 * 4 * 32 * F32)
def ring_in_a_loop() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def ring(x: Any) -> Any:
        pairs = [(at, (at + 1) % 4) for at in range(4)]
        return jax.lax.fori_loop(0, 7, lambda i, x: jax.lax.ppermute(x, "data", pairs), x)

    m = grid()
    spec = P("data", "model")
    return shard_map(ring, m, spec, spec), (put(m, (16, 64), "data", "model"),)


@program(stage=11 * 2 * 16 * F32)
def pipeline() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def stages(w: Any, micro: Any) -> Any:
        at = jax.lax.axis_index("stage")
        pairs = [(one, one + 1) for one in range(7)]

        def tick(carried: Any, number: Any) -> Any:
            first = micro[jax.numpy.minimum(number, 3)]
            out = jax.numpy.tanh(jax.numpy.where(at == 0, first, carried) @ w[0])
            return jax.lax.ppermute(out, "stage", pairs), out

        nothing = jax.lax.pcast(micro[0] * 0, "stage", to="varying")
        return jax.lax.scan(tick, nothing, jax.numpy.arange(11))[1][-4:]

    m = mesh(("stage", 8))
    ws, micro = put(m, (8, 16, 16), "stage", None, None), put(m, (4, 2, 16))
    return shard_map(stages, m, (P("stage", None, None), P()), P("stage")), (ws, micro)


@program(unknown=1)
def ragged_rows() -> Built:
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    m = grid()

    def uneven(x: Any) -> Any:
        cut = jax.lax.with_sharding_constraint(x[:10] * 2, NamedSharding(m, P("data")))
        return cut.sum(0)

    return jax.jit(uneven), (put(m, (16, 64), "data", None),)


@program(model=6 * 4 * 32 * F32 // 2)
def experts_in_a_scan() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def layers(x: Any, ws: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            to = jax.lax.all_to_all(x, "model", 1, 0, tiled=True)
            out = jax.lax.all_to_all(jax.numpy.tanh(to * w), "model", 0, 1, tiled=True)
            return out, None

        return jax.lax.scan(layer, x, ws)[0]

    m = grid()
    spec = P("data", "model")
    x, ws = put(m, (16, 64), "data", "model"), put(m, (3,))
    return shard_map(layers, m, (spec, P()), spec), (x, ws)


@program(data=all_reduced(4 * 64 * F32, 4))
def loop_of_unknown_turns() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def until(x: Any) -> Any:
        def turn(x: Any) -> Any:
            return jax.lax.pcast(jax.lax.psum(x, "data") / 8, "data", to="varying")

        return jax.lax.while_loop(lambda x: x[0, 0] > 0.1, turn, x)

    m = mesh(("data", 4), ("other", 2))
    return shard_map(until, m, P("data"), P("data")), (put(m, (16, 64), "data"),)


@program(data=all_reduced(4 * 64 * F32, 4))
def branch_with_a_sum() -> Built:
    import jax
    from jax.sharding import PartitionSpec as P

    def either(take: Any, x: Any) -> Any:
        def summed(x: Any) -> Any:
            return jax.lax.pcast(jax.lax.psum(x, "data"), "data", to="varying")

        return jax.lax.cond(take[0] > 0, summed, lambda x: x * 2, x)

    m = mesh(("data", 4), ("other", 2))
    x, take = put(m, (16, 64), "data"), put(m, (1,))
    return shard_map(either, m, (P(), P("data")), P("data")), (take, x)


# --------------------------------------------------------------------------- another way to count

KINDS = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
)  # fmt: skip
# By the number of an element type in xla_data.proto; what is not here is not used.
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 16: 2}


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protobuf message, without its schema."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        tag = number()
        match tag & 7:
            case 0:
                yield tag >> 3, number()
            case 1:
                yield tag >> 3, data[at : at + 8]
                at += 8
            case 2:
                size = number()
                yield tag >> 3, data[at : at + size]
                at += size
            case 5:
                yield tag >> 3, data[at : at + 4]
                at += 4


def numbers(value: Any) -> list[int]:
    """A repeated number, packed or not."""
    if isinstance(value, int):
        return [value]
    found, shift, part = [], 0, 0
    for byte in value:
        part |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(part)
            part = shift = 0
    return found


def nbytes(shape: bytes) -> int:
    """xla.ShapeProto: element_type = 2, dimensions = 3, tuple_shapes = 4."""
    size, dims, inner = 0, [], 0
    for field, value in fields(shape):
        if field == 2:
            size = SIZES.get(value, 0)
        elif field == 3:
            dims += numbers(value)
        elif field == 4:
            inner += nbytes(value)
    for side in dims:
        size *= side
    return size + inner


def count(module: bytes) -> dict[str, int]:
    """Bytes that each device gives to collectives of each kind, loops as often as they turn.

    xla.HloModuleProto: computations = 3, entry_computation_id = 6.
    HloComputationProto: instructions = 2, id = 5.
    HloInstructionProto: opcode = 2, shape = 3, id = 35, operand_ids = 36, called_computation_ids =
    38, backend_config = 43.
    """
    entry, bodies = 0, {}
    for field, value in fields(module):
        if field == 6:
            entry = value
        elif field == 3:
            lines, own = [], 0
            for inner, body in fields(value):
                if inner == 2:
                    lines.append(body)
                elif inner == 5:
                    own = body
            bodies[own] = lines
    totals = dict.fromkeys(KINDS, 0)

    def visit(computation: int, times: int) -> None:
        shapes, parsed = {}, []
        for line in bodies[computation]:
            opcode, shape, own, operands, called, config = "", b"", 0, [], [], b""
            for field, value in fields(line):
                match field:
                    case 2:
                        opcode = value.decode()
                    case 3:
                        shape = value
                    case 35:
                        own = value
                    case 36:
                        operands += numbers(value)
                    case 38:
                        called += numbers(value)
                    case 43:
                        config = value
            shapes[own] = nbytes(shape)
            parsed.append((opcode, operands, called, config))
        for opcode, operands, called, config in parsed:
            if opcode in KINDS:
                totals[opcode] += times * sum(shapes[one] for one in operands)
            turns = 1
            if opcode == "while" and b"known_trip_count" in config:
                turns = int(json.loads(config)["known_trip_count"]["n"])
            for one in called:
                visit(one, times * turns)

    visit(entry, 1)
    return {kind: total for kind, total in totals.items() if total}


def main() -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    from jaxcluster.engine import cost

    for name, (build, _) in PROGRAMS.items():
        function, args = build()
        call = cost.Call(function, args, {})
        told = cost._compiled(call, is_first=True, rank=0, cells={})
        told["meshes"] = [dataclasses.asdict(one) for one in told["meshes"]]
        told["arguments"] = [dataclasses.asdict(one) for one in told["arguments"]]
        compiled = function.lower(*args).compile()
        (module,) = compiled.runtime_executable().hlo_modules()
        counted = count(module.as_serialized_hlo_module_proto())
        analysis = compiled.memory_analysis()
        held = {
            "arguments": analysis.argument_size_in_bytes,
            "outputs": analysis.output_size_in_bytes,
            "temporaries": analysis.temp_size_in_bytes,
        }
        print(json.dumps({"name": name, "told": told, "counted": counted, "held": held}))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
