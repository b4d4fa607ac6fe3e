"""The shape of a decoder-only language model.

    config = PRESETS["124M"]
    config.num_params                    # 123,587,328
    dataclasses.replace(config, vocab_size=4096, max_length=256)

One dataclass describes the models of the Llama family, and those of Gemma, which differ from them in three places: the
embeddings are multiplied by the square root of the width, norms multiply by 1 + w instead of w, and the gate of the
feed-forward layer is a GELU.
"""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Rotary frequencies that are slowed down, as Llama 3.1 has them, for texts longer than it was first trained on.

    A frequency f, in turns a position, is kept where it makes more than ``high_freq_factor`` turns in
    ``original_max_length`` positions, is divided by ``factor`` where it makes fewer than ``low_freq_factor``, and is in
    between in between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only transformer.

    A layer has grouped-query attention and a gated feed-forward layer, each behind an RMSNorm and with a residual
    connection around it. No weight has a bias.

    Attributes:
      vocab_size: how many tokens there are.
      num_layers: how many layers.
      model_width: the width of the residual stream.
      num_heads: how many heads of queries.
      num_kv_heads: how many heads of keys and values, a divisor of ``num_heads``.
      head_width: the width of a head, an even number.
      hidden_width: the width inside of a feed-forward layer.
      max_length: the longest sequence, in tokens.
      rope_theta: the base of the rotary frequencies.
      rope_scaling: how rotary frequencies are slowed down, or None.
      norm_epsilon: what is added to a mean square before its root is taken.
      tied_head: whether the logits are products with the embeddings, instead of having a weight of their own.
      is_gemma: whether embeddings, norms and gates are Gemma's.
      compute_dtype: the type of matrix products. Norms, softmax, logits and loss are in float32.
    """

    vocab_size: int
    num_layers: int
    model_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    hidden_width: int
    max_length: int = 1024
    tied_head: bool = True
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling | None = None
    norm_epsilon: float = 1e-5
    is_gemma: bool = False
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"

    @property
    def weight_shapes(self) -> dict[str, tuple[int, int]]:
        """The weights of one layer, by their paths in it, as (inputs, outputs).

        >>> PRESETS["tiny"].weight_shapes["attention/key"]
        (128, 64)
        """
        queries = self.num_heads * self.head_width
        keys = self.num_kv_heads * self.head_width
        return {
            "attention/query": (self.model_width, queries),
            "attention/key": (self.model_width, keys),
            "attention/value": (self.model_width, keys),
            "attention/output": (queries, self.model_width),
            "feed_forward/gate": (self.model_width, self.hidden_width),
            "feed_forward/up": (self.model_width, self.hidden_width),
            "feed_forward/down": (self.hidden_width, self.model_width),
        }

    @property
    def num_layer_params(self) -> int:
        """The number of parameters of one layer, norms included."""
        weights = sum(inputs * outputs for inputs, outputs in self.weight_shapes.values())
        return weights + 2 * self.model_width

    @property
    def num_params(self) -> int:
        """The number of parameters of the model.

        >>> for name, config in PRESETS.items():
        ...     print(f"{name:5} {config.num_params:13,}")
        tiny        976,000
        small     9,442,080
        124M    123,587,328
        355M    353,944,576
        1B    1,100,048,384
        7B    6,738,415,616
        """
        table = self.vocab_size * self.model_width
        head = 0 if self.tied_head else table
        return table + head + self.model_width + self.num_layers * self.num_layer_params


PRESETS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        # vocabulary, layers, width, heads, heads of keys, width of a head, hidden width, longest sequence, tied head
        "tiny": ModelConfig(2_048, 4, 128, 4, 2, 32, 336, 256),
        "small": ModelConfig(8_192, 8, 288, 6, 2, 48, 768, 512),
        "124M": ModelConfig(50_304, 12, 768, 12, 12, 64, 2_048),
        "355M": ModelConfig(50_304, 24, 1_024, 16, 16, 64, 2_736),
        "1B": ModelConfig(32_000, 22, 2_048, 32, 4, 64, 5_632, 2_048, False),
        "7B": ModelConfig(32_000, 32, 4_096, 32, 32, 128, 11_008, 4_096, False),
    }
)
"""Shapes by name. "1B" is that of TinyLlama 1.1B, and "7B" that of Llama 2 7B."""
