"""The cost of a cell that does nothing: ``%%spmd`` against ``%%px`` and against a local cell.

All three run in turn in one Jupyter kernel, each as a cell of its own: a jaxcluster of n ranks and
a stock ipyparallel cluster of n engines are connected to it at once. A fourth cell measures
``Cluster.run`` from within, to tell its part from the kernel's and the magic's.
"""

from __future__ import annotations

import argparse

from harness import Kernel, median, ratio, sandbox, table

WITHIN = "within Cluster.run"

CELLS = {
    "local cell": "pass",
    "%%spmd": "%%spmd\npass",
    "%%px": "%%px\npass",
    WITHIN: """\
_began = _clock()
_record = _cluster.run("pass", show=False)
print(_clock() - _began, max(reply.seconds for reply in _record.replies.values()))
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=4, help="ranks and engines (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=150, help="cells of a kind (%(default)s)")
    args = parser.parse_args()
    took: dict[str, list[float]] = {name: [] for name in CELLS}
    run: list[float] = []
    rank: list[float] = []
    with sandbox(), Kernel() as kernel:
        kernel.run("%load_ext jaxcluster")
        kernel.run(f"%jaxcluster start -n {args.n}")
        kernel.run("import jaxcluster\nfrom time import perf_counter as _clock")
        kernel.run("_cluster = jaxcluster.current()")
        kernel.open_panel()
        kernel.run("import ipyparallel\n_stock = ipyparallel.Cluster(log_level=40)")
        kernel.run(f"_client = _stock.start_and_connect_sync(n={args.n}, activate=True)")
        for number in range(-10, args.rounds):
            first = number % len(CELLS)  # each follows on each: what one leaves to do, others feel
            for name in [*CELLS, *CELLS][first : first + len(CELLS)]:
                cell = kernel.run(CELLS[name])
                if number >= 0:
                    took[name].append(cell.seconds * 1e3)
                    if name == WITHIN:
                        within = cell.text.split()
                        run.append(float(within[0]) * 1e3)
                        rank.append(float(within[1]) * 1e3)
        kernel.run("%jaxcluster stop --all\n_client.close()\n_stock.stop_cluster_sync()")
        del took[WITHIN]
        local, spmd, px = (median(values) for values in took.values())
        rows = []
        for name, values in (
            *took.items(),
            (f"of %%spmd: {WITHIN}", run),
            ("of that: within the slowest rank", rank),
        ):
            ordered = sorted(values)
            ends = (ordered[len(ordered) // 10], ordered[-(len(ordered) // 10) - 1])
            cells_ms = [f"{v:.2f}" for v in (median(values), *ends)]
            rows.append([name, *cells_ms, f"{median(values) / local:.2f}"])
        table(["no-op cell, ms", "p50", "p10", "p90", "of local"], rows)
        ratio(f"%%spmd / %%px at n = {args.n}", spmd / px, 0.45)
        print(f"%%spmd / local cell: {spmd / local:.2f}x ({spmd - local:.2f} ms more)")


if __name__ == "__main__":
    main()
