"""Arrays across hosts: written by two processes, read by three or one, damage never passed over."""

import json
import pathlib
import random
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pdbo
import pdbo.orbax
from processes import finish, free_address, python, start

pytest.importorskip("orbax.checkpoint")

ARRAYS = {
    "rows": np.arange(48.0).reshape(12, 4),
    "labels": [np.arange(12, dtype=np.int32), np.arange(7) % 2 == 0],
    "scale": np.float32(3),
}

TOGETHER = """
    import numpy as np
    import pdbo
    folder, save, address, count, rank = sys.argv[1:]
    with pdbo.distributed(address, int(count), int(rank)):
        from test_orbax import ARRAYS
        import pdbo.orbax
        if save == "save":
            problem = pdbo.Problem(lambda x, y, d: 0.0, lambda x, y, d: 0.0, ARRAYS)
            tree = pdbo.shard(problem, split={"rows": True, "labels": True, "scale": False}).data
            pdbo.orbax.save_arrays(folder, tree)
        else:
            tree = pdbo.orbax.load_arrays(folder)
        assert not tree["rows"].is_fully_addressable
        shards = tree["rows"].addressable_shards
        held = [(s.index[0].start or 0, np.asarray(s.data)) for s in shards]
        assert all(np.array_equal(part, ARRAYS["rows"][i : i + len(part)]) for i, part in held)
        print(json.dumps([sum(len(part) for _, part in held), float(tree["scale"])]))
"""


def run(folder, action, count):
    address = free_address()
    ended = finish(
        [start(python(TOGETHER, folder, action, address, count, rank)) for rank in range(count)]
    )
    assert [code for code, _, _ in ended] == [0] * count, ended
    return [json.loads(out.splitlines()[-1]) for _, out, _ in ended]


def test_another_number_of_hosts_reads_it(tmp_path):
    folder = tmp_path / "arrays"
    assert run(folder, "save", 2) == [[6, 3.0]] * 2
    assert run(folder, "load", 3) == [[4, 3.0]] * 3
    found = pdbo.orbax.load_arrays(folder)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(ARRAYS), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orbax") / "arrays"
    pdbo.orbax.save_arrays(folder, {"x": jnp.arange(5000.0) ** 0.5})
    return folder


def test_damage_is_never_passed_over(saved):
    """Bits flipped one at a time in every file that holds data: refused, or without effect."""
    files = [f for f in saved.rglob("*") if f.is_file() and f.stat().st_size > 10_000]
    assert files
    draw = random.Random(0)
    refused = 0
    for file in files:
        good = file.read_bytes()
        for _ in range(12):
            bad = bytearray(good)
            bad[draw.randrange(len(bad))] ^= 1 << draw.randrange(8)
            file.write_bytes(bad)
            try:
                found = pdbo.orbax.load_arrays(saved)
                np.testing.assert_array_equal(found["x"], np.arange(5000.0) ** 0.5)
            except pdbo.CheckpointError as error:
                assert str(saved) in str(error)
                refused += 1
        file.write_bytes(good)
    assert refused > 5


def test_wrong_use_is_one_sentence(saved, tmp_path, monkeypatch):
    with pytest.raises(pdbo.CheckpointError, match="exists already"):
        pdbo.orbax.save_arrays(saved, {"x": jnp.zeros(3)})
    with pytest.raises(pdbo.CheckpointError, match="there is no folder"):
        pdbo.orbax.load_arrays(tmp_path / "nowhere")
    with pytest.raises(pdbo.CheckpointError, match="cannot be read"):
        pdbo.orbax.load_arrays(pathlib.Path(__file__).parent)
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(pdbo.CheckpointError, match="pip install 'pdbo\\[orbax\\]'"):
        pdbo.orbax.load_arrays(saved)
