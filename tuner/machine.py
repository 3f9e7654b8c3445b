"""What this machine is: the parts that decide which tiles are good, and a fingerprint for its times."""

from __future__ import annotations

import functools
import hashlib
import math
import os
import platform
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from costmodel.problem import Machine
from tuner.toolchain import default_target_flags, run_tool, tool

# ``/proc/cpuinfo`` names on x86 and their counterparts on Arm.
_IDENTITY = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
}
_TARGET_FLAGS = ("--iree-llvmcpu-", "--iree-hal-target-", "--iree-hal-local-")
_PROBE_TIMEOUT_S = 120.0
_PROBE = """
func.func @probe(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def describe_machine() -> Machine:
    """Describe the machine this process runs on.

    Cores are the physical ones that this process may use (affinity and cgroup quota respected), vectors the
    widest that the CPU has. What can't be read keeps :class:`costmodel.problem.Machine`'s default.
    """
    info = read_cpuinfo()
    features = cpu_features(info)
    default = Machine()
    caches = read_caches()
    return Machine(
        cpu=cpu_name(info),
        cores=available_cores(),
        vector_bits=vector_bits_of(features),
        vector_registers=vector_registers_of(features),
        l1_bytes=caches.get(1, default.l1_bytes),
        l2_bytes=caches.get(2, default.l2_bytes),
        l3_bytes=caches.get(3, default.l3_bytes),
    )


def fingerprint() -> dict[str, str | int]:
    """Identify the machine well enough to tell whose times may be compared.

    The same on every call and after a reboot; holds no host name, address or user. ``flags`` is a digest of
    the CPU's feature flags, ``memory_gib`` rounded, cache sizes in bytes.
    """
    info = read_cpuinfo()
    machine = describe_machine()
    features = cpu_features(info)
    identity: dict[str, str | int] = {
        key: next((info[name] for name in names if name in info), "unknown") for key, names in _IDENTITY.items()
    }
    return {
        "cpu": machine.cpu,
        "arch": platform.machine(),
        **identity,
        "flags": hashlib.sha256(" ".join(sorted(features)).encode()).hexdigest()[:16],
        "vector_bits": machine.vector_bits,
        "cores": machine.cores,
        "threads": len(available_cpus()),
        "l1_bytes": machine.l1_bytes,
        "l2_bytes": machine.l2_bytes,
        "l3_bytes": machine.l3_bytes,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "os": platform.system(),
        "hypervisor": "yes" if in_virtual_machine(features) else "no",
    }


def target_machine(flags: Sequence[str]) -> Machine:
    """Describe the machine that code compiled with ``flags`` sees.

    Cores and caches are this machine's, because it is the one that runs the code; the CPU's name, its vectors
    and registers are those of the target that the flags choose, as the compiler itself understands them
    (``--iree-llvmcpu-target-cpu=x86-64-v3`` has 256-bit vectors on any machine).

    Parameters
    ----------
    flags
        The compile's flags; those that choose no target are ignored.
        What they leave open is this machine's own CPU.

    Returns
    -------
    Machine
        :func:`describe_machine`'s where the target is no CPU.

    Raises
    ------
    TuneError
        If the compiler knows no such target.
    """
    chosen = tuple(f for f in flags if f.startswith(_TARGET_FLAGS))
    if any(
        (name == "--iree-hal-target-device" and value != "local")
        or (name == "--iree-hal-target-backends" and "llvm-cpu" not in value)
        for name, _, value in (f.partition("=") for f in chosen)
    ):
        return describe_machine()
    return _target_machine((*default_target_flags(chosen), *chosen))


@functools.lru_cache(maxsize=8)
def _target_machine(flags: tuple[str, ...]) -> Machine:
    here = describe_machine()
    with tempfile.TemporaryDirectory(prefix="iree-tune-") as folder:
        source = Path(folder) / "probe.mlir"
        source.write_text(_PROBE)
        done = run_tool(
            [tool("iree-compile"), source, "--compile-to=executable-sources", *flags],
            what=f"asking iree-compile what {' '.join(flags)} mean",
            timeout_s=_PROBE_TIMEOUT_S,
        )
    return parse_target(done.stdout, here)


def parse_target(text: str, here: Machine) -> Machine:
    """Read an ``#hal.executable.target<"llvm-cpu", ...>`` in ``text`` into a copy of ``here``.

    Returns ``here`` unchanged where there is none.
    """
    target = re.search(r'#hal\.executable\.target<"llvm-cpu", "[^"]*", \{([^}]*)', text)
    size = re.search(r"native_vector_size = (\d+)", target[1]) if target else None
    if not target or not size:
        return here
    named = re.search(r'\bcpu = "([^"]*)"', target[1])
    listed = re.search(r'\bcpu_features = "([^"]*)"', target[1])
    # A feature can be listed twice (for the name, then for the real CPU): the last word counts.
    signs = {f[1:]: f[0] for f in (listed[1].split(",") if listed else ()) if f}
    features = frozenset(name for name, sign in signs.items() if sign == "+")
    x86 = "x86" in target[0].split(",")[1]
    bits = int(size[1]) * 8
    return replace(
        here,
        cpu=(named[1] if named and named[1] else "generic"),
        vector_bits=bits,
        vector_registers=32 if not x86 or "avx512f" in features else 16,
    )


def read_cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Read the first processor's fields of ``/proc/cpuinfo``; empty where there is no such file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def cpu_features(info: Mapping[str, str]) -> frozenset[str]:
    """List the CPU's features as ``/proc/cpuinfo`` names them (``flags`` on x86, ``Features`` on Arm)."""
    return frozenset((info.get("flags") or info.get("Features") or "").split())


