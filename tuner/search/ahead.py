"""Makes tasks' searches in the background, while this process would only wait for the compile workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tuner.search.base import Search
from tuner.spaces.base import SearchSpace


class Ahead:
    """Enumerates and ranks spaces for the first time, one at a time, in a thread.

    Parameters
    ----------
    make
        Makes a space's search.
    """

    def __init__(self, make: Callable[[SearchSpace], Search]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ranking")
        self._begun: dict[str, Future[Search]] = {}

    def start(self, key: str, space: SearchSpace) -> None:
        """Begin with a task's search, unless that was done before."""
        if key not in self._begun:
            self._begun[key] = self._thread.submit(self._make, space)

    def settle(self) -> None:
        """Wait until nothing runs any more: measuring wants the machine for itself."""
        wait(self._begun.values())

    def take(self, key: str) -> Search:
        """Give a task's search away, which :meth:`start` began.

        Raises
        ------
        Exception
            What making it raised.
        """
        return self._begun.pop(key).result()

    def close(self) -> None:
        """Forget what was not taken."""
        self._thread.shutdown(cancel_futures=True)
        self._begun.clear()
