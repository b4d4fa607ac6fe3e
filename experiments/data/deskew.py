"""Upright images: a slanted digit is sheared back, each image by its own moments.

Take an image as a distribution of mass over rows r and columns c. Slanted writing moves its columns with its rows:

    c = mean_c + a (r - mean_r) + rest,    a = cov(r, c) / var(r),

the regression of columns on rows. Moving row r by -a (r - mean_r) columns makes the covariance 0. Nothing is learnt:
the result for one image is a function of that image.
"""

import numpy as np

STEEPEST = 1.0
"""Largest slant that is undone, in columns a row."""
SMALL = 1e-6
"""Keeps a blank image, or one of a single row, from a division by 0."""


def deskew(images: np.ndarray) -> np.ndarray:
    """Shear each image so that its columns do not depend on its rows.

    Args:
      images: ``[N, height, width]``, >= 0.

    Returns:
      ``float32[N, height, width]``; what is moved beyond the border is lost.

    >>> slanted = np.eye(9)[None]
    >>> upright = deskew(slanted)
    >>> bool(np.all(upright[0].argmax(axis=1) == 4))
    True
    """
    images = images.astype(np.float32)
    _, height, width = images.shape
    rows = np.arange(height, dtype=np.float32)
    columns = np.arange(width, dtype=np.float32)

    # The mean row and the mean column of each image's mass.
    mass = images.sum(axis=(1, 2)) + SMALL
    mass_of_rows = images.sum(axis=2)
    mass_of_columns = images.sum(axis=1)
    mean_row = mass_of_rows @ rows / mass
    mean_column = mass_of_columns @ columns / mass

    # The regression of columns on rows.
    from_row = rows - mean_row[:, None]
    from_column = columns - mean_column[:, None]
    variance = (mass_of_rows * from_row**2).sum(axis=1) / mass
    covariance = np.einsum("nrc,nr,nc->n", images, from_row, from_column, optimize=True) / mass
    slant = np.clip(covariance / (variance + SMALL), -STEEPEST, STEEPEST)

    # Where each pixel comes from: between two columns of the same row, interpolated.
    shift_of_row = slant[:, None] * from_row
    source = columns + shift_of_row[:, :, None]
    left = np.floor(source).astype(np.int64)
    part_of_right = (source - left).astype(np.float32)
    at_left = _columns(images, left)
    at_right = _columns(images, left + 1)
    return (1 - part_of_right) * at_left + part_of_right * at_right


def _columns(images: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the pixel of each row at these columns, 0 outside of the image."""
    width = images.shape[2]
    inside = (columns >= 0) & (columns < width)
    nearest = np.clip(columns, 0, width - 1)
    pixels = np.take_along_axis(images, nearest, axis=2)
    return np.where(inside, pixels, 0)
