"""``gdpjax sweep``: the grid, bad rows, the numbers, stopping and resuming, Parquet."""

import csv
import fcntl
import json
import pathlib

import numpy as np
import pyarrow.parquet
import pytest

from gdpjax import Bounds
from gdpjax.accounting import clt_epsilon, clt_mu_poisson, epsilon_bounds, moments_accountant_epsilon
from gdpjax.cli import _sweep, main
from gdpjax.tradeoff import NoGuarantee

RESULTS = ["mu_clt", "epsilon_clt", "clt_reliable", "epsilon_lower", "epsilon_upper", "epsilon_moments_accountant"]
INPUTS = ["noise_multiplier", "sampling_prob", "num_steps", "delta"]
GRID = ["--noise-multiplier", "1:2:2", "--sampling-prob", "0.01,1", "--num-steps", "10,1000", "--delta", "1e-5"]


def sweep(*arguments):
    """Exit status of the command, with SystemExit turned into its code."""
    try:
        return main(["sweep", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def fake_accountant(monkeypatch):
    """Sweeps whose results are the row's own noise multiplier: nothing is compiled. Returns the evaluated pieces."""
    pieces = []

    def evaluate(runs, with_mu):
        pieces.append(len(runs))
        texts = [repr(float(run[0])) for run in runs]
        return [[text, text, "true", *([text] * (5 if with_mu else 3))] for text in texts]

    monkeypatch.setattr(_sweep, "evaluate", evaluate)
    monkeypatch.setattr(_sweep, "PIECE", 64)
    return pieces


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("--noise-multiplier", "1:2", "expected numbers, start:stop:count or start:stop:logcount"),
        ("--noise-multiplier", "1,,2", "could not convert"),
        ("--epochs", "3", "either --epochs or --num-steps"),
        ("--batch-size", "3", "or --sampling-prob"),
        ("--delta", "1e-6:1e-5:130000", "at most 1000000"),
        ("--delta", "1", "no row can be computed"),
        ("--output", "out.txt", "must end in .csv or .parquet"),
        ("--input", "missing.csv", "No such file"),
    ],
)
def test_bad_options_are_one_line_and_nothing_is_written(tmp_path, monkeypatch, capsys, option, text, message):
    monkeypatch.chdir(tmp_path)
    assert sweep("--output", "out.csv", *GRID, option, text) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_grid_is_the_product_and_the_numbers_are_the_accountants(tmp_path, capsys):
    output = tmp_path / "out.csv"
    assert sweep(*GRID, "--output", output) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out == f"{output}: 8 rows\n"
    rows = read(output)
    assert list(rows[0]) == [*INPUTS, *RESULTS]
    runs = [tuple(float(row[name]) for name in INPUTS) for row in rows]
    assert runs == [(s, p, t, 1e-5) for s in (1, 2) for p in (0.01, 1) for t in (10, 1000)]
    assert rows[0]["num_steps"] == "10"
    noise, prob, steps, delta = np.array(runs).T
    lower, upper = epsilon_bounds(noise, prob, steps, delta)
    clt = clt_epsilon(noise, prob, steps, delta)
    moments = moments_accountant_epsilon(noise, prob, steps, delta)
    expected = {"epsilon_lower": lower, "epsilon_upper": upper, "mu_clt": clt_mu_poisson(noise, prob, steps)}
    for name, values in (expected | {"epsilon_clt": clt}).items():
        assert [float(row[name]) for row in rows] == values.tolist()
    # a sum over orders may be ordered otherwise in a program for another number of rows
    np.testing.assert_allclose([float(row["epsilon_moments_accountant"]) for row in rows], moments, rtol=1e-13)
    reliable = (np.abs(clt / lower - 1) <= 0.05) & (np.abs(clt / upper - 1) <= 0.05)
    assert [row["clt_reliable"] for row in rows] == [str(value).lower() for value in reliable.tolist()]
    assert set(reliable.tolist()) == {True, False}


def test_mu_is_added_on_request(monkeypatch):
    """The upper end of each row's certified mu is added; it is tested elsewhere and takes long."""
    asked = []

    class Asked(NoGuarantee):
        def __init__(self, *run):
            self.run = run

        def mu(self, failure):
            asked.append([np.asarray(value).tolist() for value in (*self.run, failure)])
            return Bounds(np.array([0.25]), np.array([0.5]))

    monkeypatch.setattr(_sweep, "certified", Asked)
    ((*_, upper, failure),) = _sweep.evaluate(np.array([[2.0, 0.01, 10.0, 1e-5]]), with_mu=True)
    assert asked == [[[2.0], [0.01], [10.0], 1e-10]]
    assert (upper, failure) == ("0.5", "1e-10")


