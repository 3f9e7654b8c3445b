"""Measuring: right, wrong, slow, crashing and hanging candidates on the real runtime; whole programs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.conftest import MATMUL
from tests.tuner.test_compiling import FLAGS, GOOD, config
from tests.tuner.test_steadiness import busy_processes
from tuner.compiling import CompileJob, CompilePool
from tuner.dispatch import instantiate, parse_dispatch
from tuner.errors import TuneError, UsageError
from tuner.measuring import Measurer
from tuner.program_timing import compare_programs
from tuner.runners import BENCHMARK_MODULE
from tuner.task import Dispatch, Slot
from tuner.toolchain import compile_program
from tuner.workers.conditions import PLAIN, choices, nearest
from tuner.workers.device_memory import TaskMemory, merge, ordinary_values, subtract

ENDLESS = """
    %spin0 = arith.constant 0 : index
    %spin1 = arith.constant 1 : index
    %spinN = arith.constant 1000000000000000 : index
    scf.for %spin = %spin0 to %spinN step %spin1 {
      %same = util.optimization_barrier %spin : index
    }
    util.return
"""


@dataclass(frozen=True)
class Bench:
    """A dispatch and what was compiled from it."""

    dispatch: Dispatch
    default: Path
    good: Path
    slow: Path
    wrong: Path
    lazy: Path
    endless: Path
    junk: Path


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("measuring")
    (folder / "matmul.mlir").write_text(MATMUL)
    compile_program(folder / "matmul.mlir", folder / "matmul.vmfb", FLAGS, dump_dir=folder / "dump", timeout_s=120)
    (dump,) = (folder / "dump").glob("*_benchmark.mlir")
    dispatch = parse_dispatch(dump)
    good = instantiate(dispatch, GOOD)
    zero = "arith.constant 0.000000e+00 : f32"
    assert zero in good and good.count("    util.return\n") == 1
    texts = {
        "default": instantiate(dispatch, dispatch.default_config),
        "good": good,
        "slow": instantiate(dispatch, config([1, 1, 0], [1, 1, 0], [0, 0, 1])),
        "wrong": good.replace(zero, "arith.constant 1.000000e+00 : f32"),
        "lazy": good.replace("scf.for %arg2 = %c0 to %0", "scf.for %arg2 = %0 to %0"),
        "endless": good.replace("    util.return\n", ENDLESS),
    }
    with CompilePool(FLAGS, folder / "cache", workers=2) as pool:
        built = {o.key: o for o in pool.compile(CompileJob(k, t) for k, t in texts.items())}
    paths = {key: outcome.path for key, outcome in built.items()}
    assert all(paths.values()), built
    (folder / "junk.vmfb").write_bytes(b"this is no module" * 100)
    return Bench(dispatch, junk=folder / "junk.vmfb", **{k: Path(str(p)) for k, p in paths.items()})


@pytest.fixture(scope="module")
def process() -> Iterator[Measurer]:
    with Measurer("local-task", seed=1) as measurer:
        yield measurer


@pytest.fixture
def measurer(process: Measurer, bench: Bench) -> Measurer:
    process.open(bench.dispatch, bench.default)
    return process


def goes_on(measurer: Measurer, bench: Bench) -> None:
    """Check that an ordinary candidate can be measured."""
    outcome = measurer.trial(bench.good, timeout_s=5)
    assert outcome.status == "ok", outcome


def test_the_default_against_itself(measurer: Measurer, bench: Bench) -> None:
    outcome = measurer.trial(bench.default, timeout_s=5)
    assert outcome.status == "ok" and outcome.message == ""
    assert outcome.ratio is not None and 0.5 < outcome.ratio < 2.0
    assert outcome.ratio_low is not None and outcome.ratio_high is not None
    assert outcome.ratio_low <= outcome.ratio <= outcome.ratio_high
    assert outcome.us is not None and outcome.default_us is not None and outcome.us > 0
    assert outcome.ratio == pytest.approx(outcome.us / outcome.default_us, rel=0.3)
    assert outcome.max_abs_error == 0.0 and outcome.max_rel_error == 0.0
    assert outcome.samples >= 3


def test_the_default_time_is_of_one_run(process: Measurer, bench: Bench) -> None:
    timing = process.open(bench.dispatch, bench.default)
    # 1.7 MFLOP: starting an invocation alone takes 20 us, far more than the batched runs do.
    assert 1.0 < timing.us < 2000.0
    assert timing.spread >= 0


def test_another_order_of_sums_is_right(measurer: Measurer, bench: Bench) -> None:
    outcome = measurer.trial(bench.good, timeout_s=5)
    assert outcome.status == "ok"
    assert outcome.max_rel_error is not None and outcome.max_rel_error < 1e-5


def test_a_wrong_candidate(measurer: Measurer, bench: Bench) -> None:
    outcome = measurer.trial(bench.wrong, timeout_s=5)
    assert outcome.status == "wrong" and outcome.ratio is None
    assert outcome.max_abs_error == pytest.approx(1.0, rel=1e-3)
    assert "allowed 1e-04 for f32" in outcome.message
    goes_on(measurer, bench)


def test_a_candidate_that_writes_nothing_is_wrong(measurer: Measurer, bench: Bench) -> None:
    assert measurer.trial(bench.good, timeout_s=5).status == "ok"
    assert measurer.trial(bench.lazy, timeout_s=5).status == "wrong", "the last one's outputs are not its own"


def test_a_slow_candidate_is_stopped_early(measurer: Measurer, bench: Bench) -> None:
    began = time.monotonic()
    outcome = measurer.trial(bench.slow, timeout_s=5, best_ratio=0.5, budget_s=5)
    assert outcome.status == "ok" and outcome.stopped_early
    assert outcome.ratio is not None and outcome.ratio > 1.5
    assert outcome.samples <= 4
    assert time.monotonic() - began < 2


def test_what_seems_better_runs_in_turn_with_the_best(measurer: Measurer, bench: Bench) -> None:
    # The best so far was disturbed, say, and its ratio is far too high: the same code again must not look better.
    outcome = measurer.trial(bench.good, timeout_s=5, best_ratio=20.0, best_artifact=bench.good)
    assert outcome.ratio == pytest.approx(20.0, rel=0.3)
    assert outcome.ratio_low is not None and outcome.ratio_high is not None
    assert outcome.ratio_low <= outcome.ratio <= outcome.ratio_high


def test_a_file_that_is_no_module(measurer: Measurer, bench: Bench) -> None:
    outcome = measurer.trial(bench.junk, timeout_s=5)
    assert outcome.status == "failed" and outcome.message
    assert measurer.trial(bench.junk.with_name("missing.vmfb"), timeout_s=5).status == "failed"
    goes_on(measurer, bench)


def test_a_hanging_candidate(measurer: Measurer, bench: Bench) -> None:
    before = measurer.pid
    began = time.monotonic()
    outcome = measurer.trial(bench.endless, timeout_s=0.3)
    assert outcome.status == "hung" and outcome.ratio is None
    assert time.monotonic() - began < 5
    goes_on(measurer, bench)
    assert measurer.pid != before


def kill_when_measuring(measurer: Measurer, times: int) -> threading.Thread:
    """Kill the measuring process that there is in 0.3 s, and so often the next one."""

    def work() -> None:
        done = None
        for _ in range(times):
            time.sleep(0.3)
            while (pid := measurer.pid) in (None, done):
                time.sleep(0.05)
            time.sleep(1.0)  # Until the task is open in it and the candidate runs.
            assert pid is not None
            os.kill(pid, signal.SIGSEGV)
            done = pid

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_crashing_candidate(measurer: Measurer, bench: Bench) -> None:
    killer = kill_when_measuring(measurer, 2)
    outcome = measurer.trial(bench.endless, timeout_s=30)
    killer.join()
    assert outcome.status == "crashed" and "SIGSEGV" in outcome.message
    goes_on(measurer, bench)


def test_a_crash_that_was_not_the_candidates(measurer: Measurer, bench: Bench) -> None:
    killer = kill_when_measuring(measurer, 1)
    outcome = measurer.trial(bench.endless, timeout_s=3)
    killer.join()
    assert outcome.status == "hung", "it was tried again"
    goes_on(measurer, bench)


def test_a_process_that_dies_between_trials(measurer: Measurer, bench: Bench) -> None:
    assert measurer.pid is not None
    os.kill(measurer.pid, signal.SIGKILL)
    outcome = measurer.trial(bench.good, timeout_s=5)
    assert outcome.status in ("ok", "crashed")
    goes_on(measurer, bench)


def test_memory_is_bounded(bench: Bench) -> None:
    with Measurer("local-sync", memory_bytes=64 << 20) as measurer:
        huge = Dispatch(**{**vars(bench.dispatch), "buffer_bytes": 1 << 30})
        with pytest.raises(TuneError, match="does not run"):
            measurer.open(huge, bench.default)
        assert measurer.open(bench.dispatch, bench.default).us > 0
        assert measurer.trial(bench.good, timeout_s=5).status == "ok"


def test_a_default_that_does_not_run(process: Measurer, bench: Bench) -> None:
    with pytest.raises(TuneError, match=bench.dispatch.name):
        process.open(bench.dispatch, bench.junk)
    assert process.open(bench.dispatch, bench.default).us > 0


def test_a_device_that_is_not_there(bench: Bench) -> None:
    with Measurer("abacus://7") as measurer, pytest.raises(UsageError, match="abacus"):
        measurer.open(bench.dispatch, bench.default)


def test_no_task_is_open(bench: Bench) -> None:
    with Measurer("local-sync") as measurer, pytest.raises(TuneError, match="no task"):
        measurer.trial(bench.good, timeout_s=5)


def test_the_final_runs_all_in_turn(measurer: Measurer, bench: Bench) -> None:
    everyone = [bench.default, bench.good, bench.wrong, bench.endless, bench.junk, bench.default]
    outcome = measurer.compare(everyone, rounds=9, budget_s=0.5, timeout_s=0.5)
    assert outcome.statuses == ["ok", "ok", "wrong", "hung", "failed", "ok"]
    rounds = len(outcome.times_us[0])
    assert 6 <= rounds <= 9
    assert [len(t) for t in outcome.times_us] == [rounds, rounds, 0, 0, 0, rounds]
    assert 0.5 < np.median(outcome.times_us[5]) / np.median(outcome.times_us[0]) < 2.0
    report = outcome.numerics[2]
    assert report is not None and not report.ok
    goes_on(measurer, bench)


def test_closing_ends_the_process(bench: Bench) -> None:
    measurer = Measurer("local-sync")
    measurer.open(bench.dispatch, bench.default)
    pid = measurer.pid
    measurer.close()
    assert pid is not None and not Path(f"/proc/{pid}").exists()
    goes_on(measurer, bench)
    measurer.close()


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_floats_are_ordinary(dtype: str) -> None:
    values = ordinary_values(10_000, dtype, np.random.default_rng(0)).astype(np.float64)
    assert np.isfinite(values).all()
    assert 0.099 < np.abs(values).min() < 0.12 and 0.95 < np.abs(values).max() <= 1.0
    assert abs(values.mean()) < 0.05


def test_integers_may_be_indices() -> None:
    rng = np.random.default_rng(0)
    for dtype, numpy_type in (("i32", np.int32), ("i64", np.int64), ("index", np.int64)):
        values = ordinary_values(1000, dtype, rng)
        assert values.dtype == numpy_type and set(values.tolist()) == {0, 1, 2, 3}
    assert set(ordinary_values(1000, "i1", rng).tolist()) == {0, 1}
    assert set(ordinary_values(1000, "i8", rng).tolist()) == set(range(-8, 9))


def test_ranges() -> None:
    assert merge([(8, 12), (0, 4), (4, 6), (10, 20), (30, 30)]) == [(0, 6), (8, 20)]
    assert subtract([(0, 10), (20, 30)], [(2, 4), (8, 22)]) == [(0, 2), (4, 8), (22, 30)]
    assert subtract([(0, 10)], [(0, 10)]) == []


def test_the_buffer_is_filled_only_where_slots_are() -> None:
    import iree.runtime as rt

    slots = (
        Slot(64, 256, "f32", read=True, write=False),
        Slot(1 << 29, 64, "bf16", read=True, write=True),
        Slot((1 << 29) + 64, 64, "i8", read=False, write=True),
    )
    before = resident()
    memory = TaskMemory(rt.get_device("local-sync"), 1 << 30, slots, 3)
    assert resident() - before < 100 << 20
    assert memory.bytes.ctypes.data % 64 == 0
    assert memory.typed(slots[1]).dtype == ml_dtypes.bfloat16
    first = memory.bytes[:512].copy(), memory.typed(slots[1]).copy(), memory.typed(slots[2]).copy()
    memory.typed(slots[1])[:] = 5
    memory.typed(slots[2])[:] = 5
    assert memory.inputs_intact()
    memory.keep_reference()
    assert [float(values[0]) for _, values, _, _ in memory.outputs()] == [5.0, 5.0]
    memory.rewrite_inputs()
    assert (memory.typed(slots[1]) == first[1]).all() and (memory.typed(slots[2]) == 5).all()
    memory.restore()
    assert (memory.typed(slots[2]) == first[2]).all()
    memory.typed(slots[0])[3] = 9
    assert not memory.inputs_intact()
    memory.restore_all()
    assert memory.inputs_intact() and (memory.bytes[:512] == first[0]).all()


def test_a_slot_outside_the_buffer() -> None:
    import iree.runtime as rt

    with pytest.raises(ValueError, match="not inside"):
        TaskMemory(rt.get_device("local-sync"), 100, [Slot(64, 64, "f32", read=True, write=False)], 0)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


PROGRAM = """
func.func @main(%a: tensor<4x8xf32>, %s: f32, %h: tensor<8xbf16>) -> (tensor<4x8xf32>, tensor<8xbf16>, f32) {
  %c = arith.constant FACTOR : f32
  %init = tensor.empty() : tensor<4x8xf32>
  %b = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%a : tensor<4x8xf32>) outs(%init : tensor<4x8xf32>) {
    ^bb0(%x: f32, %o: f32):
      %y = arith.mulf %x, %c : f32
      %z = arith.mulf %y, %s : f32
      linalg.yield %z : f32
  } -> tensor<4x8xf32>
  %k = arith.addf %h, %h : tensor<8xbf16>
  %t = arith.mulf %s, %s : f32
  return %b, %k, %t : tensor<4x8xf32>, tensor<8xbf16>, f32
}
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("programs")
    found = {}
    for name, factor in (("same", "2.0"), ("close", "2.000001"), ("wrong", "2.1")):
        (folder / f"{name}.mlir").write_text(PROGRAM.replace("FACTOR", factor))
        found[name] = folder / f"{name}.vmfb"
        compile_program(folder / f"{name}.mlir", found[name], FLAGS, timeout_s=120)
    (folder / "junk.vmfb").write_bytes(b"this is no module" * 100)
    found["junk"] = folder / "junk.vmfb"
    return found


