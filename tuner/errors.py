"""Errors that speak to the user: what was wrong, where, and what to do."""

from __future__ import annotations


class TuneError(Exception):
    """A run that failed for a reason the user can act on; the command exits with 1."""

    exit_code = 1


class UsageError(TuneError):
    """Bad usage or input: a wrong flag, file, shape or name; the command exits with 2."""

    exit_code = 2
