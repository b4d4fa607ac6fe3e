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
SIZE = 28
BOX = 20
ENLARGED = 80
"""Pixels along a side of the enlarged digit, of 10 pixels (8 and a margin)."""

MOST_DEGREES = 12.0
MOST_SHEAR = 0.25
MOST_LOG_SCALE = 0.15
MOST_DISPLACEMENT = 2.5
"""The largest root mean square of the smooth displacement, in enlarged pixels."""
SMOOTHNESS = 10.0
"""The number of enlarged pixels over which it varies."""
INK = (0.35, 0.65)
"""Least and largest gray from which on there is ink."""
EDGE = (0.04, 0.1)
"""Least and largest range of grays over which ink fades."""


def load_public_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return images ``float32[12579, 28, 28]`` in [0, 1] and labels ``int[12579]``, always the same."""
    import sklearn.datasets

    pixels, targets = map(np.asarray, sklearn.datasets.load_digits(return_X_y=True))
    small = pixels.reshape(-1, 8, 8) / 16.0
    digits = np.tile(small, (COPIES, 1, 1))
    labels = np.tile(targets, COPIES)

    generator = np.random.default_rng(SEED)
    images = np.stack([draw(digit, generator) for digit in digits])
    return images, labels


def draw(digit: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return a distorted copy ``float32[28, 28]`` of a digit ``[8, 8]`` in [0, 1]."""
    # Enlarge it with a margin, so that a pixel is a small part of a stroke, and distort it.
    with_margin = np.pad(digit, 1)
    factor = ENLARGED // len(with_margin)
    enlarged = scipy.ndimage.zoom(with_margin, factor, order=3, mode="grid-constant", grid_mode=True)
    moved = scipy.ndimage.map_coordinates(enlarged, _sources(generator), order=1)

    # Strokes of even ink: a soft threshold.
    threshold = generator.uniform(*INK)
    edge = generator.uniform(*EDGE)
    ink = 1 / (1 + np.exp((threshold - moved) / edge))
    ink[ink < 0.05] = 0
    return _lay_out(ink)


def _sources(generator: np.random.Generator) -> np.ndarray:
    """Draw where each enlarged pixel comes from, ``[2, 80, 80]``: an affine map about the centre, displaced."""
    angle = np.radians(generator.uniform(-MOST_DEGREES, MOST_DEGREES))
    shear = generator.uniform(-MOST_SHEAR, MOST_SHEAR)
    scales = np.exp(generator.uniform(-MOST_LOG_SCALE, MOST_LOG_SCALE, 2))

    # Scale and shear, then rotate.
    cos, sin = np.cos(angle), np.sin(angle)
    rotation = np.array([[cos, -sin], [sin, cos]])
    scaling = np.array([[scales[0], 0.0], [shear, scales[1]]])
    affine = rotation @ scaling

    # White noise, smoothed, and scaled to its root mean square.
    noise = generator.uniform(-1, 1, (2, ENLARGED, ENLARGED))
    smooth = scipy.ndimage.gaussian_filter(noise, SMOOTHNESS, axes=(1, 2))
    strength = generator.uniform(0, MOST_DISPLACEMENT)
    root_mean_square = np.sqrt((smooth**2).mean())
    displacement = strength * smooth / root_mean_square

    # Of each pixel, from the centre and back.
    centre = (ENLARGED - 1) / 2
    from_centre = np.indices((ENLARGED, ENLARGED)) - centre
    return np.tensordot(affine, from_centre, axes=1) + centre + displacement


def _lay_out(ink: np.ndarray) -> np.ndarray:
    """Return the digit in a box of 20x20 pixels, its centre of mass at the centre of the image."""
    # The smallest box that holds the digit.
    rows, columns = np.nonzero(ink > 0.3)
    height = slice(rows.min(), rows.max() + 1)
    width = slice(columns.min(), columns.max() + 1)
    box = ink[height, width]

    # Reduced to 20 pixels, after what would alias is smoothed away.
    factor = BOX / max(box.shape)
    smooth = scipy.ndimage.gaussian_filter(box, 1 / (3 * factor))
    small = np.asarray(scipy.ndimage.zoom(smooth, factor, order=1))
    small = np.clip(small / small.max(), 0, 1)

    # On a canvas with room for a box whose mass is at its corner.
    side = SIZE + 2 * BOX
    canvas = np.zeros((side, side), np.float32)
    centre_of_mass = np.array(scipy.ndimage.center_of_mass(small))
    top, left = np.rint((side - 1) / 2 - centre_of_mass).astype(int)
    bottom = top + small.shape[0]
    right = left + small.shape[1]
    canvas[top:bottom, left:right] = small
    return canvas[BOX:-BOX, BOX:-BOX]
