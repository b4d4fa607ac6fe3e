"""gdpjax: differentially private deep learning in JAX with Gaussian differential privacy.

Bounding each example (`clipped_grad`), noising and stepping (`privatize` in an optax chain) and accounting
(`gdpjax.accounting`, pure functions of public hyperparameters) are separate, and meet only in the ledger of what was
run. `gdpjax.nnx` does the same for modules of flax.
"""

import importlib
from typing import TYPE_CHECKING, Any

# The modules, by redundant aliases as type checkers ask; `__all__` has the functions and classes.
from gdpjax import accounting as accounting
from gdpjax import auditing as auditing
from gdpjax import correlated as correlated
from gdpjax import ledger as ledger
from gdpjax import mechanisms as mechanisms
from gdpjax import plotting as plotting
from gdpjax import reporting as reporting
from gdpjax import sampling as sampling
from gdpjax import tradeoff as tradeoff
from gdpjax import training as training
from gdpjax._core import VERSION
from gdpjax._core.keys import fresh_key
from gdpjax._core.types import Bounds, NeighboringRelation
from gdpjax._core.xla import use_compilation_cache
from gdpjax.clipping import (
    AutoS,
    Flat,
    Normalize,
    PerGroup,
    PerLeaf,
    Sensitivity,
    average_augmentations,
    clipped_grad,
    explain,
    per_example_grad,
)
from gdpjax.ledger import Event, Ledger, ledger_of
from gdpjax.optimizers import dpadam, dpsgd
from gdpjax.reporting import report
from gdpjax.training import Budget, Plan, make_plan
from gdpjax.transforms import (
    IndependentGaussian,
    accumulate_clipped,
    add_gaussian_noise,
    clip_and_sum,
    clip_norm_of,
    privatize,
    privatize_adaptive,
    public_values,
)

__version__ = VERSION


if TYPE_CHECKING:
    from gdpjax import nnx as nnx
    from gdpjax import sweeps as sweeps


def __getattr__(name: str) -> Any:
    """Import a part when it is first asked for: flax takes half a second, and most programs train no sweeps."""
    if name in ("nnx", "sweeps"):
        return importlib.import_module(f"gdpjax.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AutoS",
    "Bounds",
    "Budget",
    "Event",
    "Flat",
    "IndependentGaussian",
    "Ledger",
    "NeighboringRelation",
    "Normalize",
    "PerGroup",
    "PerLeaf",
    "Plan",
    "Sensitivity",
    "accumulate_clipped",
    "add_gaussian_noise",
    "average_augmentations",
    "clip_and_sum",
    "clip_norm_of",
    "clipped_grad",
    "dpadam",
    "dpsgd",
    "explain",
    "fresh_key",
    "ledger_of",
    "make_plan",
    "per_example_grad",
    "privatize",
    "privatize_adaptive",
    "public_values",
    "report",
    "use_compilation_cache",
]
