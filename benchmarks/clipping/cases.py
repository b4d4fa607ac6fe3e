"""The cases that are measured: a model, a batch size, a clip norm; the lists of them, and what is aimed at."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from benchmarks.clipping.flax_models import FlaxTransformer
from benchmarks.clipping.models import CNN, MLP, Model, ResNet, TextAverage, Transformer, ViT

NO_PRIVACY = "no privacy"
AUTO = "gdpjax auto"
TORCH_NO_PRIVACY = "torch, no privacy"
OPACUS_GHOST = "Opacus ghost"


class Target(NamedTuple):
    """The figures that are aimed at on one model.

    Args:
        time: the largest step time, over the step without privacy.
        memory: the largest temporary memory, over the step without privacy.
        speedup: how many times faster than every peer.
    """

    time: float | None = None
    memory: float | None = None
    speedup: float = 1.0


class Case(NamedTuple):
    """One model on one batch.

    Args:
        name: what the command line calls it.
        title: what the tables call it.
        model: the sizes, the loss and the data.
        batch_size: the number of examples.
        clip_norm: about the median norm, so that half of the rows are clipped.
        target: what is aimed at.
        contenders: the names of those that are measured; all if empty.
    """

    name: str
    title: str
    model: Model
    batch_size: int
    clip_norm: float
    target: Target = Target()
    contenders: tuple[str, ...] = ()

    def data(self, seed: int = 0) -> tuple[Any, ...]:
        """Return (parameters, x, y, frozen arguments...) as NumPy arrays."""
        rng = np.random.default_rng(seed)
        params, frozen = self.model.init(rng)
        return (params, *self.model.batch(rng, self.batch_size), *frozen)

    def measures(self, contender: str) -> bool:
        """Return whether this contender is measured on this case."""
        return not self.contenders or contender in self.contenders


_MLP_TITLE = "MLP 784-1024-1024-10"
_CNN_TITLE = "MNIST CNN of the paper"
_MLP_TARGET = Target(time=1.05, memory=1.3, speedup=10.0)
_CNN_TARGET = Target(time=1.15, memory=1.3)

# At the other batch sizes only those that stay cheap: whoever forms the MLP's gradients needs 7 MiB for each row.
_MLP_CONTENDERS = (NO_PRIVACY, AUTO, TORCH_NO_PRIVACY, OPACUS_GHOST)
_CNN_CONTENDERS = (*_MLP_CONTENDERS, "jax_privacy")


def _other_batch_sizes() -> list[Case]:
    """Return the MLP and the CNN at batches of 64, 1,024 and 4,096 rows."""
    cases = []
    for size in (64, 1024, 4096):
        mlp = Case(f"mlp_{size}", f"{_MLP_TITLE}, B={size}", MLP(), size, 25.0, _MLP_TARGET)
        cnn = Case(f"cnn_{size}", f"{_CNN_TITLE}, B={size}", CNN(), size, 22.0, _CNN_TARGET)
        cases.append(mlp._replace(contenders=_MLP_CONTENDERS))
        cases.append(cnn._replace(contenders=_CNN_CONTENDERS))
    return cases


CPU = (
    Case("mlp", f"{_MLP_TITLE}, B=256", MLP(), 256, 25.0, _MLP_TARGET),
    Case("cnn", f"{_CNN_TITLE}, B=256", CNN(), 256, 22.0, _CNN_TARGET),
    Case(
        "transformer",
        "transformer 4x256, T=64, vocabulary 5k, B=32",
        Transformer(),
        32,
        11.0,
        Target(time=1.02, memory=0.3),
    ),
    Case(
        "flax_transformer",
        "flax transformer 4x256, T=64, vocabulary 5k, B=32",
        FlaxTransformer(),
        32,
        7.7,
        Target(time=1.02, memory=0.3),
    ),
    Case("imdb", "IMDb model of the paper, T=256, B=512", TextAverage(), 512, 1.0, Target(3.0, 1.3, 10.0)),
    Case("resnet", "ResNet-20 with GroupNorm, 32x32, B=64", ResNet(), 64, 10.5, Target(1.1, 1.5)),
    Case("lora", "LoRA rank 8 on the transformer, B=32", Transformer(rank=8), 32, 4.0),
    Case(
        "vocabulary_50k",
        "transformer 4x256, T=256, vocabulary 50k, B=8",
        Transformer(length=256, vocabulary=50_000),
        8,
        5.0,
        Target(time=1.15, memory=1.0),
    ),
    Case(
        "vocabulary_50k_tied",
        "transformer 4x256, T=256, vocabulary 50k, the head tied to the embedding, B=8",
        Transformer(length=256, vocabulary=50_000, tied=True),
        8,
        1.9,
        Target(time=1.15, memory=1.0),
        (NO_PRIVACY, AUTO, "jax_privacy"),
    ),
    *_other_batch_sizes(),
)

_LARGE = (
    Case("mlp_256", f"{_MLP_TITLE}, B=256", MLP(), 256, 25.0, _MLP_TARGET),
    Case("mlp_4096", f"{_MLP_TITLE}, B=4096", MLP(), 4096, 25.0, _MLP_TARGET),
    Case("cnn_4096", f"{_CNN_TITLE}, B=4096", CNN(), 4096, 22.0, _CNN_TARGET),
    Case(
        "transformer_100m",
        "transformer 12x768 (100M), T=256, B=32",
        Transformer(12, 768, 12, 256, 10_000),
        32,
        11.0,
        Target(time=1.02),
    ),
    Case("vit_s16", "ViT-S/16, 224x224, B=64", ViT(), 64, 10.0),
    Case(
        "wrn_16_4",
        "WideResNet-16-4 with GroupNorm, B=256",
        ResNet((64, 128, 256), 2, groups=16),
        256,
        10.5,
        Target(time=1.1, memory=1.5),
    ),
)


def in_dtypes(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Return each case computed in float32, and in bfloat16 on float32 parameters."""
    both = []
    for case in cases:
        for short, dtype in (("f32", "float32"), ("bf16", "bfloat16")):
            in_dtype = case._replace(
                name=f"{case.name}_{short}",
                title=f"{case.title}, {dtype}",
                model=dataclasses.replace(case.model, dtype=dtype),
            )
            both.append(in_dtype)
    return tuple(both)


