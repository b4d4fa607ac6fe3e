"""The same models as torch modules, of layers that Opacus supports, on the same parameters.

A module's path is its parameters' path in the JAX tree, so that `load` can copy them. Images come with channels first.
"""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from benchmarks.clipping import models


class MLP(nn.Module):
    def __init__(self, model: models.MLP):
        super().__init__()
        self.layers = nn.ModuleList()
        for inputs, outputs in zip(model.widths[:-1], model.widths[1:], strict=True):
            self.layers.append(nn.Linear(inputs, outputs))

    def forward(self, x):
        *hidden, last = self.layers
        for layer in hidden:
            x = functional.relu(layer(x))
        return last(x)


class CNN(nn.Module):
    def __init__(self, model: models.CNN):
        super().__init__()
        first, second = model.channels
        self.conv0 = nn.Conv2d(1, first, 8, stride=2, padding=3)
        self.conv1 = nn.Conv2d(first, second, 4, stride=2)
        self.dense0 = nn.Linear(16 * second, 32)
        self.dense1 = nn.Linear(32, 10)

    def forward(self, x):
        # Two convolutions, each with relu and pooling over windows of 2 by 2, stride 1.
        x = functional.relu(self.conv0(x))
        x = functional.max_pool2d(x, 2, 1)
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(x, 2, 1)

        # The JAX model has its channels last where the dense layers begin.
        x = x.permute(0, 2, 3, 1).flatten(1)
        x = functional.relu(self.dense0(x))
        return self.dense1(x)


# ---- Transformers ----


def attend(queries, keys, values, heads: int):
    """Return the causal attention of ``[batch, length, width]`` queries, keys and values with several heads."""
    batch_size, length, width = queries.shape
    in_heads = (batch_size, length, heads, -1)

    # Torch wants the axis of heads before that of positions.
    parts = (part.reshape(in_heads).transpose(1, 2) for part in (queries, keys, values))
    mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch_size, length, width)


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm0 = nn.LayerNorm(width)
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        # Attention.
        queries, keys, values = self.qkv(self.norm0(x)).chunk(3, -1)
        mixed = attend(queries, keys, values, self.heads)
        x = x + self.out(mixed)

        # The gelu network.
        hidden = self.up(self.norm1(x))
        hidden = functional.gelu(hidden, approximate="tanh")
        return x + self.down(hidden)


def places(x):
    """Return 0, 1, ... for each example: Opacus wants the batch axis, and its ghost clipping wants it in memory."""
    batch_size, length = x.shape[:2]
    return torch.arange(length, device=x.device).repeat(batch_size, 1)


class Transformer(nn.Module):
    def __init__(self, model: models.Transformer):
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Embedding(model.length, model.width)
        self.blocks = nn.ModuleList()
        for _ in range(model.depth):
            self.blocks.append(Block(model.width, model.heads))
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)

    def forward(self, x):
        x = self.tokens(x) + self.positions(places(x))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# ---- Averages of words, and residual networks ----


class TextAverage(nn.Module):
    def __init__(self, model: models.TextAverage):
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.dense0 = nn.Linear(model.width, model.width)
        self.dense1 = nn.Linear(model.width, 2)

    def forward(self, x):
        x = self.tokens(x).mean(1)
        x = functional.relu(self.dense0(x))
        return self.dense1(x)


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, groups: int):
        super().__init__()
        self.norm0 = nn.GroupNorm(groups, inputs)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv0 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv1 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        activated = functional.relu(self.norm0(x))
        if self.shortcut is not None:
            x = self.shortcut(activated)
        hidden = self.conv0(activated)
        activated = functional.relu(self.norm1(hidden))
        return x + self.conv1(activated)


class ResNet(nn.Module):
    def __init__(self, model: models.ResNet):
        super().__init__()
        last_width = model.widths[-1]
        self.stem = nn.Conv2d(3, model.stem, 3, 1, 1, bias=False)
        self.blocks = nn.ModuleList()
        for inputs, outputs, stride in model.plan():
            self.blocks.append(ResidualBlock(inputs, outputs, stride, model.groups))
        self.norm = nn.GroupNorm(model.groups, last_width)
        self.head = nn.Linear(last_width, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = functional.relu(self.norm(x))
        return self.head(x.mean((2, 3)))


# ---- From the JAX models ----

MODULES = {
    models.MLP: MLP,
    models.CNN: CNN,
    models.Transformer: Transformer,
    models.TextAverage: TextAverage,
    models.ResNet: ResNet,
}
"""The module of each JAX model."""


def build(model: models.Model) -> Any:
    """Return the module of a JAX model."""
    if isinstance(model, models.Transformer) and model.tied:
        raise NotImplementedError("there is no torch module with a tied head")
    return MODULES[type(model)](model)


def channels_first(images: Any) -> Any:
    """Return images with channels first, in memory too.

    Of a channels-last image Opacus 1.6 makes wrong gradients of convolutions, and torch takes one channel, or what
    `contiguous` leaves as it is, for channels-last.
    """
    return images.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


def counterpart(params: Any, name: str) -> np.ndarray:
    """Return the leaf of the JAX tree that is the module's parameter ``name``, in torch's order of axes."""
    *path, kind = name.split(".")
    node = params
    for part in path:
        node = node[int(part)] if isinstance(node, list) else node[part]

    if kind == "bias":
        return np.asarray(node["bias"])
    for key in ("embedding", "scale"):
        if key in node:
            return np.asarray(node[key])

    # Torch has the outputs of dense layers and convolutions first.
    kernel = np.asarray(node["kernel"])
    return kernel.T if kernel.ndim == 2 else kernel.transpose(3, 2, 0, 1)


def load(module: Any, params: Any) -> None:
    """Copy the JAX parameters in."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            leaf = counterpart(params, name)
            parameter.copy_(torch.from_numpy(leaf.copy()))