INPUTS = [
    np.linspace(1, 2, 32, dtype=np.float32).reshape(4, 8),
    np.float32(3),
    np.ones(8, ml_dtypes.bfloat16),
]


def test_programs_run_in_turn(programs: dict[str, Path]) -> None:
    names = ["same", "close", "wrong", "junk"]
    found = compare_programs(
        [programs[n] for n in names], "local-task", "main", INPUTS, budget_s=0.3, min_rounds=7, timeout_s=5
    )
    assert [r.ok for r in found.numerics] == [True, True, False, False]
    assert 0 < found.numerics[1].max_rel_error < 1e-5
    assert found.numerics[2].max_abs_error == pytest.approx(0.1 * 3 * 2, rel=1e-3)
    assert "does not run" in found.numerics[3].message
    rounds = len(found.times_us[0])
    assert rounds >= 7 and {len(t) for t in found.times_us} == {rounds}
    assert 0.4 < np.median(found.times_us[1]) / np.median(found.times_us[0]) < 2.5
    assert np.median(found.times_us[3]) == 5e6


def test_a_reference_program_that_does_not_run(programs: dict[str, Path]) -> None:
    with pytest.raises(TuneError, match="main on local-sync failed"):
        compare_programs([programs["junk"]], "local-sync", "main", INPUTS, budget_s=0.1, min_rounds=1, timeout_s=5)
    with pytest.raises(TuneError, match="nothing_such"):
        compare_programs(
            [programs["same"]], "local-sync", "nothing_such", INPUTS, budget_s=0.1, min_rounds=1, timeout_s=5
        )
    with pytest.raises(TuneError, match="abacus"):
        compare_programs([programs["same"]], "abacus", "main", INPUTS, budget_s=0.1, min_rounds=1, timeout_s=5)


