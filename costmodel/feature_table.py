"""The features' names, meanings and units: one list that the code fills and the documentation shows."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.candidates import PIPELINES
from costmodel.problem import KINDS

SCHEMA = 1
"""Raised whenever a feature changes its meaning under the same name."""

ROLES = {"out": "the result", "vin": "the vector input", "oin": "the other input"}
"""Operands that features speak of (see :class:`costmodel.access.Access`)."""

LEVELS = {
    "vec": "one vector op",
    "panel": "one vector op's parallel tile over the whole reduction inside the cache tile",
    "cache": "one cache tile",
    "dist": "one workgroup",
}

_BUDGET = {"vec": "L1", "panel": "L1", "cache": "L2", "dist": "L2"}


@dataclass(frozen=True)
class Feature:
    """One column of the feature matrix."""

    name: str
    meaning: str
    unit: str


def _problem() -> list[Feature]:
    rows = [
        Feature("op.points", "size of the iteration space", "log2 points"),
        Feature("op.parallel", "size of the parallel part", "log2 points"),
        Feature("op.reduction", "size of the reduction part", "log2 points"),
        Feature("op.window", "size of the filter windows", "log2 points"),
        Feature("op.simd", "size of the loop along which the result is contiguous", "log2 elements"),
        Feature("op.loops", "loops longer than 1", "count"),
        Feature("op.intensity", "arithmetic ops per byte of all operands", "log2 ops/byte"),
        Feature("op.body", "arithmetic ops per point", "log2 ops"),
        Feature("op.math", "calls of the math library (exp, tanh, ...) per point", "count"),
        Feature("op.producers", "ops fused before the root op", "count"),
        Feature("op.consumers", "ops fused after the root op", "count"),
        Feature("op.operands", "operands", "count"),
        Feature("op.in_bits", "bits of the vector input's elements", "bits"),
        Feature("op.out_bits", "bits of the result's elements", "bits"),
        Feature("op.bytes_l2", "all operands over L2", "log2 ratio"),
        Feature("op.bytes_l3", "all operands over L3", "log2 ratio"),
    ]
    for role, what in ROLES.items():
        rows.append(Feature(f"op.{role}_bytes", f"size of {what}", "log2 bytes"))
        rows.append(
            Feature(
                f"op.{role}_simd_stride",
                f"step of {what} along the result's contiguous loop",
                "log2(1+elements)",
            )
        )
    rows += [Feature(f"kind.{kind}", f"the root op is of kind {kind}", "0/1") for kind in KINDS]
    return rows


def _machine() -> list[Feature]:
    return [
        Feature("machine.cores", "cores", "count"),
        Feature("machine.lanes", "elements of the widest operand type per vector register", "count"),
        Feature("machine.registers", "vector registers", "count"),
        Feature("machine.l1", "L1 data cache", "log2 bytes"),
        Feature("machine.l2", "L2 cache", "log2 bytes"),
        Feature("machine.l3", "L3 cache", "log2 bytes"),
    ]


def _config() -> list[Feature]:
    rows = [Feature(f"pipeline.{name}", f"the pipeline is {name}", "0/1") for name in PIPELINES]
    rows += [
        Feature("peeling", "remainders are peeled", "0/1"),
        Feature("levels.cache_parallel", "parallel loops tiled for caches", "count"),
        Feature("levels.cache_reduction", "reduction loops tiled for caches", "count"),
        Feature("levels.inner", "parallel loops tiled inside the reduction", "count"),
        Feature("levels.untiled", "long loops that no vector level tiles", "count"),
    ]
    return rows


def _tiles() -> list[Feature]:
    rows = []
    for level, what in (("dist", LEVELS["dist"]), ("cache", LEVELS["cache"]), ("vec", LEVELS["vec"])):
        rows.append(Feature(f"tile.{level}_simd", f"{what}: the result's contiguous loop", "log2 elements"))
        rows.append(Feature(f"tile.{level}_parallel", f"{what}: the other parallel loops", "log2 points"))
        if level != "dist":
            rows.append(Feature(f"tile.{level}_reduction", f"{what}: reduction loops but windows", "log2 points"))
            rows.append(Feature(f"tile.{level}_window", f"{what}: filter windows", "log2 points"))
    rows += [
        Feature("tile.vec_innermost", "vector op: the innermost reduction loop", "log2 elements"),
        Feature("tile.vec_widest", "vector op: largest tile of any other parallel loop", "log2 elements"),
        Feature("tile.vec_blocked", "vector op: parallel loops with a tile above 1", "count"),
    ]
    return rows


def _memory() -> list[Feature]:
    rows = []
    for level, what in LEVELS.items():
        for role, operand in ROLES.items():
            rows.append(
                Feature(
                    f"bytes.{level}_{role}",
                    f"cache lines that {what} touches of {operand}, over {_BUDGET[level]}",
                    "log2 ratio",
                )
            )
        rows.append(Feature(f"bytes.{level}", f"cache lines that {what} touches, over {_BUDGET[level]}", "log2 ratio"))
    for role, operand in ROLES.items():
        rows.append(Feature(f"reuse.vec_{role}", f"points per element of {operand} in a vector op", "log2 ratio"))
        rows.append(Feature(f"reuse.dist_{role}", f"points per element of {operand} in a workgroup", "log2 ratio"))
    for cache in ("l1", "l2", "l3"):
        rows.append(Feature(f"traffic.{cache}", f"bytes moved into {cache.upper()} per point", "log2 bytes"))
        rows.append(
            Feature(
                f"traffic.{cache}_excess",
                f"bytes moved into {cache.upper()} over the operands' size",
                "log2 ratio",
            )
        )
    rows.append(Feature("stack", "bytes of the result in a cache tile, over the 32 KiB that IREE allows", "log2 ratio"))
    return rows


def _vector() -> list[Feature]:
    rows = [
        Feature("vector.points", "points of a vector op", "log2 points"),
        Feature("vector.limit", "bytes of a vector op's points over the most that IREE allows", "log2 ratio"),
        Feature("vector.width", "elements along the loop that fills the registers", "log2 elements"),
        Feature("vector.natives", "native vectors that the width takes", "log2 vectors"),
        Feature("vector.fill", "width over the lanes of those native vectors", "ratio"),
        Feature("vector.remainder", "lanes used in the last native vector, 0 if all", "lanes"),
        Feature("vector.along_result", "registers run along the result's contiguous loop", "0/1"),
        Feature("vector.across", "registers run along a reduction", "0/1"),
        Feature("vector.scalar", "no loop fills the registers", "0/1"),
        Feature("vector.instructions", "vector instructions per multiply-add of a vector op", "log2 count"),
        Feature("vector.per_point", "vector instructions per point", "log2 ratio"),
        Feature("vector.accumulators", "native vectors of results kept over the reduction", "log2(1+vectors)"),
        Feature("vector.pressure", "registers wanted over registers there are", "log2 ratio"),
        Feature("vector.spill", "registers wanted beyond those there are", "log2(1+vectors)"),
        Feature("vector.chain", "dependent multiply-adds per result in a vector op", "log2 count"),
        Feature("vector.windowed", "a filter window and the loop it slides over are both vectorised", "0/1"),
        Feature("vector.transposed", "results are transposed around each vector op", "0/1"),
        Feature("vector.loads_per_point", "memory instructions per point", "log2 ratio"),
        Feature("vector.shuffles_per_point", "shuffled elements per point", "log2(1e-3+ratio)"),
    ]
    for role, operand in ROLES.items():
        rows += [
            Feature(f"access.{role}_run", f"neighbouring elements of {operand} in a vector op", "log2 elements"),
            Feature(f"access.{role}_fill", f"those over whole native vectors for {operand}", "ratio"),
            Feature(f"access.{role}_unit", f"lanes step by one element of {operand}", "0/1"),
            Feature(f"access.{role}_broadcast", f"lanes share an element of {operand}", "0/1"),
            Feature(f"access.{role}_stride", f"step of {operand} from lane to lane", "log2(1+elements)"),
        ]
    return rows


def _remainders() -> list[Feature]:
    return [
        Feature("rest.dist", "loops whose workgroups leave a remainder", "count"),
        Feature("rest.cache", "loops whose cache tiles leave a remainder", "count"),
        Feature("rest.vec", "loops whose vector tiles leave a remainder", "count"),
        Feature("rest.dynamic", "loops whose vector tile has no static size", "count"),
        Feature("rest.masked", "those of them that are masked", "count"),
        Feature("rest.masked_contiguous", "a masked loop is contiguous in some operand", "0/1"),
        Feature("rest.masked_reduction", "a masked loop is a reduction", "0/1"),
        Feature("rest.peeled", "loops whose remainder is peeled", "count"),
        Feature("rest.part", "points outside full vector tiles", "ratio"),
        Feature("rest.padded", "points with whole vector ops for remainders over points there are", "log2 ratio"),
    ]


def _loops() -> list[Feature]:
    return [
        Feature("groups.count", "workgroups", "log2 count"),
        Feature("groups.per_core", "workgroups per core", "log2 count"),
        Feature("groups.imbalance", "the busiest core's workgroups over the mean", "log2 ratio"),
        Feature("groups.points", "points of a workgroup", "log2 points"),
        Feature("groups.cycles", "estimated cycles of a workgroup", "log2 cycles"),
        Feature("trips.vector_ops", "vector ops in all", "log2 count"),
        Feature("trips.group", "vector ops of a workgroup", "log2 count"),
        Feature("trips.reduction", "vector ops along the reduction inside a cache tile", "log2 count"),
    ]


def _prior() -> list[Feature]:
    return [
        Feature("prior.total", "the analytic prior: estimated time", "ln cycles"),
        Feature("prior.ideal", "estimated time over the least that the arithmetic takes", "log2 ratio"),
        Feature("prior.step", "estimated cycles of a vector op per instruction", "log2 cycles"),
        Feature("prior.compute", "estimated compute cycles per point", "log2 cycles"),
        Feature("prior.memory", "estimated memory over compute cycles", "log2 ratio"),
        Feature("prior.overhead", "estimated overhead over all", "ratio"),
    ]


FEATURES: tuple[Feature, ...] = (
    *_problem(),
    *_machine(),
    *_config(),
    *_tiles(),
    *_memory(),
    *_vector(),
    *_remainders(),
    *_loops(),
    *_prior(),
)
"""All features, in the order of the matrix's columns."""

FEATURE_NAMES: tuple[str, ...] = tuple(feature.name for feature in FEATURES)
"""Names of the columns of :func:`costmodel.features.features`."""


def markdown_table() -> str:
    """Write all features as one Markdown table."""
    rows = ["| name | meaning | unit |", "| --- | --- | --- |"]
    rows += [f"| `{f.name}` | {f.meaning} | {f.unit} |" for f in FEATURES]
    return "\n".join(rows) + "\n"
