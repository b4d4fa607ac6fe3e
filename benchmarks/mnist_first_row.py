"""The paper's first MNIST row, three seeds: trains, then writes what was measured with the commands that made it.

    GDPJAX_DATA=/path/to/data python -m benchmarks.mnist_first_row

Runs are kept in ``runs/mnist_first_row`` and resumed or reused; delete the folder to start again.
"""

import json
import pathlib
import statistics
import subprocess
import sys

RUNS = pathlib.Path("runs/mnist_first_row")
RESULT = pathlib.Path(__file__).parent / "results" / "mnist_first_row.json"
SEEDS = (0, 1, 2)
PUBLISHED = {"test_accuracy": 0.950, "mu": 0.23, "epsilon_clt": 0.83, "epsilon_moments_accountant_classic": 1.19}
SOURCE = "arXiv:1911.11607, MNIST table, noise multiplier 1.3"


def train(seed: int) -> str:
    """Train one seed, or continue it, and return the command that starts it."""
    out = RUNS / f"seed{seed}"
    options = ["--dataset", "mnist", "--seed", str(seed), "--out", str(out)]
    if not (out / "result.json").exists():
        resume = ["--resume"] if out.exists() else []
        subprocess.run([sys.executable, "-m", "experiments", "train", *options, *resume], check=True)
    return f"python -m experiments train {' '.join(options)}"


def read(seed: int) -> dict:
    """The public figures of one finished run."""
    folder = RUNS / f"seed{seed}"
    result = json.loads((folder / "result.json").read_text())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if "test_accuracy" in line]
    return {"result": result, "epochs": epochs}


def main() -> None:
    """Train all seeds and write the result file."""
    commands = [train(seed) for seed in SEEDS]
    runs = [read(seed) for seed in SEEDS]
    accuracies = [run["result"]["test_accuracy"] for run in runs]
    summary = {
        "what": "test accuracy after the last epoch, mean and sample standard deviation over seeds",
        "published": PUBLISHED | {"source": SOURCE},
        "test_accuracy_mean": statistics.mean(accuracies),
        "test_accuracy_stdev": statistics.stdev(accuracies),
        "command": "python -m benchmarks.mnist_first_row",
        "commands_of_the_runs": commands,
        "runs": runs,
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{summary['test_accuracy_mean']:.4f} +- {summary['test_accuracy_stdev']:.4f}; wrote {RESULT}")


if __name__ == "__main__":
    main()