FILE = """\
name,num_examples,batch_size,epochs,noise_multiplier
good,60000,256,15,1.3
no noise,60000,256,15,0
text,60000,256,15,x
empty,60000,,15,1.3
short,60000,256

nan,60000,256,15,nan
big batch,100,256,15,1.3
fraction,60000.5,256,15,1.3
no step,60000,256,0,1.3
"label, quoted",60000,512,15.0,0.70
"""
REASONS = {
    3: "noise_multiplier must be a finite number > 0, got 0.0",
    4: "noise_multiplier must be a number, got x",
    5: "expected_batch_size must be a number, got an empty cell",
    6: "has 4 cells instead of 6",
    8: "noise_multiplier must be a finite number > 0, got nan",
    9: "expected_batch_size must be above 0 and at most max_examples = 100, got 256",
    10: "max_examples must be a whole number >= 1, got 60000.5",
    11: "epochs must be a finite number > 0, got 0",
}


def test_bad_rows_are_reported_with_their_line_and_the_others_written(tmp_path, capsys, fake_accountant):
    path, output = tmp_path / "grid.csv", tmp_path / "out.csv"
    path.write_text(FILE)
    assert sweep("--input", path, "--delta", "1e-5", "--output", output) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{output}: 2 rows; bad rows left out: 8\n"
    lines = captured.err.splitlines()
    assert len(lines) == len(REASONS)
    for line, (number, reason) in zip(lines, REASONS.items(), strict=True):
        assert line.startswith(f"gdpjax sweep: left out: {path}, line {number}: {reason}")
    rows = read(output)
    given = ["name", "num_examples", "batch_size", "epochs", "noise_multiplier", "delta"]
    assert list(rows[0]) == [*given, "sampling_prob", "num_steps", *RESULTS]
    assert [list(row.values())[:8] for row in rows] == [
        ["good", "60000", "256", "15", "1.3", "1e-05", repr(256 / 60000), "3516"],
        ["label, quoted", "60000", "512", "15", "0.7", "1e-05", repr(512 / 60000), "1758"],
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("noise_multiplier,sampling_prob,num_steps\n", "no row can be computed"),
        ("noise_multiplier,sampling_prob,num_steps\n-1,.1,10\n", "no row can be computed"),
        ("noise_multiplier,sampling_prob\n1,.1\n", "give either --epochs or --num-steps"),
        ("noise_multiplier,sampling_prob,num_steps,delta\n1,.1,10,.1\n", "delta is there twice"),
        ("noise_multiplier,max_examples,num_examples,batch_size,epochs\n1,9,9,1,1\n", "max_examples is there twice"),
        ("noise_multiplier,sampling_prob,num_steps,batch_size\n1,.1,10,5\n", "or --sampling-prob"),
        ("sampling_prob,num_steps\n.1,10\n", "give --noise-multiplier, or a column"),
        ("noise,rate,steps\n1,.1,10\n", "grid.csv has the columns noise, rate, steps\n"),
        ("noise_multiplier,sampling_prob,num_steps,epsilon_clt\n1,.1,10,1\n", "epsilon_clt is there twice"),
    ],
)
def test_useless_files_are_refused_and_nothing_is_written(tmp_path, capsys, fake_accountant, text, message):
    path, output = tmp_path / "grid.csv", tmp_path / "out.csv"
    path.write_text(text)
    assert sweep("--input", path, "--delta", "1e-5", "--output", output) == 2
    assert message in capsys.readouterr().err
    assert not output.exists()


BIG = [
    "--noise-multiplier", "1:2:50", "--sampling-prob", "0.1,0.2", "--num-steps", "1:9:2", "--delta", "1e-5",
]  # fmt: skip


def test_resumed_is_uninterrupted_byte_for_byte(tmp_path, capsys, fake_accountant):
    whole, output = tmp_path / "whole.csv", tmp_path / "out.csv"
    assert sweep(*BIG, "--output", whole) == 0
    data = whole.read_bytes()
    lines = data.splitlines(keepends=True)
    assert len(lines) == 201
    assert fake_accountant == [64, 64, 64, 8]
    for finished, torn, kept in [(0, 0, 0), (63, 0, 0), (64, 7, 64), (130, 1, 128), (200, 0, 200), (199, 9, 192)]:
        output.write_bytes(b"".join(lines[: 1 + finished]) + lines[-1][:torn])
        fake_accountant.clear()
        assert sweep(*BIG, "--output", output, "--resume", "--json") == 0
        assert output.read_bytes() == data
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows_kept"] == kept
        assert sum(fake_accountant) == 200 - kept
    # Nothing to resume, and an empty file, are a start.
    for start in (output.unlink, lambda: output.write_bytes(b"")):
        start()
        assert sweep(*BIG, "--output", output, "--resume") == 0
        assert output.read_bytes() == data


@pytest.mark.parametrize(
    "change", [["--noise-multiplier", "1:2.1:50"], ["--noise-multiplier", "1,2"], ["--mu"], ["--delta", "2e-5"]]
)
def test_another_grid_is_not_resumed(tmp_path, capsys, fake_accountant, change):
    output = tmp_path / "out.csv"
    assert sweep(*BIG, "--output", output) == 0
    data = output.read_bytes()
    assert sweep(*BIG, *change, "--output", output, "--resume") == 2
    assert "is of another grid" in capsys.readouterr().err
    assert output.read_bytes() == data


