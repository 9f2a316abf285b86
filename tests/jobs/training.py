"""A training job of plain processes: a decoder of Flax, AdamW of Optax, Orbax, and Grain.

    training.py FAULT STEP STEPS FOLDER

Process 1 makes the FAULT at STEP of STEPS: it leaves the step out (``skip``), has no more batches
(``ends``), ``raises``, ``dies``, has a batch of another ``shape``, or another learning ``rate``.
``none``: nothing happens. ``unchecked``: neither, and without agreement. Checkpoints go to FOLDER.
Each line on stderr begins with the time and the process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxcluster

WORDS, LENGTH, WIDTH, HEADS, LAYERS = 64, 16, 32, 4, 1
ROWS = 4  # of a batch, on each process
RATE = 1e-3


class Stamped:
    """stderr, a line at a time."""

    def __init__(self, rank: int) -> None:
        self.rank, self.line = rank, ""

    def write(self, text: str) -> int:
        *lines, self.line = (self.line + text).split("\n")
        for line in lines:
            os.write(2, f"{time.time():.3f} [{self.rank}] {line}\n".encode())
        return len(text)

    def flush(self) -> None:
        pass


def dense(rngs: nnx.Rngs, inner: int, outer: int, spec: tuple[str | None, str | None]) -> Any:
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), spec)
    return nnx.Linear(inner, outer, use_bias=False, kernel_init=init, rngs=rngs)


class Layer(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm, self.second = nnx.RMSNorm(WIDTH, rngs=rngs), nnx.RMSNorm(WIDTH, rngs=rngs)
        self.heads = dense(rngs, WIDTH, 3 * WIDTH, ("data", None))
        self.mix = dense(rngs, WIDTH, WIDTH, (None, "data"))
        self.up = dense(rngs, WIDTH, 4 * WIDTH, ("data", None))
        self.down = dense(rngs, 4 * WIDTH, WIDTH, (None, "data"))

    def __call__(self, x: Any) -> Any:
        shape = (*x.shape[:2], 3, HEADS, WIDTH // HEADS)
        query, key, value = jnp.moveaxis(self.heads(self.norm(x)).reshape(shape), 2, 0)
        seen = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix(seen.reshape(x.shape))
        return x + self.down(jax.nn.gelu(self.up(self.second(x))))


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.with_partitioning(nnx.initializers.normal(0.02), (None, "data"))
        self.embedding = nnx.Embed(WORDS, WIDTH, embedding_init=init, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])

    def __call__(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.embedding.attend(x)


def by_rate() -> optax.GradientTransformationExtraArgs:
    """The last step of AdamW, with the rate that the host gives to each launch."""

    def update(updates: Any, state: Any, params: Any = None, *, rate: Any, **_: Any) -> Any:
        return jax.tree.map(lambda one: -rate * one, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


def spread(made: Any) -> None:
    """Put parameters, and the optimizer's moments, on the devices as their layers say."""
    state = nnx.state(made)
    nnx.update(made, jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state)))


@nnx.jit
def create() -> tuple[Decoder, nnx.Optimizer[Decoder]]:
    model = Decoder(nnx.Rngs(0))
    adamw = optax.chain(optax.scale_by_adam(), optax.add_decayed_weights(1e-4), by_rate())
    made = model, nnx.Optimizer(model, adamw, wrt=nnx.Param)
    spread(made)
    return made


@nnx.jit
def train(model: Decoder, optimizer: nnx.Optimizer[Decoder], tokens: Any, rate: Any) -> Any:
    def loss(model: Decoder) -> Any:
        found = model(tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(found, tokens[:, 1:]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients, rate=rate)
    spread((model, optimizer))
    return value


def batches(rank: int, size: int) -> Any:
    """This process's own rows."""
    text = np.random.default_rng(0).integers(0, WORDS, (4096, LENGTH + 1), dtype=np.int32)
    rows = grain.MapDataset.source(text).shuffle(seed=0)[rank::size].repeat()
    return iter(rows.batch(ROWS).to_iter_dataset(grain.ReadOptions(num_threads=1)))


def main(fault: str, at: int, steps: int, folder: str) -> None:
    if address := os.environ.get("COORDINATOR"):  # MPICH's are no variables that JAX knows
        size, rank = int(os.environ["PMI_SIZE"]), int(os.environ["PMI_RANK"])
        jax.distributed.initialize(address, size, rank)
    else:
        jax.distributed.initialize()
    rank, size = jax.process_index(), jax.process_count()
    sys.stderr = Stamped(rank)  # type: ignore[assignment]
    if fault != "unchecked":
        assert jaxcluster.agree()
    mesh = Mesh(np.array(jax.devices()), ("data",))  # make_mesh refuses CPUs of several hosts
    rows = NamedSharding(mesh, P("data"))
    manager = ocp.CheckpointManager(folder, options=ocp.CheckpointManagerOptions(max_to_keep=1))
    data, began, value = batches(rank, size), time.monotonic(), jnp.nan
    with jax.set_mesh(mesh):
        model, optimizer = create()
        for step in range(1, steps + 1):
            batch, rate = next(data), np.float32(RATE * (1 + np.cos(np.pi * step / steps)) / 2)
            if rank == 1 and step == at and fault not in ("none", "unchecked"):
                if fault != "ends":  # it may still launch what the others wait for
                    print(f"makes {fault}", file=sys.stderr)
                match fault:
                    case "skip":
                        continue
                    case "ends":
                        break
                    case "raises":
                        raise ValueError("a bad batch")
                    case "dies":
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "shape":
                        batch = batch[:, :-1]
                    case "rate":
                        rate *= 2
            tokens = jax.make_array_from_process_local_data(rows, batch)
            value = train(model, optimizer, tokens, rate)
            if step == max(1, at // 2):  # what comes before is compiled, and a checkpoint is there
                manager.save(step, args=ocp.args.StandardSave(nnx.state(model)))
                jax.block_until_ready(value)
                began = time.monotonic()
    took = (time.monotonic() - began) / max(1, steps - at // 2)
    print(f"loss {float(value):.4f}, {1000 * took:.2f} ms for a step", file=sys.stderr)
    manager.wait_until_finished()
    if fault == "ends":
        print("makes ends", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
