"""Small networks in flax.

None of them mixes examples (no batch normalisation): the gradient of one example must be its own.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

# Keras' initial weights, which the paper's scripts used; flax's own defaults are lecun_normal and a wider table.
GLOROT = nn.initializers.glorot_uniform()


def keras_embedding(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Float[Array, "..."]:
    """Draw numbers uniformly on [-0.05, 0.05]."""
    return jax.random.uniform(key, shape, dtype, minval=-0.05, maxval=0.05)


def max_pool(
    images: Float[Array, "*batch height width channels"],
) -> Float[Array, "*batch height-1 width-1 channels"]:
    """Return the largest of every 2x2 window, stride 1: ``[..., h, w, c]`` to ``[..., h-1, w-1, c]``.

    Two maxima of shifted images are the same function as a window's maximum, and on a CPU XLA differentiates them ten
    times faster. Only a tie shares its gradient instead of giving it to one pixel; after a relu ties are at 0.
    """
    # Of each pixel and the one below it, then of two such pairs side by side.
    rows = jnp.maximum(images[..., :-1, :, :], images[..., 1:, :, :])
    return jnp.maximum(rows[..., :, :-1, :], rows[..., :, 1:, :])


class MLP(nn.Module):
    """One hidden layer of tanh units; tanh keeps gradients bounded, which suits clipping."""

    num_classes: int
    width: int = 64

    @nn.compact
    def __call__(self, images: Float[Array, "*batch height width channels"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of images ``[..., height, width, channels]``."""
        x = images.reshape(*images.shape[:-3], -1)
        x = nn.tanh(nn.Dense(self.width)(x))
        return nn.Dense(self.num_classes)(x)


class Linear(nn.Module):
    """Multinomial logistic regression, begun at 0."""

    num_classes: int

    @nn.compact
    def __call__(self, features: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of vectors ``[..., features]``."""
        head = nn.Dense(self.num_classes, kernel_init=nn.initializers.zeros)
        return head(features)


class Factors(nn.Module):
    """A matrix factorisation whose one number shifts the odds of all grades: 29,243 parameters for MovieLens-1M's size.

        log P(grade = c) = a_c + c (b_user + b_movie + <f_user, f_movie>) + constant,    c = 0, 1, ..., classes - 1

    The derivative in the bracket is the expected grade less the one given, as in least squares, but bounded. Each user
    and each movie has one row: its bias and its factors.
    """

    num_classes: int
    num_users: int = 6_040
    num_movies: int = 3_706
    size: int = 2

    @nn.compact
    def __call__(self, pairs: Int[Array, "*batch 2"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of pairs ``int32[..., 2]``, a user and a movie."""

        def rows(name: str, column: int) -> Float[Array, "*batch row"]:
            """Return the row of each user, or of each movie, with its bias in front."""
            counts = (self.num_users, self.num_movies)
            table = nn.Embed(
                counts[column],
                1 + self.size,
                embedding_init=nn.initializers.normal(0.1),
                name=name,
            )
            return table(pairs[..., column])

        # One number for each pair: both biases, and the product of the factors.
        user = rows("user", 0)
        movie = rows("movie", 1)
        biases = user[..., 0] + movie[..., 0]
        products = user[..., 1:] * movie[..., 1:]
        shift = biases + jnp.sum(products, axis=-1)

        # It shifts the odds of all grades.
        grades = jnp.arange(self.num_classes, dtype=shift.dtype)
        base = self.param("grade", nn.initializers.zeros, (self.num_classes,))
        return base + grades * shift[..., None]


class PaperMLP(nn.Module):
    """The Adult network of arXiv:1911.11607: 16 relu units, 2,018 parameters for 123 features."""

    num_classes: int

    @nn.compact
    def __call__(self, features: Float[Array, "*batch features"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of vectors ``[..., features]``."""
        x = nn.Dense(16, kernel_init=GLOROT)(features)
        x = nn.relu(x)
        return nn.Dense(self.num_classes, kernel_init=GLOROT)(x)


class PaperCNN(nn.Module):
    """The MNIST network of arXiv:1911.11607: 26,010 parameters for 28x28 images."""

    num_classes: int

    @nn.compact
    def __call__(self, images: Float[Array, "*batch height width channels"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of images ``[..., 28, 28, 1]``."""
        # Two convolutions, each with relu and pooling.
        x = nn.Conv(16, (8, 8), strides=2, padding="SAME", kernel_init=GLOROT)(images)
        x = max_pool(nn.relu(x))
        x = nn.Conv(32, (4, 4), strides=2, padding="VALID", kernel_init=GLOROT)(x)
        x = max_pool(nn.relu(x))

        # Two dense layers.
        x = x.reshape(*x.shape[:-3], -1)
        x = nn.Dense(32, kernel_init=GLOROT)(x)
        x = nn.relu(x)
        return nn.Dense(self.num_classes, kernel_init=GLOROT)(x)


class PaperTextModel(nn.Module):
    """The IMDb network of arXiv:1911.11607: 160,306 parameters. Padding is a word like the others."""

    num_classes: int
    num_words: int = 10_000

    @nn.compact
    def __call__(self, tokens: Int[Array, "*batch length"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of token numbers ``int32[..., length]``."""
        # The mean of the words' vectors.
        vectors = nn.Embed(self.num_words, 16, embedding_init=keras_embedding)(tokens)
        x = vectors.mean(axis=-2)

        # Two dense layers.
        x = nn.Dense(16, kernel_init=GLOROT)(x)
        x = nn.relu(x)
        return nn.Dense(self.num_classes, kernel_init=GLOROT)(x)


class PaperRecommender(nn.Module):
    """The MovieLens network of arXiv:1911.11607: 146,320 parameters for 6,040 users and 3,706 movies.

    The product of two embeddings of size 5, and two more of size 10, side by side, decide the rating.
    """

    num_classes: int
    num_users: int = 6_040
    num_movies: int = 3_706

    @nn.compact
    def __call__(self, pairs: Int[Array, "*batch 2"]) -> Float[Array, "*batch classes"]:
        """Return logits ``[..., num_classes]`` of pairs ``int32[..., 2]``, a user and a movie."""

        def embed(name: str, column: int, size: int) -> Float[Array, "*batch size"]:
            """Return the vector of each user, or of each movie."""
            counts = (self.num_users, self.num_movies)
            table = nn.Embed(counts[column], size, embedding_init=keras_embedding, name=name)
            return table(pairs[..., column])

        product = embed("user_factor", 0, 5) * embed("movie_factor", 1, 5)
        user = embed("user", 0, 10)
        movie = embed("movie", 1, 10)
        x = jnp.concatenate([product, user, movie], axis=-1)
        return nn.Dense(self.num_classes, kernel_init=GLOROT)(x)
