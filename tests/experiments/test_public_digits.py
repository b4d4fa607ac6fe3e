"""Public digits choose the features: upright images, digits in MNIST's layout, and coordinates fitted to them."""

import numpy as np
import pytest

from experiments.data import public_digits
from experiments.data.class_whitening import fit_class_whitening
from experiments.data.deskew import deskew


def covariance_of_mass(image):
    """Return the covariance of row and column in an image, taken as a distribution."""
    rows, columns = np.indices(image.shape)
    weights = image / image.sum()
    mean_row = (weights * rows).sum()
    mean_column = (weights * columns).sum()
    return (weights * (rows - mean_row) * (columns - mean_column)).sum()


@pytest.fixture
def slanted():
    """Return an image of a stroke three pixels wide that moves half a column with each row."""
    image = np.zeros((28, 28))
    for row in range(6, 22):
        first = 8 + row // 2
        image[row, first : first + 3] = 1.0
    return image


@pytest.mark.parametrize("turn", [lambda image: image, np.fliplr], ids=["one way", "the other way"])
def test_a_slanted_stroke_becomes_upright(slanted, turn):
    """Deskewing removes the slant of a stroke and leaves the ink of each row."""
    image = turn(slanted)
    upright = deskew(image[None])[0]
    assert abs(covariance_of_mass(image)) > 5
    assert abs(covariance_of_mass(upright)) < 0.5

    # Pixels move along their rows only.
    ink_before = image.sum(axis=1)
    ink_after = upright.sum(axis=1)
    np.testing.assert_allclose(ink_after, ink_before, rtol=1e-5)


def test_public_digits_have_the_layout_of_mnist(monkeypatch):
    """Public digits are centred images of 28 x 28 pixels, whose longer side is 18 to 20 pixels."""
    monkeypatch.setattr(public_digits, "COPIES", 1)
    num_drawn = 0
    draw = public_digits.draw

    def draw_first_ones(digit, generator):
        """Draw the first 12 digits, and leave the others blank: drawing takes long."""
        nonlocal num_drawn
        num_drawn += 1
        if num_drawn > 12:
            return np.zeros((28, 28), np.float32)
        return draw(digit, generator)

    monkeypatch.setattr(public_digits, "draw", draw_first_ones)
    images, labels = public_digits.load_public_digits()
    assert images.shape == (1797, 28, 28)
    assert images.dtype == np.float32
    assert np.bincount(labels).min() > 170
    assert labels[:10].tolist() == list(range(10))

    images = images[:12]
    assert images.min() == 0
    np.testing.assert_array_equal(images.max(axis=(1, 2)), 1)
    coordinates = np.indices((28, 28))
    for image in images:
        sides = []
        for coordinate in coordinates:
            # Images are moved by whole pixels, so the centre of mass is half a pixel off at most.
            centre = (image * coordinate).sum() / image.sum()
            np.testing.assert_allclose(centre, 13.5, atol=0.51)
            sides.append(np.ptp(coordinate[image > 0]) + 1)
        assert 18 <= max(sides) <= 20


def covariance_within(rows, labels):
    """Return the covariance of rows about the means of their classes."""
    means = [rows[labels == label].mean(axis=0) for label in range(labels.max() + 1)]
    residuals = rows - np.stack(means)[labels]
    return residuals.T @ residuals / len(rows)


def test_whitening_takes_the_root_of_the_covariance_within_a_class():
    """The whitened features have mean zero, and the square roots of the eigenvalues that the covariance had."""
    generator = np.random.default_rng(0)
    labels = np.arange(3000) % 3
    spread = np.array([8.0, 4.0, 2.0, 1.0])
    class_means = 10 * generator.normal(size=(3, 4))
    features = class_means[labels] + spread * generator.normal(size=(3000, 4))

    whitening = fit_class_whitening(features, labels, 4)
    whitened = whitening(features)
    before = np.linalg.eigvalsh(covariance_within(features, labels))
    after = np.linalg.eigvalsh(covariance_within(whitened, labels))
    np.testing.assert_allclose(after, np.sqrt(before), rtol=1e-2)
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=1e-9)
