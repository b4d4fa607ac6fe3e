"""The outcome of the search and the winner, and the cost of choosing.

The epsilon of the winner is that of ONE training with its settings fixed beforehand, as for every benchmark on public
data. On private data the choice would have to be paid for. The price stated here is that of the procedure of Papernot
and Steinke (arXiv:2110.03620): draw the number of trainings from the logarithmic distribution whose mean is the number
of configurations that were tried, draw each one's settings at random, release the best. It needs scores that are public
or inside the budget, which held-out private data are not; and every training is taken to cost what the winner does.
"""

from collections.abc import Sequence
from typing import Any

from experiments.recipes.catalogue import Recipe
from experiments.tables import mean_and_stdev
from gdpjax import accounting
from gdpjax.sweeps import Spec, UserError

Row = dict[str, Any]
"""The record of one trial, by column."""
SETTINGS = ("learning_rate", "l2_clip_norm", "epsilon", "batch_size", "epochs")
FOUND_SETTINGS = ("noise_multiplier", "sampling_prob", "num_steps")
"""What follows from the settings."""
COST = ("mu_clt", "epsilon_clt", "epsilon_moments_accountant", "epsilon_lower", "epsilon_upper")


def outcome(
    recipe: Recipe, specs: tuple[Spec, Spec], searched: Sequence[Row], trained: Sequence[Row]
) -> dict[str, Any]:
    """Return the record of one recipe: settings, scores, costs, and what was chosen from.

    Args:
      recipe: what the two sweeps cannot know.
      specs: the search, and the sweep of the winner.
      searched: the rows of the search, judged by held-out training data.
      trained: the rows of the winner, a seed each, judged by the test data.
    """
    search, final = specs
    scored, seeds = good(searched, search), good(trained, final)
    pick = min if recipe.score == "test_rmse" else max
    best = pick(scored, key=lambda row: row[recipe.score])
    _refuse_another_winner(recipe, best, seeds)

    winner = seeds[0]
    scores = [row[recipe.score] for row in seeds]
    published = {"score": recipe.published, "note": recipe.note}
    of_search = {
        "hold_out": search.content.hold_out,
        "configurations": len(searched),
        "tried_before": recipe.tried_before,
        "best_held_out": best[recipe.score],
    }
    return {
        **final.task.names,
        "delta": final.delta,
        "settings": {name: winner[name] for name in (*SETTINGS, *FOUND_SETTINGS)},
        "score": recipe.score,
        "seeds": [row["seed"] for row in seeds],
        "test": mean_and_stdev(scores) | {"values": scores},
        "cost": {name: winner[name] for name in COST},
        "published": published | _published_cost(recipe, final.delta),
        "search": of_search,
        "tuning": _tuning(winner, recipe.tried_before + len(searched)),
        "commands": [
            f"python -m experiments sweep experiments/recipes/{recipe.name}.toml",
            f"python -m experiments sweep experiments/recipes/winners/{recipe.name}.toml",
        ],
    }


def _refuse_another_winner(recipe: Recipe, best: Row, seeds: Sequence[Row]) -> None:
    """Raise UserError where the file of the winner has other settings than the best of the search."""
    if all(row[name] == best[name] for row in seeds for name in SETTINGS):
        return
    settings = ", ".join(f"{name} = {best[name]:g}" for name in SETTINGS)
    raise UserError(
        f"{recipe.winner} is not the best configuration of {recipe.search}, which has {settings}; "
        "write that there, or search again"
    )


def good(rows: Sequence[Row], spec: Spec) -> list[Row]:
    """Return the rows without an error; UserError if there are none."""
    kept = [row for row in rows if row["error"] is None]
    if not kept:
        raise UserError(f"every trial of {spec.source.path} failed: {rows[0]['error'] if rows else 'there is none'}")
    return kept


def _published_cost(recipe: Recipe, delta: float) -> dict[str, float]:
    """Return what the published setting costs."""
    sampling_prob = recipe.published_batch_size / recipe.published_num_examples
    run = (recipe.published_noise_multiplier, sampling_prob, recipe.published_num_steps)
    lower, upper = accounting.epsilon_bounds(*run, delta)
    return {"epsilon_lower": float(lower), "epsilon_upper": float(upper)}


def _tuning(winner: Row, tried: int) -> dict[str, float]:
    """Return the price of the best of a random number of trainings, ``tried`` of them on average."""
    run = (winner["noise_multiplier"], winner["sampling_prob"], winner["num_steps"])
    gamma = accounting.gamma_for_mean_num_runs(float(tried), eta=0.0)

    # Any of the trainings may have a batch above its capacity: that has its part of delta.
    remaining_delta = winner["delta"] - tried * winner["overflow"]
    epsilon = accounting.tuning_epsilon(*run, remaining_delta, eta=0.0, gamma=gamma)
    return {"mean_num_runs": tried, "epsilon": float(epsilon)}
