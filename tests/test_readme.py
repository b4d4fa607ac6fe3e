"""The README tells the truth: its Python runs, its map names what exists."""

import pathlib
import re

import jax

import gdpjax

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_code_runs_in_order_and_is_short():
    namespace: dict = {}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), namespace)
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 25
    assert 0 < namespace["epsilon_lower"] < namespace["epsilon_upper"] < namespace["epsilon_moments"] < 10
    assert namespace["epsilon_clt"] < namespace["epsilon_upper"]
    assert gdpjax.ledger_of(namespace["opt_state"]).num_steps == namespace["num_steps"]
    assert namespace["num_runs"] >= 1
    assert (namespace["one_run"] < namespace["epsilon_of_best"]).all()
    one_row = {name: values[:1] for name, values in namespace["rows"].items()}
    tuned = gdpjax.accounting.tuning_epsilon(**one_row, num_steps=1000, delta=1e-5, eta=0.0, gamma=namespace["gamma"])
    assert tuned[0] <= namespace["epsilon_of_best"] < 10
    assert all(leaf.any() for leaf in jax.tree.leaves(namespace["updates"]))


def test_every_public_name_is_in_the_map():
    for name in gdpjax.__all__:
        assert re.search(rf"`(gdpjax\.)?{name}\b", README) or f"gdpjax.{name}" in README, f"{name} is not in the README"
    for name in gdpjax.accounting.__all__:
        assert name in README, f"gdpjax.accounting.{name} is not in the README"


def test_names_in_the_readme_exist():
    for module, name in re.findall(r"gdpjax\.(accounting|sampling)\.(\w+)", README):
        assert hasattr(getattr(gdpjax, module), name)
    for name in re.findall(r"gdpjax\.(\w+)", README):
        assert hasattr(gdpjax, name), name
