"""What the search and the winner say together, and what choosing would cost.

The epsilon of the winner is that of ONE training with its settings fixed beforehand, as for every benchmark on public
data. On private data the choice would have to be paid for. The price stated here is that of the procedure of Papernot
and Steinke (arXiv:2110.03620): draw the number of trainings from the logarithmic distribution whose mean is the number
of configurations that were tried, draw each one's settings at random, release the best. It needs scores that are public
or inside the budget, which held-out private data are not; and every training is taken to cost what the winner does.
"""

from collections.abc import Sequence
from typing import Any

from experiments.errors import UserError
from experiments.recipes.catalogue import Recipe
from experiments.tables import mean_and_stdev
from gdpjax import accounting
from gdpjax.sweeps import Spec

Row = dict[str, Any]
"""The record of one trial, by column."""
SETTINGS = ("learning_rate", "l2_clip_norm", "epsilon", "batch_size", "epochs")
COST = ("mu_clt", "epsilon_clt", "epsilon_moments_accountant", "epsilon_lower", "epsilon_upper")


def outcome(
    recipe: Recipe, specs: tuple[Spec, Spec], searched: Sequence[Row], trained: Sequence[Row]
) -> dict[str, Any]:
    """The record of one recipe: settings, scores, costs, and what was chosen from."""
    found = [good(rows, spec) for rows, spec in zip((searched, trained), specs, strict=True)]
    best = (min if recipe.score == "test_rmse" else max)(found[0], key=lambda row: row[recipe.score])
    winner = found[1][0]
    if any(row[name] != best[name] for row in found[1] for name in SETTINGS):
        raise UserError(
            f"{recipe.winner} is not the best configuration of {recipe.search}, which has "
            f"{', '.join(f'{name} = {best[name]:g}' for name in SETTINGS)}; write that there, or search again"
        )
    search, model = specs
    tried, scores = recipe.tried_before + len(searched), [row[recipe.score] for row in found[1]]
    return {
        **model.task.names, "delta": model.delta,
        "settings": {name: winner[name] for name in (*SETTINGS, "noise_multiplier", "sampling_prob", "num_steps")},
        "score": recipe.score, "seeds": [row["seed"] for row in found[1]],
        "test": mean_and_stdev(scores) | {"values": scores},
        "cost": {name: winner[name] for name in COST},
        "published": {"score": recipe.published, "note": recipe.note} | _published(recipe, model.delta),
        "search": {
            "hold_out": search.hold_out, "configurations": len(searched), "tried_before": recipe.tried_before,
            "best_held_out": best[recipe.score],
        },
        "tuning": _tuning(winner, tried),
        "commands": [f"python -m experiments sweep experiments/recipes/{path}{recipe.name}.toml"
                     for path in ("", "winners/")],
    }  # fmt: skip


def good(rows: Sequence[Row], spec: Spec) -> list[Row]:
    """The rows without an error; UserError if there are none."""
    kept = [row for row in rows if row["error"] is None]
    if not kept:
        raise UserError(f"every trial of {spec.source.name} failed: {rows[0]['error'] if rows else 'there is none'}")
    return kept


def _published(recipe: Recipe, delta: float) -> dict[str, float]:
    """What the published setting costs."""
    run = (recipe.published_noise_multiplier, recipe.published_sampling_prob, recipe.published_num_steps)
    lower, upper = accounting.epsilon_bounds(*run, delta)
    return {"epsilon_lower": float(lower), "epsilon_upper": float(upper)}


def _tuning(winner: Row, tried: int) -> dict[str, float]:
    """The price of the best of a random number of trainings, ``tried`` of them on average."""
    gamma = accounting.gamma_for_mean_num_runs(float(tried), eta=0.0)
    left = winner["delta"] - tried * winner["overflow"]  # any of them may overflow
    run = (winner["noise_multiplier"], winner["sampling_prob"], winner["num_steps"])
    return {"mean_num_runs": tried, "epsilon": float(accounting.tuning_epsilon(*run, left, eta=0.0, gamma=gamma))}
