"""Is this machine fit to measure? Versions, CPU, devices, other load and the noise of its times."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tuner.errors import UsageError
from tuner.machine import available_cores, available_cpus, fingerprint
from tuner.noise import Noise, measure_noise
from tuner.toolchain import check_versions, iree_version

FIT = "fit to measure"
NOISY = "noisy"

SPREAD_LIMIT = 0.10
DRIFT_LIMIT = 0.05
OUTLIER_LIMIT = 0.02
"""Above any of these a machine counts as noisy: comparisons then need many more rounds to be sure."""

_BUSY_LIMIT = 0.10
_STOLEN_LIMIT = 0.01
_WATCH_S = 1.0
_PACKAGES = (
    "iree-base-compiler",
    "iree-base-runtime",
    "numpy",
    "xgboost",
    "scikit-learn",
    "onnx",
    "sqlalchemy",
)
_CPU_DEVICES = ("local-task", "local-sync")


@dataclass(frozen=True)
class Driver:
    """One driver of the IREE runtime: its devices, or why it has none here."""

    name: str
    devices: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Load:
    """What else runs: CPUs kept busy by other processes, and the busiest of them with what each takes."""

    busy_cpus: float
    busiest: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class DoctorReport:
    """What :func:`examine` found. ``noise`` is None where ``device`` is not a CPU."""

    device: str
    versions: dict[str, str]
    version_warnings: tuple[str, ...]
    machine: dict[str, str | int]
    governor: str
    turbo: str
    drivers: tuple[Driver, ...]
    load: Load
    noise: Noise | None
    verdict: str
    advice: tuple[str, ...]

    @property
    def fit(self) -> bool:
        """Whether small differences can be told apart on this machine now."""
        return self.verdict == FIT

    def to_json(self) -> dict[str, Any]:
        """Give the report as plain JSON types."""
        return {**asdict(self), "fit": self.fit}


def examine(device: str = "local-task", seconds: float = 5.0) -> DoctorReport:
    """Look at this machine and watch its noise.

    Parameters
    ----------
    device
        IREE device URI. Noise is measured on CPU devices (``local-task``, ``local-sync``).
    seconds
        How long to watch the noise; the rest takes about two seconds more.

    Raises
    ------
    UsageError
        If the device does not exist, or ``seconds`` is not positive.
    TuneError
        If the compiler does not work.
    """
    if not seconds > 0:
        raise UsageError(f"--seconds must be more than 0, not {seconds:g}")
    drivers = find_drivers()
    name = device.split(":", 1)[0]
    known = {d.name: d for d in drivers}
    if name not in known:
        raise UsageError(f"no device '{device}': this runtime has the drivers {', '.join(sorted(known))}")
    if not known[name].devices:
        raise UsageError(f"no device '{device}': {known[name].problem or 'the driver finds none'}")
    load = watch_load(_WATCH_S)
    noise = None
    if name in _CPU_DEVICES:
        with tempfile.TemporaryDirectory(prefix="iree-tune-") as folder:
            noise = measure_noise(device, seconds, Path(folder))
    machine, governor, turbo = fingerprint(), read_governor(), read_turbo()
    verdict, advice = judge(noise, load, governor, virtual=machine["hypervisor"] == "yes")
    return DoctorReport(
        device=device,
        versions=_versions(),
        version_warnings=tuple(check_versions()),
        machine=machine,
        governor=governor,
        turbo=turbo,
        drivers=drivers,
        load=load,
        noise=noise,
        verdict=verdict,
        advice=advice,
    )


def judge(noise: Noise | None, load: Load, governor: str, virtual: bool) -> tuple[str, tuple[str, ...]]:
    """Turn what was seen into a verdict and what to do about it.

    Parameters
    ----------
    noise
        None where it was not measured: the verdict then says so.
    governor
        The CPU frequency governor; empty where unknown.
    virtual
        Whether this is a virtual machine.
    """
    advice = []
    if load.busy_cpus > _BUSY_LIMIT:
        who = ", ".join(f"{name} ({cpus:.1f})" for name, cpus in load.busiest)
        advice.append(
            f"other processes keep {load.busy_cpus:.1f} CPUs busy{': ' + who if who else ''}; stop them while tuning"
        )
    if governor and governor != "performance":
        advice.append(
            f"the CPU frequency governor is '{governor}'; 'performance' is steadier "
            "(sudo cpupower frequency-set -g performance)"
        )
    if noise is None:
        return "noise is measured on CPU devices only", tuple(advice)
    causes = []
    if noise.spread > SPREAD_LIMIT:
        causes.append(f"single runs to vary by {noise.spread:.0%}")
    if noise.drift > DRIFT_LIMIT:
        causes.append(f"the speed to drift by {noise.drift:.0%} within seconds")
    if noise.outliers > OUTLIER_LIMIT:
        causes.append(f"{noise.outliers:.1%} of the runs to be stalled")
    if noise.stolen > _STOLEN_LIMIT:
        advice.append(
            f"the hypervisor gave {noise.stolen:.0%} of the CPU time to other machines; "
            "use a dedicated host, or tune at a quiet hour"
        )
    elif causes and virtual and load.busy_cpus <= _BUSY_LIMIT:
        advice.append("this is a virtual machine: what shares its host may cause this and can't be seen here")
    if not causes:
        return FIT, tuple(advice)
    advice.append(
        "results stay right (candidates are compared with the default in turn, and the end is confirmed), "
        "but small gains need more time to be proven: give a longer --time-budget"
    )
    return f"{NOISY}: expect {_and(causes)}", tuple(advice)


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def find_drivers() -> tuple[Driver, ...]:
    """List the drivers built into the IREE runtime with the devices each finds here."""
    import iree.runtime as rt

    found = []
    for name in sorted(rt.query_available_drivers()):
        try:
            devices = rt.get_driver(name).query_available_devices()
        except (ValueError, RuntimeError) as error:
            found.append(Driver(name, problem=_reason(str(error))))
            continue
        uris = tuple(f"{name}://{d['path']}" if d["path"] else name for d in devices)
        found.append(Driver(name, uris, "" if uris else "no device"))
    return tuple(found)


def _reason(message: str) -> str:
    """Keep the first statement of a runtime error, without the place in IREE's source and the advice."""
    first = message.splitlines()[0] if message else "unknown reason"
    return re.split(r"[;:] ?(?:please|ensure|creating)", re.sub(r"^.*?[A-Z_]{4,}; ", "", first))[0]


