"""One stand-in for all dispatches that compute the same, across programs and runs: their artifacts are shared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from tuner.errors import TuneError
from tuner.task import Dispatch, Slot
from tuner.workers.artifacts import ArtifactCache, CachedOutcome


class DispatchShelf:
    """Keeps the first dispatch seen of each key in the artifact cache.

    Dispatches of the same key have the same code but for names and for places in the buffer, which another
    program chooses otherwise. Compiled from one text, candidates of all of them are the same artifacts.

    Parameters
    ----------
    cache
        Where candidates go too; the shelf is bounded with them.
    flags, compiler
        What the artifacts are made with.
    """

    def __init__(self, cache: ArtifactCache, flags: Sequence[str], compiler: str) -> None:
        self._cache = cache
        self._flags = list(flags)
        self._compiler = compiler

    def share(self, dispatch: Dispatch) -> Dispatch:
        """Give the dispatch with the template, slots and buffer of the first one of its key.

        A disk that is full costs the sharing, not the run.
        """
        key = self._cache.key(f"template of {dispatch.key}", self._flags, self._compiler)
        known = self._load(key)
        if known is not None:
            template, slots, buffer_bytes = known
            return replace(dispatch, template=template, slots=slots, buffer_bytes=buffer_bytes)
        kept = {
            "template": dispatch.template,
            "slots": [asdict(slot) for slot in dispatch.slots],
            "buffer_bytes": dispatch.buffer_bytes,
        }
        data = json.dumps(kept).encode()
        try:
            self._cache.store(key, CachedOutcome("ok", "", 0.0, len(data)), data)
        except TuneError:
            return dispatch
        return dispatch

    def _load(self, key: str) -> tuple[str, tuple[Slot, ...], int] | None:
        """Read a kept dispatch; what is damaged counts as missing."""
        if self._cache.load(key) is None:
            return None
        try:
            kept = json.loads(self._cache.path(key).read_bytes())
            return str(kept["template"]), tuple(Slot(**slot) for slot in kept["slots"]), int(kept["buffer_bytes"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
