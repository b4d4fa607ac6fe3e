"""A language model whose weights are spread over the devices of two processes: one run, killed and resumed."""

import pathlib
import shutil
from typing import NamedTuple

import numpy as np
import pytest

from tests.several_processes import result_of

SCRIPT = pathlib.Path(__file__).with_name("processes.py")


class Result(NamedTuple):
    """The report of a run of processes with two devices each; see ``processes.py``."""

    began: int
    lost: int
    charged: int
    share: float
    noise: str
    learned: float
    values: np.ndarray


def launch(count, folder, *options):
    """Return the result of so many processes, or None where one died."""
    words = result_of(SCRIPT, count, folder, *options, devices=2)
    if not words:
        return None
    began, lost, charged, share, noise, learned, *values = words
    return Result(int(began), int(lost), int(charged), float(share), noise, float(learned), np.array(values, float))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_two_processes_make_the_run_of_one_and_either_number_goes_on_after_a_kill(method, tmp_path):
    """Traps 10, 12, 13: one noise to the bit; a lost chunk is repeated with its own noise, or paid for twice."""
    alone = launch(1, tmp_path / "alone", method)
    whole = launch(2, tmp_path / "whole", method)
    assert (whole.began, whole.lost, whole.charged) == (0, 0, 6)

    # Sums are added in another order, of float32 numbers; and the units taught it something.
    assert whole.noise == alone.noise
    assert whole.learned > 1e-3
    size = np.abs(alone.values).max()
    np.testing.assert_allclose(whole.values, alone.values, rtol=0, atol=2e-5 * size)
    assert alone.share <= 0.55
    assert whole.share <= 0.3

    # The last process dies in the second chunk of two steps. As many processes repeat the chunk, to the bit.
    assert launch(2, tmp_path / "killed", method, "die") is None
    shutil.copytree(tmp_path / "killed", tmp_path / "to one")
    resumed = launch(2, tmp_path / "killed", method)
    assert (resumed.began, resumed.lost, resumed.charged) == (2, 0, 6)
    np.testing.assert_array_equal(resumed.values, whole.values)

    # Another number of processes rounds otherwise: the chunk stays paid for, and what is left gets new noise.
    other = launch(1, tmp_path / "to one", method)
    assert (other.began, other.lost, other.charged) == (4, 2, 6)
    assert np.isfinite(other.values).all()
    assert not np.array_equal(other.values, whole.values)
