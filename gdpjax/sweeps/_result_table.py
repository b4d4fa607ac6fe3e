"""Print the table that a run ends with, in which every figure has its standing."""

from rich.console import Console
from rich.table import Table

from gdpjax._core.figures import rounded, shown_score
from gdpjax.sweeps._keys import SEED_NOTICE
from gdpjax.sweeps._layout import label
from gdpjax.sweeps._training import PUBLIC, TrainingResult
from gdpjax.sweeps.rounding import interval, upper


def result_table(result: TrainingResult) -> Table:
    """Return the scores, privacy by each accountant, and the mechanism they describe, in 80 columns."""
    cost = result.cost
    table = Table(title=f"The run that was made (every epsilon is at delta = {cost.delta!r})")
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("standing")

    # Scores.
    standing = "evaluation data: public" if result.scored_on == PUBLIC else result.scored_on
    for name, value in result.scores.items():
        table.add_row(label(name), f"{shown_score(name, value):.4g}", standing)
    table.add_section()

    # Privacy.
    table.add_row("mu, CLT", upper(cost.mu_clt, 4), "asymptotic estimate")
    table.add_row("epsilon, CLT", upper(cost.epsilon_clt, 4), "asymptotic, may understate")
    table.add_row("epsilon, moments accountant", upper(cost.epsilon_moments_accountant, 4), "upper bound")
    certified = interval({"epsilon_lower": cost.epsilon_lower, "epsilon_upper": cost.epsilon_upper}, 4)
    table.add_row("epsilon, certified", certified, "certified interval", end_section=True)

    # The mechanism.
    relation = cost.neighboring_relation.replace("_", " ")
    table.add_row("noise_multiplier", f"{cost.noise_multiplier:.6g}", "noise stddev / sensitivity")
    table.add_row("sampling_prob", upper(cost.sampling_prob, 6), f"Poisson, N = {result.plan.max_examples} public")
    table.add_row("num_steps", f"{cost.num_steps}", f"{result.epochs} epochs, as planned")
    table.add_row("delta", f"{cost.delta!r}", "")
    table.add_row("neighbouring relation", relation, "an example or a null one")
    table.add_row("overflow tau", rounded(cost.overflow, 2, "up"), "batch above capacity")
    if result.seeded:
        table.caption = SEED_NOTICE
    return table


def print_result(console: Console, result: TrainingResult) -> None:
    """Print the table and where the files are."""
    console.print(result_table(result))
    console.print(f"Files: {result.out}", soft_wrap=True)
    console.print("Those named NOT_FOR_RELEASE are outside epsilon: keep them private.")
