"""Errors that are the user's to mend: shown as one line, without a traceback."""


class UserError(ValueError):
    """A wrong argument, file or folder: what was expected, what was got, what to do."""


class RunInterrupted(Exception):
    """The user stopped a run; its message says how to go on."""
