"""Wavelet scattering of small images: features that nothing was learnt for (Mallat, arXiv:1101.2286; Bruna and Mallat,
arXiv:1203.1513; with private training, Tramer and Boneh, arXiv:2011.11660).

An average over a window does not change when the image moves a little, but loses what moves. A wavelet keeps it: psi
has mean zero, so that x * psi holds details of one scale and direction, and its modulus can be averaged in turn, since
|x * psi| is not of mean zero. What that average loses is again in its wavelet coefficients:

    S0 = A x,    S1[j, t] = A |x * psi_{j,t}|,    S2[j, t, k, s] = A ||x * psi_{j,t}| * psi_{k,s}|,    k > j

(k <= j would give next to nothing: a modulus varies more slowly than its wavelet.) With two scales and eight
directions those are 1 + 16 + 64 = 81 averages of each window.

*The wavelet* (Morlet's) is a plane wave under an elongated Gaussian, less what gives it a mean:

    psi_{j,t}(u) = (e^{i 3 pi / 4 v1} - b) exp(-(v1^2 + v2^2 / 4) / (2 0.8^2)),   v = R_{-t} u / 2^j,   t = 0, pi/8, ...

scaled so that the Gaussian has the sum 1; b makes the sum of psi exactly 0. The other half circle of directions would
give the same: psi at t + pi is the conjugate of psi at t, and images are real.

*The windows* are Gaussian, one around the centre of each block of pixels, with a standard deviation of 0.4 times the
block's side. They are separable, so that A is a matrix from the left and its transpose from the right, and no average
is computed in vain.

*The border*: images are extended by two pixels of 0 on each side, and then periodically. That is exact on the torus, so
that convolutions are products of discrete Fourier transforms.

Nothing here depends on other images: the features of one example are a function of that example. Statistics of the
whole data set (means and deviations of each feature) would be private.
"""

from typing import Any

import numpy as np
import scipy.fft
from jaxtyping import Complex, Complex64, Float, Float32

NUM_SCALES = 2
NUM_ANGLES = 8
NUM_CHANNELS = 1 + NUM_SCALES * NUM_ANGLES + NUM_ANGLES**2
"""The average itself, then those of first and of second order."""

MARGIN = 2
"""Pixels of 0 on each side."""
SIGMA = 0.8
FREQUENCY = 0.75 * np.pi
ELONGATION = 2.0
WINDOW = 0.4
"""Standard deviation of a window over the side of its block."""
COPIES = 2
"""The torus is unrolled so many times to each side; beyond that a Gaussian is below rounding."""
CHUNK = 64
"""Images taken at a time: their transforms fit a processor's cache."""


def scattering(
    images: Float[np.ndarray, "images size size"], num_blocks: int
) -> Float32[np.ndarray, "images 81 num_blocks num_blocks"]:
    """Return the scattering coefficients of images, ``float32[N, 81, num_blocks, num_blocks]``.

    Args:
      images: ``[N, size, size]``.
      num_blocks: windows along a side, >= 1; ``size / 4`` of them keep everything that the wavelets pass on.

    >>> scattering(np.ones((1, 8, 8)), 2).shape
    (1, 81, 2, 2)
    """
    margins = [(0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)]
    padded = np.pad(images.astype(np.float32), margins)

    # What is the same for all images.
    size = padded.shape[1]
    banks = [_filter_bank(size, scale) for scale in range(NUM_SCALES)]
    average = windows(size, num_blocks).astype(np.float32)

    coefficients = np.empty((len(images), NUM_CHANNELS, num_blocks, num_blocks), np.float32)
    for first in range(0, len(images), CHUNK):
        chunk = slice(first, first + CHUNK)
        coefficients[chunk] = _scatter(padded[chunk], banks, average)
    return coefficients


def wavelet(size: int, scale: int, angle: int) -> Complex[np.ndarray, "size size"]:
    """Return psi of one scale and direction on the torus, its centre at the pixel (0, 0)."""
    theta = np.pi * angle / NUM_ANGLES
    cos, sin = np.cos(theta), np.sin(theta)
    pixels = np.arange(size)
    wave = np.zeros((size, size), complex)
    envelope = np.zeros((size, size))

    # The sum over all copies of the torus, from -COPIES to COPIES along each side.
    for down, right in np.ndindex(2 * COPIES + 1, 2 * COPIES + 1):
        rows, columns = np.meshgrid(
            pixels + size * (down - COPIES),
            pixels + size * (right - COPIES),
            indexing="ij",
        )

        # Coordinates along the wave and across it.
        along = (cos * rows + sin * columns) / 2**scale
        across = (cos * columns - sin * rows) / 2**scale
        gaussian = np.exp(-(along**2 + (across / ELONGATION) ** 2) / (2 * SIGMA**2))
        envelope += gaussian
        wave += gaussian * np.exp(1j * FREQUENCY * along)

    # Without its mean, and scaled so that the Gaussian has the sum 1.
    mean = wave.sum() / envelope.sum()
    return (wave - mean * envelope) / envelope.sum()


def windows(size: int, num_blocks: int) -> Float[np.ndarray, "num_blocks size"]:
    """Return the weights of one side's pixels in each block's average; those of a block have the sum 1."""
    # The centre of each block, in pixels.
    block = (size - 2 * MARGIN) / num_blocks
    centres = MARGIN + block * (np.arange(num_blocks) + 0.5) - 0.5

    # Distances from them: [copies, blocks, pixels].
    copies = size * np.arange(-COPIES, COPIES + 1)[:, None, None]
    distance = np.arange(size) - centres[:, None] + copies

    # A Gaussian of all copies of a pixel.
    deviations = distance / (WINDOW * block)
    weights = np.exp(-(deviations**2) / 2).sum(axis=0)
    return weights / weights.sum(axis=1, keepdims=True)


def _filter_bank(size: int, scale: int) -> Complex64[np.ndarray, "angles size size"]:
    """Return the transforms of the wavelets of one scale."""
    bank = []
    for angle in range(NUM_ANGLES):
        transform = _fourier(wavelet(size, scale, angle))
        bank.append(transform.astype(np.complex64))
    return np.stack(bank)


def _scatter(
    images: Float32[np.ndarray, "images size size"],
    banks: list[Complex64[np.ndarray, "angles size size"]],
    average: Float32[np.ndarray, "num_blocks size"],
) -> Float32[np.ndarray, "images 81 num_blocks num_blocks"]:
    """Return S0, then S1 by scale and direction, then S2 by first and second direction."""
    # Moduli by scale: [images, angles, size, size].
    spectra = _fourier(images)[:, None]
    first_order = [_modulus(spectra * bank) for bank in banks]

    # From a modulus of the finer scale to the wavelets of the coarser one.
    second_order = []
    by_angle = _fourier(first_order[0]).swapaxes(0, 1)
    for spectrum in by_angle:
        second_order.append(_modulus(spectrum[:, None] * banks[1]))

    # The averages of all windows.
    channels = [images[:, None], *first_order, *second_order]
    averages = [average @ channel @ average.T for channel in channels]
    return np.concatenate(averages, axis=1)


def _modulus(spectra: Complex[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Return the modulus of images, given their transforms, which it overwrites."""
    images = np.asarray(scipy.fft.ifft2(spectra, overwrite_x=True))
    return np.abs(images)


def _fourier(values: np.ndarray) -> Any:
    """Return the transforms of images over their last two axes."""
    return np.asarray(scipy.fft.fft2(values))
