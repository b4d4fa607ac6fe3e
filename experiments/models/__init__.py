"""Small networks, by name.

* `networks`   the networks, in flax
* `choices`    their names, and the loss of one example
* `scores`     weights at the beginning, and accuracy on test data
"""

from experiments.models.choices import MODELS, build, example_loss

__all__ = ["MODELS", "build", "example_loss"]
