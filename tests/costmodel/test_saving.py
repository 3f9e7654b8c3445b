"""A saved model comes back the same; anything else is refused with one clear message."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from costmodel.features import FEATURE_NAMES, features
from costmodel.model import CostModel
from costmodel.saving import DESCRIPTION, ModelFileError, load, read_description, save
from tests.costmodel.ops import AVX512, matmul
from tests.costmodel.synthetic import draw


@pytest.fixture(scope="module")
def fitted() -> tuple[CostModel, np.ndarray]:
    table, y = draw(matmul(), 120, 0)
    x = features(matmul(), AVX512, table)
    y = np.where(x[:, FEATURE_NAMES.index("vector.points")] > 12, np.nan, y)
    return CostModel(machine=AVX512, n_estimators=20, seed=5).fit(x, y), x


@pytest.fixture
def saved(fitted: tuple[CostModel, np.ndarray], tmp_path: Path) -> Path:
    path = tmp_path / "model.zip"
    save(fitted[0], path, notes={"digest": "abc"})
    return path


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    description = json.loads(parts.pop(DESCRIPTION))
    change(description, parts)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(DESCRIPTION, json.dumps(description))
        for name, data in parts.items():
            archive.writestr(name, data)


def test_round_trip(fitted: tuple[CostModel, np.ndarray], saved: Path) -> None:
    model, x = fitted
    again = load(saved)
    np.testing.assert_array_equal(model.predict(x), again.predict(x))
    np.testing.assert_array_equal(model.predict_with_std(x)[1], again.predict_with_std(x)[1])
    np.testing.assert_array_equal(model.predict_failure(x), again.predict_failure(x))
    assert again.get_params() == model.get_params()
    assert (again.slope_, again.offsets_, again.n_records_) == (model.slope_, model.offsets_, 120)


def test_description_is_plain_json(saved: Path) -> None:
    description = read_description(saved)
    assert description["features"] == list(FEATURE_NAMES)
    assert description["notes"] == {"digest": "abc"}
    assert not [p for p in saved.parent.iterdir() if p != saved], "a temporary file was left behind"


def test_saving_replaces_and_refuses_an_unfitted_model(saved: Path) -> None:
    before = saved.read_bytes()
    with pytest.raises(NotFittedError):
        save(CostModel(), saved)
    assert saved.read_bytes() == before


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_cut_file(saved: Path, keep: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(ModelFileError, match=r"model\.zip"):
        load(saved)


def test_flipped_bytes(saved: Path) -> None:
    data = saved.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in rng.integers(0, len(data) * 9 // 10, 30):
        broken = bytearray(data)
        broken[at] ^= 0x5A
        saved.write_bytes(bytes(broken))
        try:
            load(saved)
        except ModelFileError:
            refused += 1
    # A few bytes of a zip (dates, attributes) carry nothing.
    assert refused >= 27


def test_not_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ModelFileError, match="not a cost model"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(DESCRIPTION, "{}")
    with pytest.raises(ModelFileError, match="not a cost model"):
        load(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")


def test_other_features(saved: Path) -> None:
    rewrite(saved, lambda d, _: d["features"].__setitem__(0, "op.astrology"))
    with pytest.raises(ModelFileError, match=r"op\.astrology"):
        load(saved)


def test_other_order_of_features(saved: Path) -> None:
    rewrite(saved, lambda d, _: d["features"].reverse())
    with pytest.raises(ModelFileError, match="other features"):
        load(saved)


def test_other_schema(saved: Path) -> None:
    rewrite(saved, lambda d, _: d.update(schema=99))
    with pytest.raises(ModelFileError, match="schema 99"):
        load(saved)


def test_damaged_part_inside_a_sound_zip(saved: Path) -> None:
    rewrite(saved, lambda _, parts: parts.update({"member_0.ubj": parts["member_0.ubj"][:-40]}))
    with pytest.raises(ModelFileError, match="digest"):
        load(saved)


def test_missing_part(saved: Path) -> None:
    rewrite(saved, lambda _, parts: parts.pop("member_1.ubj") and None)
    with pytest.raises(ModelFileError, match="missing"):
        load(saved)


def test_garbage_with_a_right_digest(saved: Path) -> None:
    import hashlib

    def change(description: dict[str, Any], parts: dict[str, bytes]) -> None:
        parts["member_0.ubj"] = b"not trees"
        description["sha256"]["member_0.ubj"] = hashlib.sha256(b"not trees").hexdigest()

    rewrite(saved, change)
    with pytest.raises(ModelFileError, match="incomplete"):
        load(saved)
