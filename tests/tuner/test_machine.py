"""What is read of the machine, from trees and files like those of other machines."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from costmodel.problem import Machine
from tuner import machine
from tuner.errors import TuneError

HERE = Machine(
    cpu="Here",
    cores=6,
    vector_bits=512,
    vector_registers=32,
    l1_bytes=48 << 10,
    l2_bytes=2 << 20,
    l3_bytes=9 << 20,
)

ZEN3 = """processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 1
model name	: AMD EPYC 7713 64-Core Processor
stepping	: 1
flags		: fpu sse sse2 avx avx2 fma hypervisor

processor	: 1
vendor_id	: Other
"""
ARM = """processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd evtstrm aes sve
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x1
CPU part	: 0xd40
CPU revision	: 1
"""


def test_this_machine_makes_sense() -> None:
    m = machine.describe_machine()
    assert m.cpu and 1 <= m.cores <= (os.cpu_count() or 1)
    assert m.vector_bits in (128, 256, 512, 1024, 2048) and m.vector_registers in (16, 32)
    assert 8 << 10 <= m.l1_bytes < min(m.l2_bytes, m.l3_bytes)


def test_affinity_bounds_the_cores() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no affinity on this system")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.available_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_fingerprint_is_stable_plain_and_anonymous() -> None:
    first = machine.fingerprint()
    assert first == machine.fingerprint() == json.loads(json.dumps(first))
    assert {"cpu", "family", "model", "stepping", "flags", "cores", "memory_gib", "os", "hypervisor"} <= set(first)
    assert all(isinstance(value, str | int) for value in first.values())
    name = socket.gethostname()
    assert len(name) < 3 or name not in [str(value) for value in first.values()]


def test_cpuinfo_of_an_x86_machine(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(ZEN3)
    info = machine.read_cpuinfo(path)
    assert machine.cpu_name(info) == "AMD EPYC 7713 64-Core Processor"
    assert (info["vendor_id"], info["cpu family"]) == ("AuthenticAMD", "25")
    features = machine.cpu_features(info)
    assert machine.vector_bits_of(features) == 256 and "avx512f" not in features
    assert machine.in_virtual_machine(features)


def test_cpuinfo_of_an_arm_machine(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(ARM)
    info = machine.read_cpuinfo(path)
    assert machine.cpu_name(info) == "Arm implementer 0x41 part 0xd40"
    assert machine.vector_registers_of(machine.cpu_features(info)) == 32


def test_vectors_by_feature() -> None:
    bits = machine.vector_bits_of
    assert bits(frozenset({"sse2"})) == 128
    assert bits(frozenset({"sse2", "avx", "avx2"})) == 256
    assert bits(frozenset({"avx2", "avx512f"})) == 512
    assert bits(frozenset({"asimd"})) == 128


def test_nothing_to_read_is_no_error(tmp_path: Path) -> None:
    assert machine.read_cpuinfo(tmp_path / "none") == {}
    assert machine.read_caches(tmp_path / "none") == {}
    assert machine.cpu_quota(tmp_path / "none", tmp_path / "none") is None
    assert machine.cpu_name({})


def test_caches_from_sysfs(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (1, "Instruction", "32K"), (2, "Unified", "2048K"), (3, "Unified", "32M")]
    ):
        folder = tmp_path / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", str(level)), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert machine.read_caches(tmp_path) == {1: 48 << 10, 2: 2 << 20, 3: 32 << 20}


def test_quota_of_cgroups_version_2(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert machine.cpu_quota(root, own) is None
    (root / "a" / "cpu.max").write_text("150000 100000\n")
    assert machine.cpu_quota(root, own) == 1.5
    (root / "a" / "b" / "cpu.max").write_text("50000 100000\n")
    assert machine.cpu_quota(root, own) == 0.5


def test_quota_of_cgroups_version_1(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    # The path is the host's and does not exist in the container; the mounted root holds the bound.
    own.write_text("4:memory:/x\n2:cpu,cpuacct:/docker/abc\n")
    (root / "cpu").mkdir(parents=True)
    (root / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (root / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    assert machine.cpu_quota(root, own) is None
    (root / "cpu" / "cpu.cfs_quota_us").write_text("300000\n")
    assert machine.cpu_quota(root, own) == 3.0


@pytest.mark.parametrize(
    ("flags", "bits", "registers"),
    [
        (["--iree-llvmcpu-target-cpu=x86-64-v3"], 256, 16),
        (["--iree-llvmcpu-target-cpu=x86-64-v4"], 512, 32),
        (["--iree-llvmcpu-target-cpu=x86-64-v2", "--iree-opt-data-tiling"], 128, 16),
        (
            ["--iree-llvmcpu-target-triple=aarch64-linux-gnu", "--iree-llvmcpu-target-cpu=neoverse-n1"],
            128,
            32,
        ),
    ],
)
def test_flags_choose_the_target(flags: list[str], bits: int, registers: int) -> None:
    if not flags[0].endswith("gnu"):
        flags = ["--iree-llvmcpu-target-triple=x86_64-linux-gnu", *flags]
    target, here = machine.target_machine(flags), machine.describe_machine()
    assert (target.vector_bits, target.vector_registers) == (bits, registers)
    assert (target.cores, target.l2_bytes) == (here.cores, here.l2_bytes)
    assert target.cpu in " ".join(flags)


def test_the_host_as_a_target_is_this_machine() -> None:
    target, here = machine.target_machine(["--iree-llvmcpu-target-cpu=host"]), machine.describe_machine()
    assert target.cores == here.cores
    # The compiler may prefer shorter vectors than the CPU has, never longer ones.
    assert 128 <= target.vector_bits <= here.vector_bits


def test_no_target_leaves_the_machine() -> None:
    assert machine.parse_target("nothing here", HERE) == HERE
    assert machine.parse_target('#hal.executable.target<"rocm", "rocm-hsaco-fb", {a = 1}>', HERE) == HERE


def test_another_kind_of_device_is_not_asked_for_vectors() -> None:
    flags = ["--iree-hal-target-device=hip", "--iree-rocm-target=gfx942"]
    assert machine.target_machine(flags) == machine.describe_machine()


def test_a_cpu_that_does_not_exist() -> None:
    with pytest.raises(TuneError, match="nope"):
        machine.target_machine(["--iree-llvmcpu-target-cpu=nope"])


def test_the_last_word_on_a_feature_counts() -> None:
    text = (
        '#hal.executable.target<"llvm-cpu", "embedded-elf-x86_64", {cpu = "znver4", '
        'cpu_features = "+avx2,+avx512f,-avx512f", native_vector_size = 32 : i64}>'
    )
    target = machine.parse_target(text, HERE)
    assert (target.cpu, target.vector_bits, target.vector_registers) == ("znver4", 256, 16)
