"""Print, as JSON, what the language command makes on a mesh of four devices, beside one."""

import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from experiments.language import command
from gdpjax.training import Run
from tests.language.test_command import QUICK, SMALL, config_of, flat, weights_of, write_texts
from tests.training.conftest import forget_keys


def main():
    with contextlib.redirect_stdout(sys.stderr):
        report = report_of_commands()
    print(json.dumps(report))


def report_of_commands():
    """Return what the commands do; they print tables."""
    command.PRESETS, command.SETTINGS = {"tiny": SMALL}, {"tiny": QUICK}
    report = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write_texts(folder)
        alone = config_of(folder, folder / "alone")
        command.run(alone)
        expected = flat(weights_of(alone))
        size = max(np.abs(leaf).max() for leaf in expected.values())

        # Everything is finished but the private training, which is done again on a mesh, to its middle and to its end.
        spread = dataclasses.replace(alone, out=folder / "spread", devices=4)
        shutil.copytree(alone.out, spread.out)
        shutil.rmtree(spread.out / "epsilon_2")
        forget_keys()  # the same noise again, to compare with
        report["interrupted"], report["devices"] = interrupted(spread)
        moved = dataclasses.replace(alone, out=folder / "moved")
        shutil.copytree(spread.out, moved.out)
        command.run(spread)
        found = flat(weights_of(spread))
        report["error"] = max(float(np.abs(found[name] - expected[name]).max() / size) for name in expected)

        # One device takes over from four.
        command.run(moved)
        report["moved"] = all(bool(np.isfinite(leaf).all()) for leaf in flat(weights_of(moved)).values())
        report["table"] = (spread.out / command.TABLE).read_text()
    return report


def interrupted(config):
    """Stop a command after some steps; return how many those are, and the devices that the weights are on."""
    advance, found = Run.advance, []

    def some_steps(run, num_steps, **options):
        if run.step:
            leaf = run.state.params["layers"]["feed_forward"]["up"]["kernel"]
            assert not leaf.sharding.is_fully_replicated
            found.extend([run.step, len(leaf.sharding.device_set)])
            raise KeyboardInterrupt
        return advance(run, 4, **options)

    Run.advance = some_steps
    with pytest.raises(command.RunInterrupted):
        command.run(config)
    Run.advance = advance
    return found


if __name__ == "__main__":
    main()
