"""The README tells the truth: its Python runs and prints what it shows, and the names it uses exist."""

import pathlib
import re

import gdpjax
from tests.test_docs import run_blocks

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_code_runs_in_order_and_prints_what_is_shown(capsys):
    namespace = run_blocks(ROOT / "README.md", capsys)
    assert gdpjax.ledger_of(namespace["state"].opt_state).num_steps == namespace["plan"].num_steps
    bounds = namespace["bounds"]
    assert (bounds.lower < bounds.upper).all()
    assert (bounds.upper < gdpjax.accounting.moments_accountant_epsilon(**namespace["run"])).all()
    assert (gdpjax.accounting.clt_epsilon(**namespace["run"]) < bounds.lower).all()
    # The step by hand is shown, not run: run it once.
    data = namespace["x"], namespace["y"]
    _, opt_state = namespace["step"](namespace["params"], namespace["opt_state"], 0, *data)
    (event,) = gdpjax.ledger_of(opt_state).events
    assert (event.num_steps, event.sampling_prob) == (1, namespace["batches"].sampling_prob)
    assert 0 < event.overflow < 1e-13


def test_names_in_the_readme_exist():
    for module, name in re.findall(r"gdpjax\.(accounting|sampling|training)\.(\w+)", README):
        assert hasattr(getattr(gdpjax, module), name)
    for name in re.findall(r"gdpjax\.(\w+)", README):
        assert hasattr(gdpjax, name), name


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", README) + re.findall(r'src="([^"]+)"', README):
        assert (ROOT / target).exists(), target