def test_a_damaged_output_is_not_resumed(tmp_path, capsys, fake_accountant):
    output = tmp_path / "out.csv"
    assert sweep(*BIG, "--output", output) == 0
    lines = output.read_text().splitlines(keepends=True)
    lines[5] = "1.0\n"
    output.write_text("".join(lines))
    assert sweep(*BIG, "--output", output, "--resume") == 2
    assert "or damaged" in capsys.readouterr().err
    assert output.read_text() == "".join(lines)


def test_existing_output_is_refused(tmp_path, capsys, fake_accountant):
    for name in ("out.csv", "out.parquet"):
        output = tmp_path / name
        output.write_text("precious")
        assert sweep(*BIG, "--output", output) == 2
        assert "exists; continue it with --resume" in capsys.readouterr().err
        assert sweep(*BIG, "--output", output, "--resume") == 2
        assert output.read_text() == "precious"


def test_one_process_at_a_time_writes_an_output(tmp_path, capsys, fake_accountant):
    """An open file stands for the lock of another process."""
    output = tmp_path / "out.csv"
    with (tmp_path / "out.csv.lock").open("w") as file:
        file.write("7 on elsewhere")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep(*BIG, "--output", output) == 2
    assert "another process (7 on elsewhere) is writing" in capsys.readouterr().err
    assert not output.exists()
    assert sweep(*BIG, "--output", output) == 0
    assert list(tmp_path.iterdir()) == [output]


def test_a_lock_file_that_was_removed_meanwhile_keeps_nobody_out(tmp_path, capsys, monkeypatch, fake_accountant):
    """Another process removes it at its end, perhaps after this one has opened it."""
    output, lock = tmp_path / "out.csv", tmp_path / "out.csv.lock"
    locked = fcntl.flock

    def end_the_other_process(file, how):
        lock.unlink()
        locked(file, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", end_the_other_process)
        assert sweep(*BIG, "--output", output) == 2
    assert "try again" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_interruption_keeps_what_is_done(tmp_path, capsys, monkeypatch, fake_accountant, name):
    whole, output = tmp_path / f"whole{pathlib.Path(name).suffix}", tmp_path / name
    assert sweep(*BIG, "--output", whole) == 0

    computed = _sweep.evaluate

    def interrupt(runs, with_mu):
        if fake_accountant[-1:] == [64]:
            raise KeyboardInterrupt
        return computed(runs, with_mu)

    fake_accountant.clear()
    with monkeypatch.context() as patch:
        patch.setattr(_sweep, "evaluate", interrupt)
        assert sweep(*BIG, "--output", output) == 130
    captured = capsys.readouterr()
    assert "--resume" in captured.err
    work = output if name == "out.csv" else tmp_path / "out.parquet.partial.csv"
    assert len(read(work)) == 64
    assert sweep(*BIG, "--output", output) == 2
    assert sweep(*BIG, "--output", output, "--resume") == 0
    assert output.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, whole.name])
    assert sweep(*BIG, "--output", output, "--resume") == 0  # finished already
    assert output.read_bytes() == whole.read_bytes()
    assert sweep(*BIG[:-1], "1e-6", "--output", output, "--resume") == 2
    assert sweep("--noise-multiplier", "1:2:99", *BIG[2:], "--output", output, "--resume") == 2
    assert output.read_bytes() == whole.read_bytes()


def test_parquet_round_trip(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        _sweep, "evaluate", lambda runs, with_mu: [["0.1", "inf", "true", "0.0", "5e-324", "2.0"] for _ in runs]
    )
    path = tmp_path / "grid.csv"
    path.write_text("name,noise_multiplier,sampling_prob,num_steps\n007,1,.1,10\n,0.7,.1,20\nx,0,.1,20\n")
    first, second = tmp_path / "first.parquet", tmp_path / "second.csv"
    assert sweep("--input", path, "--delta", "1e-5", "--output", first) == 1
    table = pyarrow.parquet.read_table(first)
    assert [str(field.type) for field in table.schema] == [
        "string", "double", "double", "int64", "double", "double", "double", "bool", "double", "double", "double",
    ]  # fmt: skip
    assert table.column("name").to_pylist() == ["007", ""]
    assert table.column("num_steps").to_pylist() == [10, 20]
    assert table.column("epsilon_clt").to_pylist() == [np.inf, np.inf]
    assert table.column("epsilon_upper").to_pylist() == [5e-324] * 2
    pyarrow.parquet.write_table(table.select(["name", *INPUTS]), tmp_path / "grid.parquet")
    assert sweep("--input", tmp_path / "grid.parquet", "--output", second) == 0
    assert [row["name"] for row in read(second)] == ["007", ""]
    assert [row["noise_multiplier"] for row in read(second)] == ["1", "0.7"]
