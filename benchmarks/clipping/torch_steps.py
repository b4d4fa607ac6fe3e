"""Torch's gradient steps, without noise and update: no privacy, and Opacus with hooks and with ghost clipping.

Opacus' hooks keep per-example gradients, which its optimizer clips and sums; its ghost clipping ("fast gradient
clipping") goes backward twice, materialising the layers that have no norm rule. Both with reduction "sum", so that what
they leave is the clipped sum of the JAX contenders.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from opacus import GradSampleModule  # pyright: ignore[reportMissingImports]
from opacus.grad_sample import GradSampleModuleFastGradientClipping  # pyright: ignore[reportMissingImports]
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping  # pyright: ignore[reportMissingImports]
from opacus.utils.fast_gradient_clipping_utils import (  # pyright: ignore[reportMissingImports]
    DPLossFastGradientClipping,
)
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from benchmarks.clipping import torch_models
from benchmarks.clipping.cases import Case


class TorchStep(NamedTuple):
    """``run()`` does one step and waits for it; ``gradient()`` then gives (parameter's name, array) of its result."""

    run: Callable[[], None]
    gradient: Callable[[], Iterator[tuple[str, np.ndarray]]]


class PerExampleLoss:
    """Cross entropy of each example, a mean over its positions. Opacus looks at ``reduction``."""

    reduction = "sum"

    def __call__(self, logits: Any, y: Any) -> Any:
        losses = functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten(), reduction="none")
        return losses.reshape(len(y), -1).mean(1)


def set_up(threads: int) -> None:
    """Set torch's threads, and silence its warning of hooks where no input needs a gradient (Opacus' first layer)."""
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", message="Full backward hook is firing")


def step(case: Case, data: tuple[Any, ...], name: str) -> TorchStep:
    """Return the step called ``name`` in `STEPS`, on the case's data."""
    params, x, y = data
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = torch_models.build(case.model)
    torch_models.load(module, params)
    module = module.to(device)

    # The data, as torch takes them.
    x = torch.from_numpy(np.ascontiguousarray(x)).to(device)
    y = torch.from_numpy(np.ascontiguousarray(y)).to(device)
    y = y.long()
    if x.ndim == 4:
        x = torch_models.channels_first(x)

    # The step, and the attribute of each parameter that it leaves its result in.
    run, result = STEPS[name](module, case)

    def run_and_wait() -> None:
        run(x, y)
        if device.type == "cuda":
            torch.cuda.synchronize()

    def gradient() -> Iterator[tuple[str, np.ndarray]]:
        for key, parameter in module.named_parameters():
            value = getattr(parameter, result)
            yield key, value.float().cpu().numpy()

    return TorchStep(run_and_wait, gradient)


def _sgd(module: Any) -> Any:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def _no_privacy(module: Any, case: Case) -> tuple[Callable[[Any, Any], None], str]:
    optimizer = _sgd(module)
    losses = PerExampleLoss()

    def run(x: Any, y: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        losses(module(x), y).mean().backward()

    return run, "grad"


def _hooks(module: Any, case: Case) -> tuple[Callable[[Any, Any], None], str]:
    wrapped = GradSampleModule(module, loss_reduction="sum")
    losses = PerExampleLoss()
    optimizer = DPOptimizer(
        _sgd(module),
        noise_multiplier=0.0,
        max_grad_norm=case.clip_norm,
        expected_batch_size=None,
        loss_reduction="sum",
    )

    def run(x: Any, y: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        losses(wrapped(x), y).sum().backward()
        optimizer.clip_and_accumulate()

        # Memory is given back, as its own step does before the noise.
        parameters: list[Any] = optimizer.params
        for parameter in parameters:
            parameter.grad_sample = None

    return run, "summed_grad"


def _ghost(module: Any, case: Case) -> tuple[Callable[[Any, Any], None], str]:
    clip_norm: Any = case.clip_norm  # its hint says int
    wrapped = GradSampleModuleFastGradientClipping(
        module,
        loss_reduction="sum",
        max_grad_norm=clip_norm,
        use_ghost_clipping=True,
    )
    optimizer = DPOptimizerFastGradientClipping(
        _sgd(module),
        noise_multiplier=0.0,
        max_grad_norm=case.clip_norm,
        expected_batch_size=None,
        loss_reduction="sum",
    )
    losses = DPLossFastGradientClipping(wrapped, optimizer, PerExampleLoss(), loss_reduction="sum")

    def run(x: Any, y: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        losses(wrapped(x), y).backward()

    return run, "grad"


TORCH_NO_PRIVACY = "torch, no privacy"
STEPS = {
    TORCH_NO_PRIVACY: _no_privacy,
    "Opacus hooks": _hooks,
    "Opacus ghost": _ghost,
}
