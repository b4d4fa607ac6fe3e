"""The one table that a run ends with: no figure without its standing."""

from rich.console import Console
from rich.table import Table

from experiments.keys import SEED_NOTICE
from experiments.tables import interval, upper, upper_digits
from experiments.training import Result


def result_table(result: Result) -> Table:
    """Accuracy, privacy by each accountant, and the mechanism they describe; fits 80 columns."""
    cost, plan = result.cost, result.plan
    table = Table(title=f"The run that was made (every epsilon is at delta = {cost.delta!r})")
    table.add_column("quantity", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("standing")
    accuracy, rmse = result.scores["test_accuracy"], result.scores.get("test_rmse")
    table.add_row("test accuracy", f"{100 * accuracy:.1f} %", "test data taken as public", end_section=rmse is None)
    if rmse is not None:
        table.add_row("test RMSE of the grade", f"{rmse:.4f}", "test data taken as public", end_section=True)
    table.add_row("mu, CLT", upper(cost.mu_clt, 4), "asymptotic estimate")
    table.add_row("epsilon, CLT", upper(cost.epsilon_clt, 4), "asymptotic, may understate")
    table.add_row("epsilon, moments accountant", upper(cost.epsilon_moments_accountant, 4), "upper bound")
    certified = interval({"epsilon_lower": cost.epsilon_lower, "epsilon_upper": cost.epsilon_upper}, 4)
    table.add_row("epsilon, certified", certified, "certified interval", end_section=True)
    table.add_row("noise_multiplier", f"{cost.noise_multiplier!r}", "noise stddev / sensitivity")
    table.add_row("sampling_prob", upper(cost.sampling_prob, 6), f"Poisson, N = {plan.max_examples} public")
    table.add_row("num_steps", f"{cost.num_steps}", f"{result.epochs} epochs, as planned")
    table.add_row("delta", f"{cost.delta!r}", "")
    table.add_row("neighbouring relation", cost.neighboring_relation.replace("_", " "), "an example or a null one")
    table.add_row("overflow tau", upper_digits(cost.overflow, 2), "batch above capacity")
    if result.seeded:
        table.caption = SEED_NOTICE
    return table


def print_result(console: Console, result: Result) -> None:
    """The table and where the files are."""
    console.print(result_table(result))
    console.print(f"Files: {result.out}", soft_wrap=True)
    console.print("Those named NOT_FOR_RELEASE are outside epsilon: keep them private.")
