"""Handwritten digits that are public and not MNIST's: scikit-learn's 1,797 images of 8x8 pixels, in MNIST's layout.

They come with scikit-learn (the test part of UCI's "Optical Recognition of Handwritten Digits"; other writers). MNIST's
description says how its images were laid out: the digit fills a box of 20x20 pixels, whose centre of mass is at the
centre of 28x28. Each small digit is enlarged, distorted at random as handwriting varies (a rotation, a shear, two
scales and a smooth displacement), drawn with strokes of even ink, and laid out like that.
"""

import numpy as np
import scipy.ndimage

SEED = 20191128
COPIES = 7
"""Distorted copies of each digit."""
SIZE, BOX = 28, 20
ENLARGED = 80
"""Pixels along a side of the enlarged digit, of 10 pixels (8 and a margin)."""

MOST_DEGREES, MOST_SHEAR, MOST_LOG_SCALE = 12.0, 0.25, 0.15
MOST_DISPLACEMENT, SMOOTHNESS = 2.5, 10.0
"""Of the smooth displacement, in enlarged pixels: its largest root mean square, and over how many it varies."""
INK, EDGE = (0.35, 0.65), (0.04, 0.1)
"""From which gray on there is ink, and over which range of grays it fades."""


def load_public_digits() -> tuple[np.ndarray, np.ndarray]:
    """Images ``float32[12579, 28, 28]`` in [0, 1] and labels ``int[12579]``, always the same."""
    import sklearn.datasets

    pixels, targets = map(np.asarray, sklearn.datasets.load_digits(return_X_y=True))
    generator = np.random.default_rng(SEED)
    digits = np.tile(pixels.reshape(-1, 8, 8) / 16.0, (COPIES, 1, 1))
    images = np.stack([draw(digit, generator) for digit in digits])
    return images, np.tile(targets, COPIES)


def draw(digit: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """One distorted copy of a digit ``[8, 8]`` in [0, 1], ``float32[28, 28]``."""
    factor = ENLARGED // (len(digit) + 2)
    enlarged = scipy.ndimage.zoom(np.pad(digit, 1), factor, order=3, mode="grid-constant", grid_mode=True)
    moved = scipy.ndimage.map_coordinates(enlarged, _sources(generator), order=1)

    # Strokes of even ink: a soft threshold.
    threshold, edge = generator.uniform(*INK), generator.uniform(*EDGE)
    ink = 1 / (1 + np.exp((threshold - moved) / edge))
    ink[ink < 0.05] = 0
    return _lay_out(ink)


def _sources(generator: np.random.Generator) -> np.ndarray:
    """Draw where each enlarged pixel comes from, ``[2, 80, 80]``: an affine map about the centre, displaced."""
    angle = np.radians(generator.uniform(-MOST_DEGREES, MOST_DEGREES))
    shear = generator.uniform(-MOST_SHEAR, MOST_SHEAR)
    scales = np.exp(generator.uniform(-MOST_LOG_SCALE, MOST_LOG_SCALE, 2))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    affine = rotation @ np.array([[scales[0], 0.0], [shear, scales[1]]])

    # White noise, smoothed, and scaled to its root mean square.
    noise = generator.uniform(-1, 1, (2, ENLARGED, ENLARGED))
    smooth = scipy.ndimage.gaussian_filter(noise, SMOOTHNESS, axes=(1, 2))
    strength = generator.uniform(0, MOST_DISPLACEMENT)
    displacement = strength * smooth / np.sqrt((smooth**2).mean())

    centre = (ENLARGED - 1) / 2
    positions = np.indices((ENLARGED, ENLARGED)) - centre
    return np.tensordot(affine, positions, axes=1) + centre + displacement


def _lay_out(ink: np.ndarray) -> np.ndarray:
    """Return the digit in a box of 20x20 pixels, its centre of mass at the centre of the image."""
    rows, columns = np.nonzero(ink > 0.3)
    box = ink[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    factor = BOX / max(box.shape)
    smooth = scipy.ndimage.gaussian_filter(box, 1 / (3 * factor))
    small = np.asarray(scipy.ndimage.zoom(smooth, factor, order=1))
    small = np.clip(small / small.max(), 0, 1)

    # On a canvas with room for a box whose mass is at its corner.
    canvas = np.zeros((SIZE + 2 * BOX, SIZE + 2 * BOX), np.float32)
    mean = np.array(scipy.ndimage.center_of_mass(small))
    top, left = np.rint((len(canvas) - 1) / 2 - mean).astype(int)
    canvas[top : top + small.shape[0], left : left + small.shape[1]] = small
    return canvas[BOX:-BOX, BOX:-BOX]
