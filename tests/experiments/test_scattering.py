"""The scattering features agree with convolutions that are written out, and respect shifts, turns and brightness."""

import numpy as np
import pytest

from experiments.data.scattering import MARGIN, NUM_ANGLES, scattering, wavelet, windows

SIZE = 12


@pytest.fixture(scope="module")
def image():
    return np.random.default_rng(0).uniform(size=(SIZE, SIZE))


def convolve(image, kernel):
    """Return the circular convolution by its definition, one shift after another."""
    total = 0
    for shift in np.ndindex(kernel.shape):
        total = total + kernel[shift] * np.roll(image, shift, axis=(0, 1))
    return total


def moduli(image, scale):
    """Return |image * psi| for each wavelet psi of a scale, by angle."""
    return [np.abs(convolve(image, wavelet(len(image), scale, angle))) for angle in range(NUM_ANGLES)]


def test_coefficients_are_the_convolutions_of_the_definition(image):
    """The coefficients are local averages of the image and of its moduli of the first and second order."""
    padded = np.pad(image, MARGIN)
    fine = moduli(padded, 0)
    coarse = moduli(padded, 1)

    # The second order looks at the fine moduli with the coarse wavelets.
    second = [coarser for modulus in fine for coarser in moduli(modulus, 1)]

    average = windows(len(padded), 3)
    expected = [average @ channel @ average.T for channel in (padded, *fine, *coarse, *second)]
    coefficients = scattering(image[None], 3)[0]
    np.testing.assert_allclose(coefficients, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("scale", "angle"), [(0, 0), (0, 3), (1, 0), (1, 6)])
def test_wavelets_are_the_formula_and_have_no_mean(scale, angle):
    """A wavelet is a plane wave under a Gaussian envelope, less the multiple of the envelope that removes its mean."""
    size = 64
    psi = wavelet(size, scale, angle)
    assert abs(psi.sum()) < 1e-12

    # The torus is large: one copy is all there is.
    centred = np.arange(size) - size // 2
    rows = centred[:, None] / 2**scale
    columns = centred[None] / 2**scale

    # Coordinates along the wave and across it.
    theta = np.pi * angle / 8
    along = np.cos(theta) * rows + np.sin(theta) * columns
    across = -np.sin(theta) * rows + np.cos(theta) * columns

    envelope = np.exp(-(along**2 + across**2 / 4) / 1.28)
    wave = np.exp(0.75j * np.pi * along) * envelope
    without_mean = wave - wave.sum() / envelope.sum() * envelope
    expected = without_mean / envelope.sum()
    in_the_middle = np.roll(psi, (size // 2, size // 2), axis=(0, 1))
    np.testing.assert_allclose(in_the_middle, expected, atol=1e-9)
