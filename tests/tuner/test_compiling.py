"""The compile pool: real compiles, and every way in which one can fail."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import MATMUL
from tuner.compiling import CompileJob, CompileOutcome, CompilePool
from tuner.dispatch import instantiate, parse_dispatch
from tuner.errors import TuneError
from tuner.task import CONFIG_PLACEHOLDER, Dispatch
from tuner.toolchain import compile_program
from tuner.workers.artifacts import GRACE_S, ArtifactCache, CachedOutcome

FLAGS = [
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
]


def config(distribution: list[int], parallel: list[int], reduction: list[int]) -> str:
    return (
        f"#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = {distribution}, "
        f"vector_common_parallel = {parallel}, vector_reduction = {reduction}>, translation_info = "
        "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )


GOOD = config([32, 56, 0], [8, 16, 0], [0, 0, 4])
TOO_LARGE = config([96, 112, 0], [96, 112, 0], [0, 0, 80])


@pytest.fixture(scope="module")
def dispatch(tmp_path_factory: pytest.TempPathFactory) -> Dispatch:
    """Dump a small matmul dispatch."""
    folder = tmp_path_factory.mktemp("matmul")
    (folder / "matmul.mlir").write_text(MATMUL)
    compile_program(folder / "matmul.mlir", folder / "matmul.vmfb", FLAGS, dump_dir=folder / "dump", timeout_s=120)
    (dump,) = (folder / "dump").glob("*_benchmark.mlir")
    return parse_dispatch(dump)


@pytest.fixture
def text(dispatch: Dispatch) -> str:
    return instantiate(dispatch, GOOD)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompilePool]:
    """Keep one pool for the tests that do not upset it."""
    with CompilePool(FLAGS, tmp_path_factory.mktemp("cache"), workers=2) as pool:
        yield pool


def compile_one(pool: CompilePool, text: str) -> CompileOutcome:
    (outcome,) = pool.compile([CompileJob("one", text)])
    return outcome


def test_good_and_bad_candidates(shared: CompilePool, dispatch: Dispatch) -> None:
    jobs = [
        CompileJob("good", instantiate(dispatch, GOOD)),
        CompileJob("default", instantiate(dispatch, dispatch.default_config)),
        CompileJob("large", instantiate(dispatch, TOO_LARGE)),
        CompileJob("syntax", "module { this is not MLIR }"),
    ]
    found = {o.key: o for o in shared.compile(jobs)}
    assert set(found) == {"good", "default", "large", "syntax"}
    for key in ("good", "default"):
        outcome = found[key]
        assert outcome.status == "ok", outcome
        assert outcome.path is not None and outcome.path.stat().st_size > 1000
        assert outcome.seconds > 0 and outcome.message == ""
    assert found["good"].path != found["default"].path
    assert found["large"].status == "failed" and "large vector" in found["large"].message
    assert found["syntax"].status == "failed" and found["syntax"].path is None
    assert all("\n" not in o.message for o in found.values())


def test_outcomes_are_remembered_across_pools(dispatch: Dispatch, tmp_path: Path) -> None:
    jobs = [
        CompileJob("good", instantiate(dispatch, GOOD)),
        CompileJob("large", instantiate(dispatch, TOO_LARGE)),
    ]
    with CompilePool(FLAGS, tmp_path, workers=1) as pool:
        first = {o.key: o for o in pool.compile(jobs)}
    with CompilePool(FLAGS, tmp_path, workers=1) as pool:
        assert {o.key: o for o in pool.compile(jobs)} == first
        assert pool._workers[0].pid is None, "nothing was compiled again"
    with CompilePool([*FLAGS, "--iree-opt-level=O1"], tmp_path, workers=1) as pool:
        other = compile_one(pool, jobs[0].text)
    assert other.status == "ok" and other.path != first["good"].path


def test_a_damaged_artifact_is_made_again(text: str, tmp_path: Path) -> None:
    with CompilePool(FLAGS, tmp_path, workers=1) as pool:
        path = compile_one(pool, text).path
        assert path is not None
        whole = path.stat().st_size
        os.truncate(path, 100)
        again = compile_one(pool, text)
        assert again.status == "ok" and again.path == path
        assert path.stat().st_size == whole


def test_a_hung_compiler(text: str, tmp_path: Path) -> None:
    with CompilePool(FLAGS, tmp_path, workers=1, timeout_s=1.0) as pool:
        for _ in range(2):
            pool._workers[0].start()
            assert pool._workers[0].pid is not None
            os.kill(pool._workers[0].pid, signal.SIGSTOP)
            outcome = compile_one(pool, text)
            assert outcome.status == "timeout" and "1 s" in outcome.message and outcome.path is None
        # Bad luck once is tried again, twice is remembered.
        pool._workers[0].start()
        assert compile_one(pool, text).status == "timeout"
    with CompilePool(FLAGS, tmp_path, workers=1, timeout_s=30.0) as pool:
        assert compile_one(pool, text).status == "ok", "a longer time-out is another chance"


def test_a_crashed_compiler(text: str, tmp_path: Path) -> None:
    with CompilePool(FLAGS, tmp_path, workers=1) as pool:
        worker = pool._workers[0]
        worker.start()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        timer = threading.Timer(0.2, os.kill, (worker.pid, signal.SIGSEGV))
        timer.start()
        threading.Timer(0.3, os.kill, (worker.pid, signal.SIGCONT)).start()
        outcome = compile_one(pool, text)
        assert outcome.status == "crashed" and "SIGSEGV" in outcome.message
        assert compile_one(pool, text).status == "ok", "the pool goes on, and a crash is tried once more"


def test_memory_is_bounded(text: str, tmp_path: Path) -> None:
    with CompilePool(FLAGS, tmp_path, workers=1, memory_bytes=64 << 20) as pool:
        outcome = compile_one(pool, text)
        assert outcome.status == "memory" and outcome.path is None
        assert compile_one(pool, "not MLIR").status == "failed", "the pool goes on"
    with CompilePool(FLAGS, tmp_path, workers=1) as pool:
        assert compile_one(pool, text).status == "ok", "more memory is another chance"


def test_flags_that_the_compiler_does_not_know(text: str, tmp_path: Path) -> None:
    jobs = [CompileJob(str(i), text) for i in range(3)]
    with (
        CompilePool([*FLAGS, "--no-such-flag"], tmp_path, workers=2) as pool,
        pytest.raises(TuneError, match="--no-such-flag"),
    ):
        list(pool.compile(jobs))


def test_leaving_early_stops_compiling(dispatch: Dispatch, tmp_path: Path) -> None:
    jobs = [CompileJob(str(m), instantiate(dispatch, config([32, 56, 0], [m, 16, 0], [0, 0, 4]))) for m in range(1, 9)]
    with CompilePool(FLAGS, tmp_path, workers=1) as pool:
        for _ in pool.compile(jobs):
            break
        busy = [t for t in threading.enumerate() if t.name.startswith("Thread") and t.is_alive()]
        assert not busy
        made = len(list(tmp_path.glob("??/*.vmfb")))
        time.sleep(0.5)
        assert len(list(tmp_path.glob("??/*.vmfb"))) == made < 8
        assert compile_one(pool, jobs[-1].text).status == "ok"


def test_no_jobs(shared: CompilePool) -> None:
    assert list(shared.compile([])) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_no_space_left_stops_the_run(text: str, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this sandbox allows no mounts")
    try:
        with CompilePool(FLAGS, small, workers=1) as pool:
            (small / "filler").write_bytes(bytes(small.stat().st_blksize * 15))
            with pytest.raises(TuneError, match=f"no space left on the disk of {small}"):
                compile_one(pool, text)
            assert not list(small.glob("??/.partial*"))
            (small / "filler").unlink()
            assert compile_one(pool, text).status == "ok", "that is no failure of the candidate"
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_the_cache_evicts_what_was_used_least_recently(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, max_bytes=10_000)
    keys = [ArtifactCache.key(str(i), [], "1") for i in range(20)]
    now = time.time()
    for i, key in enumerate(keys):
        cache.store(key, CachedOutcome("ok", "", 0.1, size=1000), bytes(1000))
        for path in (cache.path(key), cache.path(key).with_suffix(".json")):
            os.utime(path, (now, now - 2 * GRACE_S + i))
    assert cache.load(keys[3]) is not None  # Used now: it stays.
    cache.evict()
    left = [key for key in keys if cache.load(key) is not None]
    assert keys[3] in left and keys[19] in left
    assert keys[0] not in left and len(left) < 12


def test_the_cache_never_evicts_what_is_in_use(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path, max_bytes=1)
    key = ArtifactCache.key("a", [], "1")
    cache.store(key, CachedOutcome("ok", "", 0.1, size=1000), bytes(1000))
    cache.evict()
    assert cache.load(key) is not None


def test_a_cached_artifact_is_not_written_again(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path)
    key = ArtifactCache.key("a", [], "1")
    note = CachedOutcome("ok", "", 0.1, size=4)
    cache.store(key, note, b"1234")
    before = cache.path(key).stat().st_ino
    cache.store(key, replace(note, seconds=0.2), b"1234")
    assert cache.path(key).stat().st_ino == before


def test_keys_tell_everything_apart() -> None:
    keys = {
        ArtifactCache.key("t", ["-a", "-b"], "1"),
        ArtifactCache.key("t", ["-a-b"], "1"),
        ArtifactCache.key("t", ["-b", "-a"], "1"),
        ArtifactCache.key("t", ["-a", "-b"], "2"),
        ArtifactCache.key("u", ["-a", "-b"], "1"),
    }
    assert len(keys) == 5


def test_the_template_has_a_place_for_the_config(dispatch: Dispatch) -> None:
    assert CONFIG_PLACEHOLDER in dispatch.template
    assert CONFIG_PLACEHOLDER not in instantiate(dispatch, GOOD)
