"""The shape of a decoder-only language model.

    config = PRESETS["124M"]
    config.num_params                    # 123,587,328
    dataclasses.replace(config, vocab_size=4096, max_length=256)

One dataclass describes the models of the Llama family, and those of Gemma, which differ from them in three places: the
embeddings are multiplied by the square root of the width, norms multiply by 1 + w instead of w, and the gate of the
feed-forward layer is a GELU.
"""

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType

from experiments.errors import UserError

ACTIVATIONS = ("silu", "gelu_tanh")
"""The functions that a feed-forward layer may have at its gate."""

DTYPES = ("bfloat16", "float32")
"""The types in which matrix products may be computed."""


@dataclasses.dataclass(frozen=True)
class RotaryScaling:
    """Rotary frequencies that are slowed down, as Llama 3.1 has them, for texts longer than it was first trained on.

    A frequency f, in turns a position, is kept where it makes more than ``high_freq_factor`` turns in
    ``original_max_length`` positions, is divided by ``factor`` where it makes fewer than ``low_freq_factor``, and is in
    between in between.

    Attributes:
      factor: what low frequencies are divided by, at least 1.
      low_freq_factor, high_freq_factor: turns, the second larger than the first.
      original_max_length: positions of the texts that the model was first trained on.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise UserError(f"expected a factor of rotary scaling of at least 1, got {self.factor}")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise UserError(
                "expected 0 < low_freq_factor < high_freq_factor in a rotary scaling, got "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        _check_count("original_max_length", self.original_max_length)


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
      activation: the function at the gate, one of `ACTIVATIONS`.
      scaled_embedding: whether embeddings are multiplied by sqrt(model_width), as Gemma does.
      norm_adds_one: whether a norm multiplies by 1 + w, as Gemma does, instead of w.
      compute_dtype: the type of matrix products, one of `DTYPES`. Norms, softmax, logits and loss are in float32.
      remat: whether the values inside of a layer are computed again in the backward pass, instead of being kept.
      unrolled: whether the layers are compiled one after the other, instead of once as the body of a loop. It takes
        long to compile, and lets XLA count all operations.

    Raises:
      UserError: a number out of range, or numbers that do not fit together.

    >>> ModelConfig(vocab_size=100, num_layers=2, model_width=16, num_heads=4, num_kv_heads=3, head_width=4,
    ...             hidden_width=32)
    Traceback (most recent call last):
    experiments.errors.UserError: expected num_heads to be a multiple of num_kv_heads, got 4 and 3
    """

    vocab_size: int
    num_layers: int
    model_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    hidden_width: int
    max_length: int = 1024
    rope_theta: float = 10_000.0
    rope_scaling: RotaryScaling | None = None
    norm_epsilon: float = 1e-5
    tied_head: bool = True
    activation: str = "silu"
    scaled_embedding: bool = False
    norm_adds_one: bool = False
    compute_dtype: str = "bfloat16"
    remat: bool = True
    unrolled: bool = False

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "num_layers",
            "model_width",
            "num_heads",
            "num_kv_heads",
            "head_width",
            "hidden_width",
            "max_length",
        ):
            _check_count(name, getattr(self, name))
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"expected num_heads to be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_width % 2:
            raise UserError(f"expected an even head_width, as rotary positions turn pairs, got {self.head_width}")
        for name in ("rope_theta", "norm_epsilon"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"expected {name} to be a positive number, got {value!r}")
        if self.activation not in ACTIVATIONS:
            raise UserError(f"expected an activation of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        if self.compute_dtype not in DTYPES:
            raise UserError(f"expected a compute_dtype of {', '.join(DTYPES)}, got {self.compute_dtype!r}")

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
        """The number of parameters of one layer."""
        weights = sum(inputs * outputs for inputs, outputs in self.weight_shapes.values())
        norms = 2 * self.model_width
        return weights + norms

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
        final_norm = self.model_width
        return table + head + final_norm + self.num_layers * self.num_layer_params


def _check_count(name: str, value: object) -> None:
    """Refuse what is no whole number of at least one."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"expected {name} to be a whole number of at least 1, got {value!r}")


PRESETS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "tiny": ModelConfig(
            vocab_size=2_048,
            num_layers=4,
            model_width=128,
            num_heads=4,
            num_kv_heads=2,
            head_width=32,
            hidden_width=336,
            max_length=256,
        ),
        "small": ModelConfig(
            vocab_size=8_192,
            num_layers=8,
            model_width=288,
            num_heads=6,
            num_kv_heads=2,
            head_width=48,
            hidden_width=768,
            max_length=512,
        ),
        "124M": ModelConfig(
            vocab_size=50_304,
            num_layers=12,
            model_width=768,
            num_heads=12,
            num_kv_heads=12,
            head_width=64,
            hidden_width=2_048,
        ),
        "355M": ModelConfig(
            vocab_size=50_304,
            num_layers=24,
            model_width=1_024,
            num_heads=16,
            num_kv_heads=16,
            head_width=64,
            hidden_width=2_736,
        ),
        "1B": ModelConfig(
            vocab_size=32_000,
            num_layers=22,
            model_width=2_048,
            num_heads=32,
            num_kv_heads=4,
            head_width=64,
            hidden_width=5_632,
            max_length=2_048,
            tied_head=False,
        ),
        "7B": ModelConfig(
            vocab_size=32_000,
            num_layers=32,
            model_width=4_096,
            num_heads=32,
            num_kv_heads=32,
            head_width=128,
            hidden_width=11_008,
            max_length=4_096,
            tied_head=False,
        ),
    }
)
"""Shapes by name. "1B" is that of TinyLlama 1.1B, and "7B" that of Llama 2 7B."""
