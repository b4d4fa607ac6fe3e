"""Runs in a folder that are killed, and run to their end."""

import jax

from gdpjax.training import start_run


class Killed(BaseException):
    """Stands for kill -9."""


def committed(run):
    """Bind the arrays of a run to their device, as those of a checkpoint are, so that one program makes the steps."""
    run.state = jax.device_put(run.state, jax.devices()[0])
    return run


def interrupted(parts, folder, at, chunk, key):
    """Stop without any farewell after ``at`` steps; the infos of the chunks before."""
    infos = []

    def stop(done):
        if done == at:
            raise Killed

    run = committed(start_run(folder, *parts, key=key, scan=False))
    try:
        while True:
            infos += run.advance(chunk, on_step=stop)
    except Killed:
        return infos


def finished(run, chunk=5):
    """Take the steps that are left; their infos."""
    infos = []
    committed(run)
    while not run.finished:
        infos += run.advance(chunk)
    return infos
