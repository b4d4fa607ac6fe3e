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

import numpy as np
import scipy.fft

from experiments.errors import UserError

NUM_SCALES, NUM_ANGLES = 2, 8
MARGIN = 2
NUM_CHANNELS = 1 + NUM_SCALES * NUM_ANGLES + NUM_ANGLES**2
SIGMA, FREQUENCY, ELONGATION = 0.8, 0.75 * np.pi, 2.0
WINDOW = 0.4
CHUNK = 64
"""Images taken at a time: their transforms fit a processor's cache."""


def scattering(images: np.ndarray, num_blocks: int) -> np.ndarray:
    """The scattering coefficients of images, ``float32[N, 81, num_blocks, num_blocks]``.

    Args:
      images: ``[N, size, size]``.
      num_blocks: windows along a side, >= 1; ``size / 4`` of them keep everything that the wavelets pass on.

    >>> scattering(np.ones((1, 8, 8)), 2).shape
    (1, 81, 2, 2)
    """
    if images.ndim != 3 or images.shape[1] != images.shape[2]:
        raise UserError(f"scattering is for square images [N, size, size], got shape {images.shape}")
    padded = np.pad(images.astype(np.float32), [(0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)])
    size = padded.shape[1]
    filters = [
        np.stack([_fourier(wavelet(size, j, t)).astype(np.complex64) for t in range(NUM_ANGLES)])
        for j in range(NUM_SCALES)
    ]
    average = windows(size, num_blocks).astype(np.float32)
    out = np.empty((len(images), NUM_CHANNELS, num_blocks, num_blocks), np.float32)
    for first in range(0, len(images), CHUNK):
        chunk = slice(first, first + CHUNK)
        out[chunk] = _scatter(padded[chunk], filters, average)
    return out


def wavelet(size: int, scale: int, angle: int) -> np.ndarray:
    """psi of one scale and direction on the torus, ``complex128[size, size]``, its centre at the pixel (0, 0)."""
    wave, envelope = np.zeros((size, size), complex), np.zeros((size, size))
    theta = np.pi * angle / NUM_ANGLES
    for shift in np.ndindex(5, 5):  # the copies of a Gaussian beyond these are below rounding
        rows, columns = np.meshgrid(*(np.arange(size) + size * (s - 2) for s in shift), indexing="ij")
        along = (np.cos(theta) * rows + np.sin(theta) * columns) / 2**scale
        across = (np.cos(theta) * columns - np.sin(theta) * rows) / 2**scale
        gaussian = np.exp(-(along**2 + (across / ELONGATION) ** 2) / (2 * SIGMA**2))
        envelope += gaussian
        wave += gaussian * np.exp(1j * FREQUENCY * along)
    return (wave - wave.sum() / envelope.sum() * envelope) / envelope.sum()


def windows(size: int, num_blocks: int) -> np.ndarray:
    """One row of weights with the sum 1 for each block along a side of the padded image, ``[num_blocks, size]``."""
    block = (size - 2 * MARGIN) / num_blocks
    centres = MARGIN + block * (np.arange(num_blocks) + 0.5) - 0.5
    copies = size * np.arange(-2, 3)[:, None, None]  # the torus' own; those beyond are below rounding
    weights = np.exp(-(((np.arange(size) - centres[:, None] + copies) / (WINDOW * block)) ** 2) / 2).sum(axis=0)
    return weights / weights.sum(axis=1, keepdims=True)


def _scatter(images: np.ndarray, filters: list[np.ndarray], average: np.ndarray) -> np.ndarray:
    blur = lambda x: average @ x @ average.T  # noqa: E731
    spectra = _fourier(images)[:, None]
    moduli = [_modulus(spectra * bank) for bank in filters]
    second = [_modulus(spectra * filters[1]) for spectra in _fourier(moduli[0]).swapaxes(0, 1)[:, :, None]]
    return np.concatenate([blur(x) for x in (images[:, None], *moduli, *second)], axis=1)


def _modulus(spectra: np.ndarray) -> np.ndarray:
    return np.abs(np.asarray(scipy.fft.ifft2(spectra, overwrite_x=True)))


def _fourier(x: np.ndarray) -> np.ndarray:
    return np.asarray(scipy.fft.fft2(x))
