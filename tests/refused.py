"""Tests of what is refused: ``test_bad_input = refusals((lambda: f(-1), "must be > 0"), ...)``."""

import pytest


def refusals(*cases):
    """Return a test that each call is a ValueError whose message has what stands beside it."""

    @pytest.mark.parametrize(("call", "message"), cases)
    def is_refused(call, message):
        with pytest.raises(ValueError, match=message):
            call()

    return is_refused