def cpu_name(info: Mapping[str, str]) -> str:
    """Name the CPU for people; Arm has no name, only numbers."""
    if info.get("model name"):
        return info["model name"]
    if "CPU part" in info:
        return f"Arm implementer {info.get('CPU implementer', '?')} part {info['CPU part']}"
    return platform.processor() or platform.machine() or "generic"


def vector_bits_of(features: frozenset[str]) -> int:
    """Width of the widest vectors of a CPU with these features, as ``/proc/cpuinfo`` names them."""
    if "avx512f" in features:
        return 512
    if "avx2" in features or "avx" in features:
        return 256
    if "sve" in features:
        length = _read_int(Path("/proc/sys/abi/sve_default_vector_length"))
        return 8 * length if length else 128
    if features or platform.machine().lower() in ("arm64", "aarch64"):
        return 128
    return Machine().vector_bits


def vector_registers_of(features: frozenset[str]) -> int:
    """Count the vector registers of a CPU with these features."""
    arm = platform.machine().lower() in ("arm64", "aarch64") or "asimd" in features
    return 32 if arm or "avx512f" in features else 16


def in_virtual_machine(features: frozenset[str]) -> bool:
    """Say whether a hypervisor is seen beneath this system; neighbours may then share its speed."""
    return "hypervisor" in features or Path("/sys/hypervisor/type").exists()


def available_cpus() -> list[int]:
    """List the logical CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def available_cores() -> int:
    """Count the physical cores that this process may use: its affinity, bounded by its cgroup's CPU quota."""
    cpus = available_cpus()
    cores = set()
    for cpu in cpus:
        siblings = _read_text(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
        cores.add(siblings if siblings else str(cpu))
    count = len(cores)
    if not hasattr(os, "sched_getaffinity"):
        count = min(count, psutil.cpu_count(logical=False) or count)
    quota = cpu_quota()
    return max(1, min(count, math.ceil(quota)) if quota else count)


def cpu_quota(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Read how many CPUs' worth of time this process's cgroup and those above it allow.

    Both versions of cgroups are read. Returns None where nothing is bounded, or nothing can be read.
    """
    bounds = []
    for line in (_read_text(own) or "").splitlines():
        _, controllers, place = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = cgroups / "cpu" if controllers else cgroups
        folder = root / place.lstrip("/")
        # Inside a container the path may be the host's and not exist here: the root then holds the bound.
        while True:
            bounds.append(_quota_v1(folder) if controllers else _quota_v2(folder))
            if folder == root or root not in folder.parents:
                break
            folder = folder.parent
    known = [b for b in bounds if b]
    return min(known) if known else None


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (_read_text(folder / "cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = _read_int(folder / "cpu.cfs_quota_us"), _read_int(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def read_caches(cpu: Path | None = None) -> dict[int, int]:
    """Read the sizes in bytes of one core's data caches, by level (1 to 3).

    Parameters
    ----------
    cpu
        A folder like ``/sys/devices/system/cpu/cpu0``; by default the first CPU this process may run on.
    """
    cpu = cpu or Path(f"/sys/devices/system/cpu/cpu{available_cpus()[0]}")
    sizes: dict[int, int] = {}
    for folder in sorted((cpu / "cache").glob("index*")):
        level, size = _read_int(folder / "level"), _cache_size(_read_text(folder / "size") or "")
        if level and size and _read_text(folder / "type") in ("Data", "Unified"):
            sizes[level] = size
    return sizes


def _cache_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]] if match else 0


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read_text(path)
    return int(text) if text and re.fullmatch(r"-?\d+", text) else None
