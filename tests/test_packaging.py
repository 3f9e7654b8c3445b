"""What is shipped and what is promised about it: the wheel, the README's commands, no private paths."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tuner
from tuner.cli import main

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".git", ".venv", "venv", "build", "dist", "iree-tune-out", "models", "mlruns", "__pycache__"}


def project_files() -> list[Path]:
    """List the project's files: git's where there is git, else all that no tool made."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0 and listed.stdout:
        return [p for p in (ROOT / name for name in listed.stdout.split("\0") if name) if p.is_file()]
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in SKIPPED and not f.endswith((".egg-info", "_cache"))]
        found += [Path(folder) / name for name in names]
    return found


def commands(text: str) -> list[str]:
    """List the lines of a document's shell blocks."""
    return [line for block in re.findall(r"```(?:sh|bash)\n(.*?)```", text, re.S) for line in block.splitlines()]


def test_ci_runs_the_readmes_test_command() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    (command,) = re.findall(r'^TEST_COMMAND="(.*)"$', ci, re.M)
    assert command in commands((ROOT / "README.md").read_text())
    assert 'bash -c "$TEST_COMMAND"' in ci
    assert command.endswith("-m pytest"), "the whole suite, nothing left out"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def options_of(command: str) -> set[str]:
    """List the options of one of the tool's commands."""
    assert command in main.commands, f"there is no command {command}"
    return {option for parameter in main.commands[command].params for option in parameter.opts}


def test_the_readmes_tuning_command_is_one_that_the_tool_takes() -> None:
    lines = [x for x in commands((ROOT / "README.md").read_text()) if "pip install" in x and " run " in x]
    assert len(lines) == 1, lines
    *_, command = lines[0].split("&&")
    words = command.split()
    assert words[:2] == [".venv/bin/iree-tune", "run"] and (ROOT / words[2]).is_file()
    assert {word for word in words[3:] if word.startswith("-")} <= options_of("run")


def test_options_that_the_documents_name_exist() -> None:
    """Calls of ``iree-tune`` in shell blocks; what follows ``--`` belongs to iree-compile."""
    seen = set()
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks" / "README.md"):
        for line in commands(path.read_text()):
            call = re.search(r"(?:^|[/ ])iree-tune ([a-z]+)(.*)", line.split(" -- ")[0])
            if not call or line.lstrip().startswith("#"):
                continue
            named = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", call[2]))
            assert named <= options_of(call[1]), f"{path.name}: {line}"
            seen.add(call[1])
    assert seen == set(main.commands), "a command that no document shows"


def test_the_command_reference_has_every_option() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    for command in main.commands:
        for option in options_of(command):
            assert not option.startswith("--") or f"`{option}" in text, f"docs/cli.md says nothing of {option}"


def test_the_wheel_has_both_packages_and_their_types(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    # Building in place would leave build/ and an egg-info in the working tree.
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("costmodel", "tuner"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").touch()
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("iree_tune-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(n).decode() for n in names if n.endswith(".dist-info/METADATA"))
        (entries,) = (archive.read(n).decode() for n in names if n.endswith("/entry_points.txt"))
    # Of the copy, not of the tree: the two differ if somebody saves a file meanwhile.
    modules = {str(p.relative_to(source)) for top in ("costmodel", "tuner") for p in (source / top).rglob("*.py")}
    assert modules <= names, f"left out: {modules - names}"
    assert {"costmodel/py.typed", "tuner/py.typed"} <= names
    assert not [n for n in names if n.split("/")[0] not in ("costmodel", "tuner") and ".dist-info/" not in n]
    assert any(n.endswith("LICENSE") for n in names)
    assert f"\nVersion: {tuner.__version__}\n" in metadata and "Apache-2.0" in metadata
    assert "iree-tune = tuner.cli:main" in entries


def test_the_cost_model_knows_nothing_of_iree() -> None:
    for path in (ROOT / "costmodel").rglob("*.py"):
        assert not re.search(r"^\s*(?:from|import)\s+(?:iree|tuner)\b", path.read_text(), re.M), path


def test_no_file_mentions_a_developers_machine() -> None:
    # In two parts, or this file would mention one.
    private = re.compile(rb"(?<![\w.$}>*])/(?:" + rb"home|Users|root|work" + rb")/[A-Za-z]")
    for path in project_files():
        found = private.search(path.read_bytes())
        assert found is None, f"{path.relative_to(ROOT)}: {found[0]!r}..."


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{name}: {target}"
