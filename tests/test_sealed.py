"""Sealed files: what is written is read, and no byte can change unnoticed."""

import hashlib
import json

import numpy as np
import pytest

from pdbo import _sealed

HEADER = {"step": 3, "notes": {"tol": float("inf")}, "x": [1.5, None, "\ud800"]}
ARRAYS = {
    "b": np.arange(6.0).reshape(2, 3),
    "a": np.array(2, np.int8),
    "empty": np.zeros((0, 3), np.float32),
    "turned": np.arange(4).reshape(2, 2).T,
}


@pytest.fixture
def path(tmp_path):
    _sealed.write(tmp_path / "file", "checkpoint", 2, HEADER, ARRAYS)
    return tmp_path / "file"


def read(path):
    return _sealed.read(path, "checkpoint", 2)


def test_what_is_written_is_read(path):
    header, arrays = read(path)
    assert header == HEADER
    assert sorted(arrays) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)


def test_bytes_depend_on_the_contents_alone(path):
    before = path.read_bytes()
    _sealed.write(path, "checkpoint", 2, HEADER, dict(reversed(ARRAYS.items())))
    assert path.read_bytes() == before


@pytest.mark.parametrize("way", ["flip", "drop", "blank", "zero", "cut"])
def test_no_byte_can_change_unnoticed(way, path):
    good = path.read_bytes()
    for place in range(len(good)):
        change = {
            "flip": good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :],
            "drop": good[:place] + good[place + 1 :],
            "blank": good[:place] + b" " + good[place:],
            "zero": good[:place] + b"0" + good[place:],
            "cut": good[:place],
        }
        path.write_bytes(change[way])
        with pytest.raises(_sealed.Damaged):
            read(path)


def test_the_seal_can_be_checked_with_other_tools(path):
    """SHA-256 of the arrays, and of the other entries as indented JSON with sorted names."""
    _, line, arrays = path.read_bytes().split(b"\n", 2)
    body = json.loads(line)
    assert body["arrays_sha256"] == hashlib.sha256(arrays).hexdigest()
    seal = body.pop("sha256")
    text = json.dumps(body, indent=1, sort_keys=True) + "\n"
    assert seal == hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(_sealed.seal({"a": 1}))["sha256"] == _sealed.digest(b'{\n "a": 1\n}\n')


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"", "is empty"),
        (b"pdbo checkpoint 1\n", "has format 1, and this pdbo reads format 2"),
        (b"pdbo checkpoint 20\n", "has format 20, and this pdbo reads format 2"),
        (b"pdbo record 2\n", "is not a checkpoint, or its first line is damaged"),
        (b"\x00" * 90, "is not a checkpoint, or its first line is damaged"),
        (b"pdbo checkpoint 2\n[1]\n", "is not a checkpoint of pdbo"),
        (b"pdbo checkpoint 2\n" + b"[" * 10**5, "is not a checkpoint of pdbo"),
        (b"pdbo checkpoint 2\n" + _sealed.seal({}, None), "was changed or damaged"),
    ],
    ids=range(8),
)
def test_something_else_is_one_sentence(line, sentence, tmp_path):
    (tmp_path / "file").write_bytes(line)
    with pytest.raises(_sealed.Damaged, match=sentence):
        read(tmp_path / "file")


def test_nothing_is_pickled(path, tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        _sealed.write(path, "checkpoint", 2, {}, {"a": np.array([print], object)})
    assert [p.name for p in tmp_path.iterdir()] == ["file"]  # no part of it, and the old one whole
    assert read(path)[0] == HEADER


def test_arrays_of_any_size(path, monkeypatch):
    """Beyond 2 GiB a zip file needs longer fields; here beyond 100 bytes."""
    monkeypatch.setattr("zipfile.ZIP64_LIMIT", 100)
    _sealed.write(path, "checkpoint", 2, {}, {"a": np.arange(5000)})
    np.testing.assert_array_equal(read(path)[1]["a"], np.arange(5000))