def watch_load(seconds: float) -> Load:
    """Watch for ``seconds`` what other processes do; this one sleeps meanwhile."""
    before = _process_times()
    busy_before, start = psutil.cpu_times(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    busy = (_busy(psutil.cpu_times()) - _busy(busy_before)) / passed
    after = _process_times()
    used = {
        key: (after[key] - before.get(key, 0.0)) / passed
        for key in after
        if key in before and after[key] - before[key] > 0.02 * passed
    }
    top = sorted(used.items(), key=lambda item: -item[1])[:3]
    return Load(round(max(0.0, busy), 2), tuple((name, round(cpus, 2)) for (_, name), cpus in top))


def _busy(times: Any) -> float:
    return float(times.user + times.system + getattr(times, "nice", 0.0))


def _process_times() -> dict[tuple[int, str], float]:
    times = {}
    for process in psutil.process_iter(["pid", "name", "cpu_times"]):
        cpu = process.info["cpu_times"]
        if cpu is not None and process.info["pid"] != os.getpid():
            times[process.info["pid"], process.info["name"] or "?"] = cpu.user + cpu.system
    return times


def read_governor(root: Path = Path("/sys/devices/system/cpu")) -> str:
    """Read the CPU frequency governor of the first CPU this process may use; empty where it can't be read."""
    return _read(root / f"cpu{available_cpus()[0]}" / "cpufreq" / "scaling_governor")


def read_turbo(root: Path = Path("/sys/devices/system/cpu")) -> str:
    """Say whether the CPU may exceed its nominal clock: ``"on"``, ``"off"``, or empty where unknown."""
    no_turbo, boost = _read(root / "intel_pstate" / "no_turbo"), _read(root / "cpufreq" / "boost")
    if no_turbo in ("0", "1"):
        return "on" if no_turbo == "0" else "off"
    return {"1": "on", "0": "off"}.get(boost, "")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _versions() -> dict[str, str]:
    found = {"iree": iree_version(), "python": platform.python_version(), "os": platform.platform()}
    for package in ("iree-tune", *_PACKAGES):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def render(report: DoctorReport) -> RenderableType:
    """Lay the report out for a terminal."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def row(name: str, value: str) -> None:
        table.add_row(name, escape(value))

    v, m = report.versions, report.machine
    row("IREE", f"{v['iree']} ({'supported' if not report.version_warnings else 'not a supported version'})")
    row("Python", f"{v['python']} on {v['os']}")
    row("packages", ", ".join(f"{p} {v[p]}" for p in ("iree-tune", *_PACKAGES)))
    row("CPU", f"{m['cpu']}, {m['vector_bits']}-bit vectors{_hypervisor(m)}")
    row("cores", f"{available_cores()} usable, {m['threads']} hardware threads")
    row("caches", ", ".join(f"L{n} {_size(int(m[f'l{n}_bytes']))}" for n in (1, 2, 3)))
    row("memory", f"{m['memory_gib']} GiB")
    row("clock", f"governor {report.governor or 'not readable'}, turbo {report.turbo or 'not readable'}")
    for driver in report.drivers:
        row(f"device {driver.name}", ", ".join(driver.devices) or f"none: {driver.problem}")
    busiest = ", ".join(f"{name} {cpus:.1f}" for name, cpus in report.load.busiest)
    row("other load", f"{report.load.busy_cpus:.1f} CPUs{' (' + busiest + ')' if busiest else ''}")
    if report.noise is not None:
        n = report.noise
        row(
            "noise",
            f"{n.runs} runs in {n.seconds:.1f} s on {report.device}: median {n.median_us / 1e3:.3f} ms, "
            f"p10-p90 {n.p10_us / 1e3:.3f}-{n.p90_us / 1e3:.3f} ms ({n.spread:.1%}), drift {n.drift:.1%}, "
            f"outliers {n.outliers:.1%}, worst {n.worst_us / n.median_us:.1f}x",
        )
    parts: list[RenderableType] = [table]
    parts += [Text(f"warning: {w}", style="yellow") for w in report.version_warnings]
    parts.append(Text(f"verdict: {report.verdict}", style="bold green" if report.fit else "bold yellow"))
    parts += [Text(f"- {line}") for line in report.advice]
    return Group(*parts)


def _hypervisor(machine: dict[str, str | int]) -> str:
    return ", in a virtual machine" if machine["hypervisor"] == "yes" else ""


def _size(count: int) -> str:
    return f"{count / 2**20:g} MiB" if count >= 2**20 else f"{count / 2**10:g} KiB"
