"""A recipe of our own for each data set of the paper, found by a sweep that never saw the test data.

``<name>.toml`` is the search, judged by held-out training data; ``winners/<name>.toml`` is its best configuration,
trained on all training data with several seeds and judged by the test data.

* `_recipes`   which there are, what was published, and what was tried by hand before the search
* `_outcome`   what the two sweeps say together, with the price of choosing
* `_tables`    the result file and its table
* `_command`   runs what is missing
"""

from experiments.recipes._command import reproduce, run
from experiments.recipes._recipes import RECIPES

__all__ = ["RECIPES", "reproduce", "run"]
