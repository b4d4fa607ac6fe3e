"""A checkpoint restores every bit, or says what is wrong with it."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import checkpoint
from experiments.errors import UserError

IDENTITY = {"learning_rate": 0.5, "jax": "1.2.3"}


def tree(scale=1.0):
    """Arrays and a typed key."""
    return {"w": scale * jnp.arange(6.0).reshape(2, 3), "n": jnp.int32(7)}, jax.random.key(11)


@pytest.fixture
def saved(tmp_path):
    """A folder with a checkpoint at step 4."""
    checkpoint.save(tmp_path, 0, tree(0.0), IDENTITY)
    checkpoint.save(tmp_path, 4, tree(1.0), IDENTITY)
    return tmp_path


def test_round_trip_keeps_bits_and_types(saved):
    step, (arrays, key) = checkpoint.restore(saved, tree(0.0), IDENTITY)
    assert step == 4
    np.testing.assert_array_equal(arrays["w"], np.arange(6.0).reshape(2, 3))
    assert arrays["n"].dtype == jnp.int32
    assert jax.random.bits(key) == jax.random.bits(jax.random.key(11))


def test_only_the_last_is_kept(saved):
    assert sorted(path.name for path in (saved / checkpoint.FOLDER).iterdir()) == ["index.json", "step_00000004"]


def test_a_crash_before_the_index_leaves_the_previous_one(saved, monkeypatch):
    def crash(*args):
        raise OSError("no space left")

    monkeypatch.setattr("experiments.records.write_json", crash)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(saved, 8, tree(2.0), IDENTITY)
    monkeypatch.undo()
    step, (arrays, _) = checkpoint.restore(saved, tree(0.0), IDENTITY)
    assert (step, float(arrays["w"][0, 1])) == (4, 1.0)
    checkpoint.save(saved, 8, tree(2.0), IDENTITY)
    assert checkpoint.restore(saved, tree(0.0), IDENTITY)[0] == 8


def test_another_identity_is_refused_with_the_differences(saved):
    with pytest.raises(UserError, match=r"jax: '1.2.3' then, '9' now; learning_rate: 0.5 then, 0.25 now"):
        checkpoint.restore(saved, tree(), {"learning_rate": 0.25, "jax": "9"})


def arrays_files(folder):
    """The non-empty files that orbax wrote."""
    files = (folder / checkpoint.FOLDER / "step_00000004").rglob("*")
    return sorted(path for path in files if path.is_file() and path.stat().st_size)


def test_any_flipped_bit_is_found(saved):
    for path in arrays_files(saved):
        original = path.read_bytes()
        path.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        with pytest.raises(UserError, match=f"{path.name} is damaged"):
            checkpoint.restore(saved, tree(), IDENTITY)
        path.write_bytes(original)
    assert checkpoint.restore(saved, tree(), IDENTITY)[0] == 4


def test_truncated_missing_and_foreign_files_are_found(saved):
    path = arrays_files(saved)[-1]
    original = path.read_bytes()
    path.write_bytes(original[: len(original) // 2])
    with pytest.raises(UserError, match="is damaged"):
        checkpoint.restore(saved, tree(), IDENTITY)
    path.unlink()
    with pytest.raises(UserError, match="is missing"):
        checkpoint.restore(saved, tree(), IDENTITY)
    path.write_bytes(original)
    path.with_name("extra").write_text("x")
    with pytest.raises(UserError, match="is foreign"):
        checkpoint.restore(saved, tree(), IDENTITY)


@pytest.mark.parametrize("content", ["", '{"step": 4, "arr', "[]", json.dumps({"step": 4})])
def test_damaged_index_is_found(saved, content):
    (saved / checkpoint.FOLDER / checkpoint.INDEX).write_text(content)
    with pytest.raises(UserError, match=r"index\.json is damaged"):
        checkpoint.restore(saved, tree(), IDENTITY)


def test_nothing_to_resume(tmp_path):
    assert not checkpoint.exists(tmp_path)
    with pytest.raises(UserError, match="nothing to resume"):
        checkpoint.restore(tmp_path, tree(), IDENTITY)
