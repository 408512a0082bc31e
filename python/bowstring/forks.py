"""Objects with threads, in a process that was forked from theirs."""

from __future__ import annotations

import os

from bowstring.errors import ClosedError

__all__ = ["Origin"]

_forks = 0


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Origin:
    """The process in which an object started its threads. A forked child has neither those nor, perhaps, their lock."""

    def __init__(self, what: str) -> None:
        self._what, self._process, self._forks = what, os.getpid(), _forks

    @property
    def is_here(self) -> bool:
        """True in that process. Forks are counted: asked once per row, process ids cost too much."""
        return self._forks == _forks

    def check(self) -> None:
        """Does nothing in that process.

        :raises ClosedError: in one that was forked from it.
        """
        if self._forks != _forks:
            raise ClosedError(
                f"this process was forked from process {self._process} after the {self._what} had started its threads, and threads "
                f"do not survive a fork; make a {self._what} in this process"
            )