def test_conditions_are_chosen_by_the_profile(process: Measurer, bench: Bench) -> None:
    plain = process.open(bench.dispatch, bench.default).us
    assert process.conditions == PLAIN
    process.open(bench.dispatch, bench.default, profile_us=plain)
    slow = process.open(bench.dispatch, bench.default, profile_us=20 * plain)
    chosen = process.conditions
    assert chosen.most_repeats == 1 and slow.us > plain
    process.open(bench.dispatch, bench.default, profile_us=plain, conditions=chosen)
    assert process.conditions == chosen
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    assert process.trial(bench.good, timeout_s=5).status == "ok"
    assert process.conditions == chosen, "a new process measures as the old one did"


def test_choices_and_the_nearest() -> None:
    assert [c.most_repeats for c in choices(0, 1)] == [None], "nothing to choose from"
    assert [c.most_repeats for c in choices(0, 3)] == [None, 2, 1]
    assert [c.evict_bytes for c in choices(64, 1)] == [0, 16, 32, 64, 96]
    assert nearest([50.0, 100.0, 400.0], 110.0) == 1 and nearest([50.0, 100.0, 400.0], 250.0) == 2


def test_a_disturbed_trial_is_measured_again(process: Measurer, bench: Bench) -> None:
    process.open(bench.dispatch, bench.default)
    before = process.steadiness.summary().repeated
    with busy_processes(2):
        # A trial of so short a dispatch may end before the clocks that tell the load move on.
        for _ in range(20):
            process.trial(bench.good, timeout_s=10)
            if process.steadiness.summary().repeated > before:
                return
    pytest.fail(f"no trial was repeated: {process.steadiness.summary()}")


def test_the_reference_runner(bench: Bench) -> None:
    with Measurer("local-sync", runner=BENCHMARK_MODULE) as measurer, Measurer("local-sync") as own:
        reference = measurer.open(bench.dispatch, bench.default, profile_us=1e5)
        assert measurer.conditions == PLAIN, "the tool can't change what is in the caches"
        assert 0.2 < reference.us / own.open(bench.dispatch, bench.default).us < 5
        outcome = measurer.trial(bench.good, timeout_s=5)
        assert outcome.status == "ok" and outcome.ratio is not None and 0.1 < outcome.ratio < 10
        assert measurer.trial(bench.wrong, timeout_s=5).status == "wrong"
        assert measurer.trial(bench.endless, timeout_s=0.3).status == "hung"
        assert measurer.trial(bench.junk, timeout_s=5).status == "failed"
        outcome = measurer.compare([bench.default, bench.good], rounds=3, budget_s=1.0)
        assert outcome.statuses == ["ok", "ok"] and all(len(t) == 3 for t in outcome.times_us)
