"""The same models as torch modules, of layers that Opacus supports, on the same parameters.

A module's path is its parameters' path in the JAX tree, so that `load` can copy them. Images come with channels first.
"""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from benchmarks.clipping import models
from benchmarks.clipping.flax_models import FlaxTransformer as FlaxSizes


class MLP(nn.Module):
    def __init__(self, model: models.MLP):
        super().__init__()
        pairs = zip(model.widths[:-1], model.widths[1:], strict=True)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairs)

    def forward(self, x):
        for layer in list(self.layers)[:-1]:
            x = functional.relu(layer(x))
        return self.layers[-1](x)


class CNN(nn.Module):
    def __init__(self, model: models.CNN):
        super().__init__()
        first, second = model.channels
        self.conv0 = nn.Conv2d(1, first, 8, stride=2, padding=3)
        self.conv1 = nn.Conv2d(first, second, 4, stride=2)
        self.dense0, self.dense1 = nn.Linear(16 * second, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv0(x)), 2, 1)
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2, 1)
        return self.dense1(functional.relu(self.dense0(x.permute(0, 2, 3, 1).flatten(1))))


class LoRA(nn.Module):
    """x W + b + (x A) B, W and b frozen."""

    def __init__(self, inputs: int, outputs: int, rank: int):
        super().__init__()
        self.base = nn.Linear(inputs, outputs)
        self.a, self.b = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, rank: int = 0):
        super().__init__()
        self.heads, self.causal = heads, causal

        def projection(outputs: int):
            return LoRA(width, outputs, rank) if rank else nn.Linear(width, outputs)

        self.norm0, self.norm1 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = projection(3 * width), projection(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.reshape(split).transpose(1, 2) for part in self.qkv(self.norm0(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm1(x)), approximate="tanh"))


def places(x):
    """0, 1, ... for each example: Opacus wants the batch axis, and its ghost clipping wants it in memory."""
    return torch.arange(x.shape[1], device=x.device).repeat(x.shape[0], 1)


class Transformer(nn.Module):
    def __init__(self, model: models.Transformer):
        super().__init__()
        width, rank = model.width, model.rank
        self.tokens, self.positions = nn.Embedding(model.vocabulary, width), nn.Embedding(model.length, width)
        self.blocks = nn.ModuleList(Block(width, model.heads, True, rank) for _ in range(model.depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, model.vocabulary)

    def forward(self, x):
        x = self.tokens(x) + self.positions(places(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Attention(nn.Module):
    """Causal attention with separate queries, keys and values, named as flax names them."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        split = (*x.shape[:2], self.heads, -1)
        q, k, v = (project(x).reshape(split).transpose(1, 2) for project in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(x.shape))


class FlaxBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        # flax's norms add 1e-6 to the variance where torch's add 1e-5.
        self.norm0, self.norm1 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm0(x))
        return x + self.down(functional.gelu(self.up(self.norm1(x)), approximate="tanh"))


class FlaxTransformer(nn.Module):
    def __init__(self, model: FlaxSizes):
        super().__init__()
        width = model.width
        self.tokens, self.positions = nn.Embedding(model.vocabulary, width), nn.Embedding(model.length, width)
        self.names = [f"block_{i}" for i in range(model.depth)]
        for name in self.names:
            self.add_module(name, FlaxBlock(width, model.heads))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, model.vocabulary)

    def forward(self, x):
        x = self.tokens(x) + self.positions(places(x))
        for name in self.names:
            x = getattr(self, name)(x)
        return self.head(self.norm(x))


class TextAverage(nn.Module):
    def __init__(self, model: models.TextAverage):
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.dense0, self.dense1 = nn.Linear(model.width, model.width), nn.Linear(model.width, 2)

    def forward(self, x):
        return self.dense1(functional.relu(self.dense0(self.tokens(x).mean(1))))


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, groups: int):
        super().__init__()
        self.norm0, self.norm1 = nn.GroupNorm(groups, inputs), nn.GroupNorm(groups, outputs)
        self.conv0 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv1 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = inputs != outputs or stride != 1
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x):
        h = functional.relu(self.norm0(x))
        x = x if self.shortcut is None else self.shortcut(h)
        return x + self.conv1(functional.relu(self.norm1(self.conv0(h))))


class ResNet(nn.Module):
    def __init__(self, model: models.ResNet):
        super().__init__()
        self.stem = nn.Conv2d(3, model.stem, 3, 1, 1, bias=False)
        self.blocks = nn.ModuleList(ResidualBlock(*each, model.groups) for each in model.plan())
        self.norm, self.head = nn.GroupNorm(model.groups, model.widths[-1]), nn.Linear(model.widths[-1], 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(functional.relu(self.norm(x)).mean((2, 3)))


class ViT(nn.Module):
    def __init__(self, model: models.ViT):
        super().__init__()
        self.patches = nn.Conv2d(3, model.width, model.patch, model.patch)
        self.positions = nn.Embedding(model.length, model.width)
        self.blocks = nn.ModuleList(Block(model.width, model.heads, False) for _ in range(model.depth))
        self.norm, self.head = nn.LayerNorm(model.width), nn.Linear(model.width, model.classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.positions(places(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def build(model: models.Model) -> Any:
    """Return the module of the same class name, trainable where the JAX model is."""
    if isinstance(model, models.Transformer) and model.tied:
        raise NotImplementedError("there is no torch module with a tied head")
    module = globals()[type(model).__name__](model)
    if isinstance(model, models.Transformer) and model.rank:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(is_lora(name))
    return module


def channels_first(images: Any) -> Any:
    """Channels first in memory too: of a channels-last image Opacus 1.6 makes wrong gradients of convolutions.

    Torch takes one channel, or what `contiguous` leaves as it is, for channels-last.
    """
    return images.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


def is_lora(name: str) -> bool:
    return bool({"a", "b"} & set(name.split(".")))


def counterpart(params: Any, frozen: tuple[Any, ...], name: str) -> np.ndarray:
    """Return the leaf of the JAX trees that is the module's parameter ``name``, in torch's order of axes."""
    *path, kind = (part for part in name.split(".") if part != "base")
    node = frozen[0] if frozen and not is_lora(name) else params
    for part in path:
        node = node[int(part)] if isinstance(node, list) else node[part]
    if kind == "bias":
        return np.asarray(node["bias"]).reshape(-1)
    key = next(key for key in ("kernel", "embedding", "scale") if key in node)
    leaf = np.asarray(node[key])
    if key != "kernel":
        return leaf
    match leaf.ndim:
        case 2:
            return leaf.T
        case 3:  # flax's attention keeps an axis of heads: the last but one, of the output projection the first
            rows = leaf.shape[0] * leaf.shape[1] if path[-1] == "out" else leaf.shape[0]
            return leaf.reshape(rows, -1).T
        case _:
            return leaf.transpose(3, 2, 0, 1)


def load(module: Any, params: Any, frozen: tuple[Any, ...]) -> None:
    """Copy the JAX parameters in."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(counterpart(params, frozen, name).copy()))
