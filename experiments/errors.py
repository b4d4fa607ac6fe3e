"""Errors that are the user's to mend: shown as one line, without a traceback."""


class UserError(ValueError):
    """A wrong argument, file or folder: what was expected, what was got, what to do."""


class CapacityExceededError(RuntimeError):
    """A Poisson batch exceeds the capacity planned for it: the run stops, and its epsilon already pays for that."""


class RunInterrupted(Exception):
    """The user stopped a run; its message says how to go on."""
