"""Errors that are the user's to mend: shown as one line, without a traceback."""

from gdpjax.sweeps import RunInterrupted, UserError

__all__ = ["RunInterrupted", "UserError"]
