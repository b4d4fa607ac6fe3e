"""Errors that are the user's to mend, and the one that says how to go on."""


class UserError(ValueError):
    """A wrong argument, file or folder: what was expected, what was got, what to do."""


class RunInterrupted(Exception):
    """The user stopped a run or a sweep; the message says how to go on."""
