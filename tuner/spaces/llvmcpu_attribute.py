"""Read and write ``#iree_codegen.compilation_info`` text with an ``#iree_cpu.lowering_config``.

IREE has no Python binding for its CPU attributes; all knowledge of their spelling is kept here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.candidates import LEVELS

PEELING = "enable_loop_peeling"
"""Entry of the translation info's dictionary that turns loop peeling on."""

_LEVEL = re.compile(r"\b(" + "|".join(LEVELS) + r")\s*=\s*(?:\{\s*sizes\s*=\s*)?\[")
_PIPELINE = re.compile(r"pipeline\s*=\s*#iree_cpu\.pipeline<\s*(\w+)\s*>")
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Parsed:
    """A config as far as columns can hold it, and the rest as text.

    Parameters
    ----------
    tiles
        ``int32 [len(LEVELS), loops]``; 0 where a level or an entry is absent.
    pipeline
        Name inside ``#iree_cpu.pipeline<...>``.
    peeling
        Whether the translation info's dictionary has :data:`PEELING`.
    entries
        The other entries of that dictionary, as written.
    parameters
        What stands between the pipeline and the dictionary (``workgroup_size = ...``), as written.
    plain
        False if sizes carry more than numbers (scalable flags, interchange), which columns can't hold.
    """

    tiles: NDArray[np.int32]
    pipeline: str
    peeling: bool
    entries: tuple[str, ...] = ()
    parameters: str = ""
    plain: bool = True


def _closing(text: str, start: int, pair: str) -> int:
    """Find the index of the bracket that closes the one at ``start``."""
    depth = 0
    quoted = False
    for at in range(start, len(text)):
        char = text[at]
        if char == '"' and text[at - 1] != "\\":
            quoted = not quoted
        elif quoted:
            continue
        elif char == pair[0]:
            depth += 1
        # "->" closes nothing.
        elif char == pair[1] and not (char == ">" and text[at - 1] == "-"):
            depth -= 1
            if depth == 0:
                return at
    raise ValueError(f"unbalanced {pair!r} in {text!r}")


def _split(text: str) -> tuple[str, ...]:
    """Split at the commas outside all brackets and quotes."""
    parts: list[str] = []
    depth = 0
    quoted = False
    start = 0
    for at, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<[{(":
            depth += 1
        elif char in ">]})":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return tuple(part for part in parts if part)


def parse(text: str, loops: int) -> Parsed | None:
    """Read a compilation info.

    Parameters
    ----------
    text
        ``#iree_codegen.compilation_info<lowering_config = ..., translation_info = ...>``.
    loops
        Number of loops of the root op; shorter levels are padded with 0.

    Returns
    -------
    Parsed or None
        None where the pipeline or the lowering config is not one of ``iree_cpu``, or a level is longer than
        ``loops``.
    """
    pipeline = _PIPELINE.search(text)
    lowering = text.find("#iree_cpu.lowering_config<")
    if pipeline is None or lowering < 0:
        return None
    try:
        levels_text = text[lowering : _closing(text, text.index("<", lowering), "<>")]
        tiles = np.zeros((len(LEVELS), loops), np.int32)
        plain = True
        for match in _LEVEL.finditer(levels_text):
            body = levels_text[match.end() : _closing(levels_text, match.end() - 1, "[]")]
            sizes = [int(size) for size in _INTEGER.findall(body)]
            # Scalable sizes (`[16]`) can't be written back from numbers.
            plain = plain and re.fullmatch(r"[\s\d,]*", body) is not None
            if len(sizes) > loops:
                return None
            tiles[LEVELS.index(match.group(1)), : len(sizes)] = sizes
        # `{sizes = [...], interchange = [...]}`: columns hold no interchange.
        plain = plain and "sizes" not in levels_text
        translation = text.rindex("#iree_codegen.translation_info<", 0, pipeline.start())
        end = _closing(text, text.index("<", translation), "<>")
        rest = text[pipeline.end() : end].strip()
        entries: tuple[str, ...] = ()
        brace = rest.find("{")
        if brace >= 0:
            entries = _split(rest[brace + 1 : _closing(rest, brace, "{}")])
            rest = rest[:brace]
    except ValueError:
        return None
    names = [entry.split("=")[0].strip() for entry in entries]
    return Parsed(
        tiles=tiles,
        pipeline=pipeline.group(1),
        peeling=PEELING in names,
        entries=tuple(e for e, name in zip(entries, names, strict=True) if name != PEELING),
        parameters=rest.strip().strip(",").strip(),
        plain=plain,
    )


def write(config: Parsed) -> str:
    """Write a config as ``#iree_codegen.compilation_info<...>``.

    The distribution level is always written, since it marks the root op for the compiler; other levels only where they
    tile something.
    """
    levels = ", ".join(
        f"{name} = [{', '.join(map(str, sizes.tolist()))}]"
        for name, sizes in zip(LEVELS, config.tiles, strict=True)
        if name == "distribution" or sizes.any()
    )
    parts = [f"pipeline = #iree_cpu.pipeline<{config.pipeline}>"]
    if config.parameters:
        # The attribute's own grammar puts no comma between the pipeline and workgroup_size.
        parts[0] += f" {config.parameters}"
    entries = ((PEELING,) if config.peeling else ()) + config.entries
    if entries:
        parts.append("{" + ", ".join(entries) + "}")
    return (
        f"#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<{levels}>, "
        f"translation_info = #iree_codegen.translation_info<{', '.join(parts)}>>"
    )
