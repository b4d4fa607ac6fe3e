"""The weights of a language model are cut into equal parts; `gdpjax.training` does the rest."""

from experiments.language.config import PRESETS
from experiments.language.model import param_shapes
from experiments.language.sharding import mesh_of, shardings


def test_each_weight_has_its_axis():
    found = shardings(param_shapes(PRESETS["1B"]), mesh_of(1))
    layers = found["layers"]
    assert tuple(layers["attention"]["query"]["kernel"].spec) == (None, "data", None)
    assert tuple(layers["attention"]["output"]["kernel"].spec) == (None, None, "data")
    assert tuple(layers["attention_norm"]["scale"].spec) == (None, None)
    assert tuple(found["embedding"]["table"].spec) == (None, "data")
    assert tuple(found["head"]["kernel"].spec) == ("data", None)
