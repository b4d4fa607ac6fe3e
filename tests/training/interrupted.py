"""Runs in a folder that are killed, and run to their end."""

import jax
import pytest

from gdpjax.training import start_run

KEY = jax.random.key(11)
CHECKPOINTS = "checkpoints.NOT_FOR_RELEASE"


class Killed(BaseException):
    """Stands for kill -9."""


def committed(run):
    """Bind the arrays of a run to their device, as those of a checkpoint are, so that one program makes the steps."""
    run.state = jax.device_put(run.state, jax.devices()[0])
    return run


def stopped(run, num_steps, at=None, by=Killed):
    """Stop a run in the middle of a chunk, after the step ``at`` or the first one; what it raised."""

    def stop(done):
        if at in (None, done):
            raise by

    with pytest.raises(by) as raised:
        run.advance(num_steps, on_step=stop)
    return raised.value


def interrupted(parts, folder, at, chunk, key):
    """Stop without any farewell after ``at`` steps; the infos of the chunks before."""
    infos = []
    run = committed(start_run(folder, *parts, key=key, scan=False))
    while run.step + chunk < at:
        infos += run.advance(chunk)
    stopped(run, chunk, at)
    return infos


def finished(run, chunk=5):
    """Take the steps that are left; their infos."""
    infos = []
    committed(run)
    while not run.finished:
        infos += run.advance(chunk)
    return infos
