"""Runs in a folder that are killed, and run to their end."""

from gdpjax.training import start_run


class Killed(BaseException):
    """Stands for kill -9."""


def interrupted(parts, folder, at, chunk, key):
    """Stop without any farewell after ``at`` steps; the infos of the chunks before."""
    infos = []

    def stop(done):
        if done == at:
            raise Killed

    run = start_run(folder, *parts, key=key, scan=False)
    try:
        while True:
            infos += run.advance(chunk, on_step=stop)
    except Killed:
        return infos


def finished(run, chunk=5):
    infos = []
    while not run.finished:
        infos += run.advance(chunk)
    return infos
