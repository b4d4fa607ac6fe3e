"""Opacus: `make_private` with its own Poisson loader, with hooks and with ghost clipping."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from opacus import PrivacyEngine  # pyright: ignore[reportMissingImports]
from torch.nn import CrossEntropyLoss  # pyright: ignore[reportMissingImports]
from torch.utils.data import DataLoader, TensorDataset  # pyright: ignore[reportMissingImports]

from benchmarks.clipping import torch_models
from benchmarks.training.cases import Case
from benchmarks.training.trainer import NUM_LOSSES, Trainer, forever


def opacus(case: Case, mode: str) -> Trainer:
    """``mode`` is Opacus' grad_sample_mode."""
    x, y = case.data()
    images = torch.from_numpy(x)
    images = torch_models.channels_first(images) if images.ndim == 4 else images
    examples = TensorDataset(images, torch.from_numpy(y).long())
    module = torch_models.build(case.model)
    optimizer = torch.optim.SGD(module.parameters(), lr=case.learning_rate)
    engine = PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its generator is not a secure one
        made: tuple[Any, ...] = engine.make_private(
            module=module,
            optimizer=optimizer,
            criterion=CrossEntropyLoss(),
            data_loader=DataLoader(examples, batch_size=case.expected_batch_size),
            noise_multiplier=case.noise_multiplier,
            max_grad_norm=case.clip_norm,
            grad_sample_mode=mode,
        )
    private, private_optimizer, *rest, loader = made
    criterion = rest[0] if rest else CrossEntropyLoss()
    first, batches = case.params(), forever(lambda: loader)

    def turn() -> Callable[[], float]:
        torch_models.load(module, first)
        for images, labels in itertools.islice(batches, case.steps_per_turn):
            private_optimizer.zero_grad()
            criterion(private(images), labels).backward()
            private_optimizer.step()
        return loss

    def loss() -> float:
        module.eval()
        with torch.no_grad():
            value = CrossEntropyLoss()(module(examples.tensors[0][:NUM_LOSSES]), examples.tensors[1][:NUM_LOSSES])
        module.train()
        return float(value)

    def epsilon() -> dict[str, Any]:
        accountant = type(engine.accountant)()
        accountant.history = [(case.noise_multiplier, loader.sample_rate, case.plan().num_steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the largest of its orders
            value = float(np.asarray(accountant.get_epsilon(case.delta)))
        return {"epsilon": value, "by": f"its {accountant.mechanism()} accountant"}

    return Trainer(turn, epsilon, float(loader.sample_rate))
