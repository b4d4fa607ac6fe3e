"""Files of runs and sweeps that are JSON of another shape: one UserError that names the file, never a traceback."""

import json

import numpy as np
import pytest

from experiments.paper import tables as reproduced
from experiments.paper.runs import ResultFile
from experiments.recipes import tables as recipes
from gdpjax.sweeps import UserError, records

DAMAGED = (
    b"", b"[]", b"null", b"7", b'"text"', b"{}", b"[" * 100_000, b"\xff\xfe", b'{"a": NaN}',
    b'{"a": 1, "a": 2}', b"9" * 5000,
    b'{"config": []}', b'{"rows": 3}', b'{"rows": [{"name": "a"}]}', b'{"recipes": []}', b'{"num_steps": "7"}',
)  # fmt: skip
KINDS = (records.ConfigFile, ResultFile, recipes.Recipes, reproduced.RecordedExperiment)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_damaged_documents_are_named(tmp_path, kind):
    path = tmp_path / "file.json"
    for content in DAMAGED:
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"file\.json is damaged \(.*\); restore it"):
            records.read_json(path, kind)
    path.unlink()
    with pytest.raises(UserError, match=r"file\.json is missing"):
        records.read_json(path, kind)
    path.mkdir()
    with pytest.raises(UserError, match=r"file\.json is damaged"):
        records.read_json(path, kind)


def test_parameters_are_saved_by_their_paths(tmp_path):
    """A parameter called like an argument of savez is refused, by the check before a training, too."""
    params = {"layer": {"w": np.ones(2)}, "b": np.zeros(3)}
    records.save_model(tmp_path, params)
    with np.load(tmp_path / records.MODEL) as model:
        np.testing.assert_array_equal(model["layer/w"], params["layer"]["w"])
        np.testing.assert_array_equal(model["b"], params["b"])
    with pytest.raises(UserError, match="can be called file"):
        records.named_arrays({"file": np.ones(2)})


EPOCH = {"step": 4, "epoch": 1, "test_accuracy": 0.5, "epsilon_upper": "inf", "unread": [1]}


@pytest.mark.parametrize("line", [b"[]", b"3", b"{}", b'{"step": -1}', b'{"step": 1.5}', b'{"step": "4"}', b"{"])
def test_a_damaged_line_is_named_with_its_number(tmp_path, line):
    path = tmp_path / records.METRICS
    whole = json.dumps(EPOCH).encode()
    path.write_bytes(b"\n".join([b'{"notice": ""}', whole, line, whole, b""]))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 3"):
        records.rewind(tmp_path, records.METRICS, 9)


def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path):
    whole = json.dumps(EPOCH)
    (tmp_path / records.METRICS).write_text(f'{{"notice": ""}}\n{whole}\n{whole[:20]}')
    assert records.rewind(tmp_path, records.METRICS, 9) == [EPOCH]
    assert records.rewind(tmp_path, records.METRICS, 3) == []


def test_diagnostics_are_readable_by_their_owner_only(tmp_path):
    records.start_log(tmp_path, records.DIAGNOSTICS)
    records.append(tmp_path, records.DIAGNOSTICS, [{"step": 1}])
    records.rewind(tmp_path, records.DIAGNOSTICS, 1)
    assert (tmp_path / records.DIAGNOSTICS).stat().st_mode & 0o077 == 0
    records.start_log(tmp_path, records.METRICS)
    assert (tmp_path / records.METRICS).stat().st_mode & 0o400
