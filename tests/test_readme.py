"""The README tells the truth: its Python runs and prints what it shows, and the names it uses exist."""

import pathlib
import re

import gdpjax

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, flags=re.DOTALL)


def test_code_runs_in_order_and_prints_what_is_shown(capsys):
    namespace: dict = {}
    for block, shown in BLOCKS:
        capsys.readouterr()
        exec(compile(block, "README.md", "exec"), namespace)
        printed = capsys.readouterr().out
        assert not shown or printed == shown
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
