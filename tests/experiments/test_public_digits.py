"""The features that public digits choose: upright images, digits in MNIST's layout, and the coordinates from them."""

import numpy as np
import pytest

from experiments.data import public_digits
from experiments.data.class_whitening import fit_class_whitening
from experiments.data.deskew import deskew


def covariance_of_mass(image):
    """Covariance of row and column in an image, taken as a distribution."""
    rows, columns = np.indices(image.shape)
    weights = image / image.sum()
    row, column = (weights * rows).sum(), (weights * columns).sum()
    return (weights * (rows - row) * (columns - column)).sum()


@pytest.fixture
def slanted():
    """A stroke three pixels wide that moves half a column with each row."""
    image = np.zeros((28, 28))
    for row in range(6, 22):
        first = 8 + row // 2
        image[row, first : first + 3] = 1.0
    return image


@pytest.mark.parametrize("turn", [lambda image: image, np.fliplr], ids=["one way", "the other way"])
def test_a_slanted_stroke_becomes_upright(slanted, turn):
    image = turn(slanted)
    upright = deskew(image[None])[0]
    assert abs(covariance_of_mass(image)) > 5
    assert abs(covariance_of_mass(upright)) < 0.5
    np.testing.assert_allclose(upright.sum(axis=1), image.sum(axis=1), rtol=1e-5)  # rows keep their ink


def test_what_is_upright_or_blank_stays():
    bar = np.zeros((28, 28))
    bar[5:23, 12:15] = 1.0
    np.testing.assert_allclose(deskew(bar[None])[0], bar, atol=1e-5)
    assert not deskew(np.zeros((1, 28, 28))).any()


def test_an_image_is_made_upright_by_itself(slanted):
    others = np.random.default_rng(0).uniform(size=(2, 28, 28))
    together = deskew(np.stack([others[0], slanted, others[1]]))
    np.testing.assert_allclose(together[1], deskew(slanted[None])[0], atol=1e-6)


def test_public_digits_have_the_layout_of_mnist(monkeypatch):
    monkeypatch.setattr(public_digits, "COPIES", 1)
    drawn = []
    draw = public_digits.draw

    def first_ones(digit, generator):
        drawn.append(digit)
        return draw(digit, generator) if len(drawn) <= 12 else np.zeros((28, 28), np.float32)

    monkeypatch.setattr(public_digits, "draw", first_ones)
    images, labels = public_digits.load_public_digits()
    assert images.shape == (1797, 28, 28)
    assert images.dtype == np.float32
    assert np.bincount(labels).min() > 170
    assert labels[:10].tolist() == list(range(10))

    images = images[:12]
    assert images.min() == 0
    np.testing.assert_array_equal(images.max(axis=(1, 2)), 1)
    rows, columns = np.indices((28, 28))
    for image in images:
        centre = [(image * index).sum() / image.sum() for index in (rows, columns)]
        np.testing.assert_allclose(centre, 13.5, atol=0.51)  # whole pixels
        sides = [np.ptp(index[image > 0]) + 1 for index in (rows, columns)]
        assert 18 <= max(sides) <= 20


def test_copies_differ_and_a_seed_repeats_them():
    digit = np.pad(np.ones((6, 2)), [(1, 1), (3, 3)])
    generator = np.random.default_rng(0)
    first, second = (public_digits.draw(digit, generator) for _ in range(2))
    assert np.abs(first - second).max() > 0.5
    np.testing.assert_array_equal(first, public_digits.draw(digit, np.random.default_rng(0)))


def test_whitening_takes_the_root_of_the_covariance_within_a_class():
    generator = np.random.default_rng(0)
    labels = np.arange(3000) % 3
    spread = np.array([8.0, 4.0, 2.0, 1.0])
    features = 10 * generator.normal(size=(3, 4))[labels] + spread * generator.normal(size=(3000, 4))
    found = fit_class_whitening(features, labels, 4)

    def covariance_within(rows):
        means = np.stack([rows[labels == c].mean(axis=0) for c in range(3)])
        residuals = rows - means[labels]
        return residuals.T @ residuals / len(rows)

    before = np.linalg.eigvalsh(covariance_within(features))
    after = np.linalg.eigvalsh(covariance_within(found(features)))
    np.testing.assert_allclose(after, np.sqrt(before), rtol=1e-2)
    np.testing.assert_allclose(found(features).mean(axis=0), 0, atol=1e-9)


def test_whitening_keeps_the_principal_components_and_maps_each_row_by_itself():
    generator = np.random.default_rng(1)
    features = generator.normal(size=(500, 6)) * np.array([9.0, 0.1, 7.0, 0.1, 0.1, 5.0])
    whitening = fit_class_whitening(features, np.arange(500) % 2, 3)
    assert whitening.matrix.shape == (6, 3)
    strength = np.linalg.norm(whitening.matrix, axis=1)
    assert set(np.argsort(strength)[-3:]) == {0, 2, 5}
    np.testing.assert_allclose(whitening(features)[7], whitening(features[7:8])[0])
