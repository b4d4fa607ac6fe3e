"""What is measured: a model, a batch size, a clip norm; the lists of them, and what is aimed at."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clipping.models import CNN, MLP, Model, ResNet, TextAverage, Transformer, ViT


class Target(NamedTuple):
    """Largest step time and temporary memory, over those without privacy; how much faster than every peer."""

    time: float | None = None
    memory: float | None = None
    speedup: float = 1.0


class Case(NamedTuple):
    """One model on one batch. The clip norm is about the median norm: half of the rows are clipped."""

    name: str
    title: str
    model: Model
    batch_size: int
    clip_norm: float
    target: Target = Target()

    def data(self, seed: int = 0) -> tuple[Any, ...]:
        """(parameters, x, y, frozen arguments...), NumPy arrays."""
        rng = np.random.default_rng(seed)
        params, frozen = self.model.init(rng)
        return (params, *self.model.batch(rng, self.batch_size), *frozen)


CPU = (
    Case("mlp", "MLP 784-1024-1024-10, B=256", MLP(), 256, 25.0, Target(1.10, 1.3, 10)),
    Case("cnn", "MNIST CNN of the paper, B=256", CNN(), 256, 22.0, Target(1.25, 1.3)),
    Case(
        "transformer", "transformer 4x256, T=64, vocabulary 5k, B=32", Transformer(), 32, 11.0, Target(1.15, 0.5)
    ),
    Case("imdb", "IMDb model of the paper, T=256, B=512", TextAverage(), 512, 1.0, Target(3.5, 1.3, 10)),
    Case("resnet", "ResNet-20 with GroupNorm, 32x32, B=64", ResNet(), 64, 10.5, Target(1.9, 1.5)),
    Case("lora", "LoRA rank 8 on the transformer, B=32", Transformer(rank=8), 32, 4.0),
)  # fmt: skip

_LARGE = (
    Case("mlp_256", "MLP 784-1024-1024-10, B=256", MLP(), 256, 25.0, Target(1.10, 1.3, 10)),
    Case("mlp_4096", "MLP 784-1024-1024-10, B=4096", MLP(), 4096, 25.0, Target(1.10, 1.3, 10)),
    Case("cnn_4096", "MNIST CNN of the paper, B=4096", CNN(), 4096, 22.0, Target(1.25, 1.3)),
    Case(
        "transformer_100m", "transformer 12x768 (100M), T=256, B=32",
        Transformer(12, 768, 12, 256, 10_000), 32, 11.0, Target(1.15),
    ),
    Case("vit_s16", "ViT-S/16, 224x224, B=64", ViT(), 64, 10.0),
    Case("wrn_16_4", "WideResNet-16-4 with GroupNorm, B=256", ResNet((64, 128, 256), 2, groups=16), 256, 10.5,
         Target(1.9, 1.5)),
)  # fmt: skip


def in_dtypes(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Each case computed in float32, and in bfloat16 on float32 parameters."""
    return tuple(
        case._replace(
            name=f"{case.name}_{short}",
            title=f"{case.title}, {dtype}",
            model=dataclasses.replace(case.model, dtype=dtype),
        )
        for case in cases
        for short, dtype in (("f32", "float32"), ("bf16", "bfloat16"))
    )


def tiny(case: Case) -> Case:
    """The same model in seconds: to try the code, not to measure anything."""
    match case.model:
        case MLP():
            sizes: dict[str, Any] = dict(widths=(12, 8, 8, 4))
        case CNN():
            sizes = dict(channels=(2, 4))
        case Transformer():
            sizes = dict(depth=1, width=16, heads=2, length=8, vocabulary=20, rank=min(case.model.rank, 2))
        case TextAverage():
            sizes = dict(vocabulary=30, length=8, width=4)
        case ResNet():
            sizes = dict(widths=(4, 8), blocks=1, stem=4, groups=2, size=8)
        case ViT():
            sizes = dict(depth=1, width=16, heads=2, patch=4, size=8, classes=5)
    return case._replace(
        model=dataclasses.replace(case.model, **sizes), batch_size=8, clip_norm=1.0, title=f"{case.title} (tiny)"
    )


PRESETS = {"cpu": CPU, "gpu": in_dtypes(_LARGE)}
PRESETS |= {f"{name}-tiny": tuple(tiny(case) for case in cases) for name, cases in PRESETS.items()}