def tiny(case: Case) -> Case:
    """Return the same model in seconds: to try the code, not to measure anything."""
    match case.model:
        case MLP():
            sizes: dict[str, Any] = dict(widths=(12, 8, 8, 4))
        case CNN():
            sizes = dict(channels=(2, 4))
        case Transformer():
            sizes = dict(depth=1, width=16, heads=2, length=8, vocabulary=20, rank=min(case.model.rank, 2))
        case FlaxTransformer():
            sizes = dict(depth=1, width=16, heads=2, length=8, vocabulary=20)
        case TextAverage():
            sizes = dict(vocabulary=30, length=8, width=4)
        case ResNet():
            sizes = dict(widths=(4, 8), blocks=1, stem=4, groups=2, size=8)
        case ViT():
            sizes = dict(depth=1, width=16, heads=2, patch=4, size=8, classes=5)
    return case._replace(
        model=dataclasses.replace(case.model, **sizes),
        batch_size=8,
        clip_norm=1.0,
        title=f"{case.title} (tiny)",
    )


def _all_tiny(cases: tuple[Case, ...]) -> tuple[Case, ...]:
    return tuple(tiny(case) for case in cases)


_GPU = in_dtypes(_LARGE)
PRESETS = {
    "cpu": CPU,
    "gpu": _GPU,
    "cpu-tiny": _all_tiny(CPU),
    "gpu-tiny": _all_tiny(_GPU),
}
