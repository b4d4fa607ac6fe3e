"""The scattering features: against convolutions written out, and what a scattering must not or must depend on."""

import numpy as np
import pytest

from experiments.data import scattering as scattering_module
from experiments.data.scattering import MARGIN, NUM_ANGLES, scattering, wavelet, windows
from experiments.errors import UserError

SIZE = 12


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).uniform(size=(SIZE, SIZE))


def convolve(image, kernel):
    """The circular convolution by its definition, one shift after another."""
    return sum(kernel[shift] * np.roll(image, shift, axis=(0, 1)) for shift in np.ndindex(kernel.shape))


def test_coefficients_are_the_convolutions_of_the_definition(image):
    padded = np.pad(image, MARGIN)
    average = windows(len(padded), 3)
    bank = [[wavelet(len(padded), j, t) for t in range(NUM_ANGLES)] for j in (0, 1)]
    first = [[np.abs(convolve(padded, psi)) for psi in each] for each in bank]
    second = [np.abs(convolve(u, psi)) for u in first[0] for psi in bank[1]]
    expected = [average @ u @ average.T for u in (padded, *first[0], *first[1], *second)]
    np.testing.assert_allclose(scattering(image[None], 3)[0], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("scale", "angle"), [(0, 0), (0, 3), (1, 0), (1, 6)])
def test_wavelets_are_the_formula_and_have_no_mean(scale, angle):
    size, theta = 64, np.pi * angle / 8
    psi = wavelet(size, scale, angle)
    assert abs(psi.sum()) < 1e-12
    half = np.arange(size) - size // 2  # the torus is large: one copy is all there is
    rows, columns = half[:, None] / 2**scale, half[None] / 2**scale
    along, across = np.cos(theta) * rows + np.sin(theta) * columns, -np.sin(theta) * rows + np.cos(theta) * columns
    envelope = np.exp(-(along**2 + across**2 / 4) / 1.28)
    wave = np.exp(0.75j * np.pi * along) * envelope
    expected = (wave - wave.sum() / envelope.sum() * envelope) / envelope.sum()
    np.testing.assert_allclose(np.roll(psi, (size // 2, size // 2), axis=(0, 1)), expected, atol=1e-9)


def test_a_wavelet_answers_to_waves_of_its_scale_and_direction():
    rows = np.arange(32)[:, None] * np.ones(32)
    for scale in (0, 1):
        strength = [
            [np.abs(convolve(np.cos(0.75 * np.pi / 2**scale * rows), wavelet(32, j, t))).mean() for t in range(8)]
            for j in (0, 1)
        ]
        assert np.unravel_index(np.argmax(strength), (2, 8)) == (scale, 0)


def test_a_shift_by_one_block_shifts_the_blocks(image):
    canvas = np.zeros((28, 28))
    canvas[4:16, 6:18] = image
    blocks, moved = scattering(np.stack([canvas, np.roll(canvas, (4, 4), axis=(0, 1))]), 7)
    np.testing.assert_allclose(moved[:, 1:, 1:], blocks[:, :-1, :-1], rtol=1e-3, atol=1e-6)


def test_a_quarter_turn_turns_directions_and_blocks(image):
    plain, turned = scattering(np.stack([image, np.rot90(image)]), 3)
    turn = lambda maps, axis: np.roll(np.rot90(maps, axes=(-2, -1)), 4, axis=axis)  # noqa: E731
    directions = plain[1:17].reshape(2, 8, 3, 3)
    np.testing.assert_allclose(turned[1:17].reshape(2, 8, 3, 3), turn(directions, 1), rtol=1e-3, atol=1e-6)
    pairs = plain[17:].reshape(8, 8, 3, 3)
    np.testing.assert_allclose(turned[17:].reshape(8, 8, 3, 3), turn(pairs, (0, 1)), rtol=1e-3, atol=1e-6)


def test_brighter_is_proportionally_more(image):
    plain, bright = scattering(np.stack([image, 3 * image]), 3)
    np.testing.assert_allclose(bright, 3 * plain, rtol=1e-4)


def test_an_example_is_by_itself_whatever_chunk_it_is_in(image, monkeypatch):
    monkeypatch.setattr(scattering_module, "CHUNK", 2)
    images = np.stack([image, image.T, image[::-1]])
    together = scattering(images, 3)
    alone = np.concatenate([scattering(each[None], 3) for each in images])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_windows_are_averages_centred_on_their_blocks():
    average = windows(28 + 2 * MARGIN, 4)
    np.testing.assert_allclose(average.sum(axis=1), 1)
    np.testing.assert_allclose(average, average[::-1, ::-1])
    assert average.argmax(axis=1).tolist() == [MARGIN + 3, MARGIN + 10, MARGIN + 17, MARGIN + 24]


def test_images_that_are_not_square_are_refused():
    with pytest.raises(UserError, match=r"square images \[N, size, size\], got shape \(1, 8, 12\)"):
        scattering(np.zeros((1, 8, 12)), 2)
