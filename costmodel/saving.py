"""Saves and loads cost models: a zip of XGBoost's own UBJSON and a JSON description; loading runs no code."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import xgboost as xgb

from costmodel.feature_table import FEATURE_NAMES
from costmodel.feature_table import SCHEMA as FEATURE_SCHEMA
from costmodel.model import CostModel
from costmodel.problem import Machine

FORMAT = "iree-tune cost model"
SCHEMA = 1
"""Raised when the file's layout changes."""

DESCRIPTION = "model.json"
FAILURE = "failure.ubj"
LARGEST_BYTES = 1 << 30
"""A file that unpacks to more than this is refused."""


class ModelFileError(ValueError):
    """A model file that can't be used: damaged, of another version, or not a model at all."""


def _member_name(number: int) -> str:
    return f"member_{number}.ubj"


def save(model: CostModel, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
    """Write a fitted model to ``path``; the file appears whole or not at all.

    Parameters
    ----------
    model
        A fitted model.
    path
        The file to write; an old one is replaced.
    notes
        Anything JSON can hold, kept with the model: the training data's digest, who made it.

    Raises
    ------
    sklearn.exceptions.NotFittedError
        If the model is not fitted.
    OSError
        If the file can't be written.
    """
    model.predict(np.zeros((0, len(FEATURE_NAMES)), np.float32))  # Raises where nothing was fitted.
    parts = {_member_name(i): bytes(member.save_raw("ubj")) for i, member in enumerate(model.members_)}
    if model.failure_ is not None:
        parts[FAILURE] = bytes(model.failure_.save_raw("ubj"))
    parameters = model.get_params(deep=False)
    parameters.pop("machine")
    description = {
        "format": FORMAT,
        "schema": SCHEMA,
        "feature_schema": FEATURE_SCHEMA,
        "features": list(FEATURE_NAMES),
        "xgboost": xgb.__version__,
        "machine": asdict(model.machine) if model.machine is not None else None,
        "parameters": parameters,
        "slope": model.slope_,
        "offsets": model.offsets_,
        "failure_rate": model.failure_rate_,
        "records": model.n_records_,
        "notes": notes or {},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in parts.items()},
    }
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(DESCRIPTION, json.dumps(description, indent=1, sort_keys=True))
            for name, data in parts.items():
                archive.writestr(name, data)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a model file says of itself: features, versions, parameters, notes.

    Raises
    ------
    ModelFileError
        If the file is damaged, no model, or of another schema.
    FileNotFoundError
        If there is no such file.
    """
    return _read(path)[0]


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > LARGEST_BYTES:
                raise ModelFileError(f"{path}: unpacks to more than {LARGEST_BYTES} bytes; not a cost model")
            parts = {info.filename: archive.read(info) for info in archive.infolist()}
        description = json.loads(parts.pop(DESCRIPTION).decode())
    except (FileNotFoundError, PermissionError, IsADirectoryError, ModelFileError):
        raise
    # A damaged zip raises many kinds of errors (BadZipFile, zlib.error, EOFError, UnicodeDecodeError, ...).
    except Exception as error:
        raise ModelFileError(f"{path}: damaged, or not a cost model ({error!r}); train or fetch it again") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelFileError(f"{path}: not a cost model; train one with `iree-tune train`")
    if description.get("schema") != SCHEMA:
        raise ModelFileError(f"{path}: schema {description.get('schema')}, this version reads {SCHEMA}; train it again")
    return description, parts


def _check_features(path: str | os.PathLike[str], description: dict[str, Any]) -> None:
    theirs = description.get("features")
    if description.get("feature_schema") == FEATURE_SCHEMA and theirs == list(FEATURE_NAMES):
        return
    names = theirs if isinstance(theirs, list) else []
    other = sorted(set(map(str, names)) ^ set(FEATURE_NAMES))
    detail = f"differing: {', '.join(other[:5])}{', ...' if len(other) > 5 else ''}" if other else "another meaning"
    raise ModelFileError(f"{path}: trained on other features ({detail}); train it again with this version")


def load(path: str | os.PathLike[str]) -> CostModel:
    """Read a model that :func:`save` wrote. Nothing in the file is executed.

    Raises
    ------
    ModelFileError
        If the file is damaged, no model, of another schema, or trained on other features.
    FileNotFoundError
        If there is no such file.
    """
    description, parts = _read(path)
    _check_features(path, description)
    digests = description.get("sha256")
    if not isinstance(digests, dict) or set(digests) != set(parts):
        raise ModelFileError(f"{path}: parts are missing; train or fetch it again")
    for name, data in parts.items():
        if hashlib.sha256(data).hexdigest() != digests[name]:
            raise ModelFileError(f"{path}: {name} is damaged (its digest differs); train or fetch it again")
    try:
        machine = description["machine"]
        parameters = {k: description["parameters"][k] for k in CostModel().get_params(deep=False) if k != "machine"}
        model = CostModel(machine=Machine(**machine) if machine is not None else None, **parameters)
        numbers = {name: float(description[name]) for name in ("slope", "failure_rate")}
        if not all(math.isfinite(number) for number in numbers.values()):
            raise ValueError("a number is not finite")
        model.slope_, model.failure_rate_ = numbers["slope"], numbers["failure_rate"]
        model.offsets_ = {str(name): float(offset) for name, offset in description["offsets"].items()}
        model.n_records_ = int(description["records"])
        model.n_features_in_ = len(FEATURE_NAMES)
        members = [parts[_member_name(i)] for i in range(len(parts) - (FAILURE in parts))]
        if not members:
            raise ValueError("no members")
        model.members_ = [_booster(data) for data in members]
        model.failure_ = _booster(parts[FAILURE]) if FAILURE in parts else None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: incomplete ({error!r}); train or fetch it again") from error
    return model


def _booster(data: bytes) -> xgb.Booster:
    booster = xgb.Booster()
    try:
        booster.load_model(bytearray(data))
    except xgb.core.XGBoostError as error:
        raise ValueError("XGBoost can't read its part") from error
    if booster.num_features() != len(FEATURE_NAMES):
        raise ValueError(f"trees of {booster.num_features()} features")
    return booster
