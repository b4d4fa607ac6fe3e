"""A convolutional network of flax nnx, trained privately on images of handwritten digits.

It shows `gdpjax.nnx`: the module as you have it, a loss of ONE image, a plan that finds the noise for epsilon 3. It
prints the accuracy on the test images, which are taken as public, and the privacy statement.

Besides gdpjax it needs scikit-learn, which comes with the digits:

    pip install scikit-learn
    python examples/nnx_cnn.py
"""

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import gdpjax


class CNN(nnx.Module):
    """One convolution and one layer. GroupNorm, as BatchNorm would mix the images of a batch."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.GroupNorm(16, num_groups=4, rngs=rngs)
        self.last = nnx.Linear(256, 10, rngs=rngs)

    def __call__(self, x):  # one image, or a batch of them
        x = nnx.relu(self.norm(self.conv(x)))
        return self.last(x.reshape(*x.shape[:-3], 256))


def loss_fn(model, x, y):  # ONE image
    return optax.softmax_cross_entropy_with_integer_labels(model(x), y)


def main(epochs=20):
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels.reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1437], order[1437:]

    # Everything in the plan is public, the largest number of images included.
    plan = gdpjax.make_plan(
        clip=1.0,
        max_examples=1500,
        expected_batch_size=256,
        epochs=epochs,
        delta=1e-4,
        epsilon=3.0,
        unit="image",
        tuned="settings of docs/first_model.md, which were chosen on these public digits",
    )
    model = CNN(nnx.Rngs(0))
    training = gdpjax.nnx.private_training(plan, model, loss_fn, optax.adam(1e-2))

    # One fresh key a run: whoever knows the key can subtract the noise.
    state = training.init(model, gdpjax.fresh_key())
    data = training.place(images[train], labels[train])
    state, _ = training.run_steps(state, data, plan.num_steps)  # _: losses and norms, not for release
    nnx.update(model, state.params)

    # The test images are taken as public; an accuracy on private images would need noise of its own.
    accuracy = float(np.mean(model(images[test]).argmax(-1) == labels[test]))
    print(f"accuracy on {len(test)} public test images: {accuracy:.3f}\n")
    print(plan.statement())
    return accuracy, plan


if __name__ == "__main__":
    main()
