"""How long it takes to enumerate, featurise and score 100,000 candidates, and the memory it needs.

    python benchmarks/ranking_speed.py

Each kind of root op runs in a process of its own, so that the peak memory is its own. The baseline is the
process after its imports.
"""

from __future__ import annotations

import multiprocessing
import resource
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from costmodel.problem import Machine, Operand, RootOp

COUNT = 100_000

PARALLEL, REDUCTION = "parallel", "reduction"

CONV1D = RootOp(
    "conv",
    "linalg.generic",
    (8, 512, 508, 256, 5),
    (PARALLEL, PARALLEL, PARALLEL, REDUCTION, REDUCTION),
    (
        Operand("f32", (8, 256, 512), ((1, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 1, 0, 1))),
        Operand("f32", (512, 256, 5), ((0, 1, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1))),
        Operand("f32", (8, 512, 508), ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0)), output=True),
    ),
    body_ops=2,
    body={"arith.mulf": 1, "arith.addf": 1},
)
MATMUL = RootOp(
    "matmul",
    "linalg.matmul",
    (1024, 768, 3072),
    (PARALLEL, PARALLEL, REDUCTION),
    (
        Operand("f32", (1024, 3072), ((1, 0, 0), (0, 0, 1))),
        Operand("f32", (3072, 768), ((0, 0, 1), (0, 1, 0))),
        Operand("f32", (1024, 768), ((1, 0, 0), (0, 1, 0)), output=True),
    ),
    body_ops=2,
    body={"arith.mulf": 1, "arith.addf": 1},
)
DEFAULTS = {
    "conv1d 8x512x508x256x5": (CONV1D, "[8, 32, 4, 0, 0]", "[1, 1, 4, 0, 0]", "[0, 0, 0, 1, 16]"),
    "matmul 1024x768x3072": (MATMUL, "[64, 64, 0]", "[8, 16, 0]", "[0, 0, 16]"),
}


def measure(name: str, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    """Rank once in this process and report seconds and megabytes."""
    from costmodel.ranker import Ranker
    from tuner.spaces.base import space_for

    root, distribution, parallel, reduction = DEFAULTS[name]
    config = (
        f"#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = {distribution}, "
        f"vector_common_parallel = {parallel}, vector_reduction = {reduction}>, translation_info = "
        "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )
    machine = Machine(cores=2, vector_bits=512, vector_registers=32)
    space = space_for("llvm-cpu", root, machine, config)
    assert space is not None
    ranker = Ranker(root, machine, 0)
    # A few records, so that the learned model takes part in the scoring and not only the prior.
    few = space.enumerate(64, 1)
    ranker.observe(few, np.random.default_rng(0).normal(size=len(few)))
    ranker.refit()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    table = space.enumerate(COUNT, 0)
    enumerated = time.perf_counter()
    scores, _ = ranker.rank(table)
    ranked = time.perf_counter()
    assert np.isfinite(scores).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    queue.put((name, len(table), enumerated - began, ranked - enumerated, (peak - before) / 1024, peak / 1024))


def main() -> None:
    """Print the table."""
    table = Table("root op", "candidates", "enumerate", "featurise and score", "together", "memory added", "peak")
    context = multiprocessing.get_context("spawn")
    for name in DEFAULTS:
        queue = context.Queue()
        process = context.Process(target=measure, args=(name, queue))
        process.start()
        _, n, enumerate_s, rank_s, added, peak = queue.get()
        process.join()
        table.add_row(
            name,
            f"{n:,}",
            f"{enumerate_s:.2f} s",
            f"{rank_s:.2f} s",
            f"{enumerate_s + rank_s:.2f} s",
            f"{added:.0f} MB",
            f"{peak:.0f} MB",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
