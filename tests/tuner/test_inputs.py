"""Inputs are read as iree-run-module reads them, checked against the signature, or made."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tuner.errors import TuneError, UsageError
from tuner.inputs import DTYPES, load_inputs, make_inputs, save_inputs, spec_shape, tool_arguments
from tuner.program import Function, TensorSpec, functions
from tuner.toolchain import compile_program, default_target_flags, run_tool


def takes(*inputs: TensorSpec) -> Function:
    return Function("main", inputs, ())


def one(kind: TensorSpec, spec: str) -> np.ndarray:
    (array,) = make_inputs(takes(kind), [spec])
    return array


F32, I32 = TensorSpec("f32", (2, 2)), TensorSpec("i32", (2, 2))


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"index"}))
def test_made_values_suit_their_type(dtype: str) -> None:
    function = takes(TensorSpec(dtype, (40, 50)), TensorSpec(dtype, (40, 50)))
    first, second = make_inputs(function, [], seed=3)
    again, _ = make_inputs(function, [], seed=3)
    other, _ = make_inputs(function, [], seed=4)
    assert first.shape == (40, 50) and first.dtype == DTYPES[dtype]
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes() and first.tobytes() != second.tobytes()
    if dtype == "i1":
        assert 0.4 < first.mean() < 0.6
    elif dtype == "i8":
        assert first.min() == -8 and first.max() == 8
    elif dtype.startswith("i"):
        assert first.min() == 0 and first.max() == 9
    else:
        parts = [first.real, first.imag] if dtype.startswith("complex") else [first.astype(np.float64)]
        for part in parts:
            # Eight-bit floats round by up to an eighth.
            slack = 0.13 if dtype.startswith("f8") else 0.01
            assert np.abs(part).min() >= 0.1 * (1 - slack) and np.abs(part).max() <= 1
            assert 0.4 < (part > 0).mean() < 0.6
            assert len(np.unique(part)) > 10


def test_a_spec_for_one_input_leaves_the_others_alone() -> None:
    _, plain = make_inputs(takes(F32, F32), [])
    _, beside = make_inputs(takes(F32, F32), ["2x2xf32=1", "2x2xf32"])
    np.testing.assert_array_equal(plain, beside)


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        (F32, "2x2xf32=1.5", [[1.5, 1.5], [1.5, 1.5]]),
        (F32, "2x2=-2", [[-2, -2], [-2, -2]]),
        (I32, "2x2xi32=1 2 3 4", [[1, 2], [3, 4]]),
        (I32, "2x2xsi32=1,2,3,4", [[1, 2], [3, 4]]),
        (I32, "2x2xi32=[[1 2][3 4]]", [[1, 2], [3, 4]]),
        (I32, "2x2xi32=[[1, 2], [3, 4]]", [[1, 2], [3, 4]]),
        (TensorSpec("f32", ()), "f32=1", 1.0),
        (TensorSpec("i32", ()), "i32=4", 4),
        (TensorSpec("i32", (), scalar=True), "4", 4),
        (TensorSpec("f32", (), scalar=True), "-1.5", -1.5),
        (TensorSpec("i32", (), scalar=True), "i32=4", 4),
        (TensorSpec("i1", (3,)), "3xi1=1 0 true", [True, False, True]),
        (TensorSpec("i8", (2,)), "2xui8=255 1", [-1, 1]),
        (TensorSpec("i64", (2,)), "2xi64=9007199254740993 -1", [9007199254740993, -1]),
        (TensorSpec("bf16", (2,)), "2xbf16=1 -0.5", [1, -0.5]),
        (TensorSpec("f32", (None, 2)), "1x2xf32=3 4", [[3, 4]]),
        (TensorSpec("f32", (0,)), "0xf32", []),
        (TensorSpec("complex<f32>", (2,)), "2xcomplex<f32>=1 2", [1, 2]),
        (TensorSpec("!hal.buffer_view", ()), "1x2xi16=3 4", [[3, 4]]),
    ],
)
def test_specs_with_values(kind: TensorSpec, spec: str, expected: object) -> None:
    array = one(kind, spec)
    if not kind.dtype.startswith("!"):
        assert array.dtype == DTYPES[kind.dtype]
    assert isinstance(array, np.generic if kind.scalar else np.ndarray)
    np.testing.assert_array_equal(
        np.asarray(array).astype(np.complex128 if "complex" in kind.dtype else float), expected
    )
    if kind.dtype == "i64":
        assert array[0] == 9007199254740993


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        (F32, "2x3xf32", "input 0 of 'main' must be 2x2xf32, but --input 2x3xf32 is 2x3xf32"),
        (F32, "2x2x1xf32", "must be 2x2xf32"),
        (F32, "2x2xf16", "must be 2x2xf32, but --input 2x2xf16"),
        (F32, "4", "must be 2x2xf32, but --input 4 is 4"),
        (F32, "2x2xf33", "unknown element type 'f33'"),
        (F32, "?x2xf32", "not of the form"),
        (F32, "", "not of the form"),
        (F32, "2x2xf32=", "needs 4 values, or one for all, not 0"),
        (F32, "2x2xf32=1 2 3", "needs 4 values, or one for all, not 3"),
        (F32, "2x2xf32=one", "no list of f32 values"),
        (I32, "2x2xi32=1.5", "no list of i32 values"),
        (TensorSpec("i8", (1,)), "1xi8=256", "can't hold"),
        (TensorSpec("i8", (1,)), "1xi8=-129", "can't hold"),
        (TensorSpec("i1", (1,)), "1xi1=2", "can't hold"),
        (TensorSpec("i64", (1,)), "1xi64=99999999999999999999", "no list of i64 values"),
        (TensorSpec("!hal.buffer_view", ()), "1x2", "say the element type too"),
        (F32, "@missing.npy", r"cannot read missing\.npy: No such file"),
        (F32, "2x2xf32=@missing.bin", r"cannot read missing\.bin: No such file"),
    ],
)
def test_wrong_specs_say_what_is_wrong(kind: TensorSpec, spec: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        one(kind, spec)


def test_missing_specs_say_what_is_missing() -> None:
    with pytest.raises(UsageError, match=r"main\(2x2xf32, 2x2xi32\) takes 2 inputs, but 1 --input was given"):
        make_inputs(takes(F32, I32), ["2x2xf32"])
    with pytest.raises(UsageError, match=r"is 4x\?xf32, with a size left open.*--input 4x8xf32"):
        make_inputs(takes(TensorSpec("f32", (4, None))), [])
    with pytest.raises(UsageError, match="for which no values can be made"):
        make_inputs(takes(TensorSpec("!hal.buffer_view", ())), [])


def test_files(tmp_path: Path) -> None:
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    np.save(tmp_path / "a.npy", np.asfortranarray(values))
    values.tofile(tmp_path / "a.bin")
    np.testing.assert_array_equal(one(F32, f"@{tmp_path}/a.npy"), values)
    np.testing.assert_array_equal(one(F32, f"2x2xf32=@{tmp_path}/a.bin"), values)
    assert one(F32, f"@{tmp_path}/a.npy").flags.c_contiguous

    np.save(tmp_path / "big.npy", values.astype(">f4"))
    np.testing.assert_array_equal(one(F32, f"@{tmp_path}/big.npy"), values)
    np.save(tmp_path / "u.npy", np.array([255, 1], np.uint8))
    np.testing.assert_array_equal(one(TensorSpec("i8", (2,)), f"@{tmp_path}/u.npy"), np.array([-1, 1], np.int8))
    np.save(tmp_path / "b.npy", np.array([1.5, -2], ml_dtypes.bfloat16))
    bf16 = one(TensorSpec("bf16", (2,)), f"@{tmp_path}/b.npy")
    assert bf16.dtype == DTYPES["bf16"] and bf16.tolist() == [1.5, -2]

    for kind, spec, said in [
        (F32, f"@{tmp_path}/u.npy", "must be 2x2xf32"),
        (TensorSpec("f64", (2, 2)), f"@{tmp_path}/a.npy", "must be 2x2xf64, but .* holds f32"),
        # Two raw bytes a value may be bf16, but nothing says that they are f16.
        (TensorSpec("f16", (2,)), f"@{tmp_path}/b.npy", "must be 2xf16"),
        (F32, f"@{tmp_path}/a.bin", "not a .npy file"),
        (F32, f"@{tmp_path}", "cannot read"),
        (F32, f"2x2xf32=@{tmp_path}/a.npy", "bytes of raw data, but 16 are needed"),
    ]:
        with pytest.raises(UsageError, match=said):
            one(kind, spec)
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(UsageError, match=r"not a \.npy file"):
        one(F32, f"@{tmp_path}/object.npy")


def test_the_shape_that_a_spec_asks_for(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 5)))
    shapes = {
        "1x3x4xf32": (1, 3, 4),
        "2x2=1 2 3 4": (2, 2),
        "f32=1": (),
        f"@{tmp_path}/a.npy": (3, 5),
        "-1.5": None,
    }
    for spec, shape in shapes.items():
        assert spec_shape(spec) == shape


ALL_KINDS = (
    TensorSpec("f16", (2, 3)),
    TensorSpec("bf16", (2,)),
    TensorSpec("i8", (4,)),
    TensorSpec("i1", (4,)),
    TensorSpec("f8E4M3FN", (3,)),
    TensorSpec("f32", ()),
    TensorSpec("i32", (), scalar=True),
    TensorSpec("f32", (), scalar=True),
    TensorSpec("i1", (), scalar=True),
    TensorSpec("complex<f32>", (2,)),
)


def test_saved_inputs_come_back_as_they_were(tmp_path: Path) -> None:
    inputs = [*make_inputs(takes(*ALL_KINDS), []), np.zeros((0, 3), np.float32)]
    save_inputs(inputs, tmp_path / "inputs.npz")
    loaded = load_inputs(tmp_path / "inputs.npz")
    assert len(loaded) == len(inputs)
    for have, want in zip(loaded, inputs, strict=True):
        assert type(have) is type(want)
        assert (have.dtype, have.shape, have.tobytes()) == (want.dtype, want.shape, want.tobytes())
    save_inputs([], tmp_path / "none.npz")
    assert load_inputs(tmp_path / "none.npz") == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inputs.npz", "none.npz"]
    (tmp_path / "bad.npz").write_bytes((tmp_path / "inputs.npz").read_bytes()[:200])
    for path in (tmp_path / "bad.npz", tmp_path / "missing.npz"):
        with pytest.raises(TuneError, match="cannot read the inputs"):
            load_inputs(path)
    with pytest.raises(TuneError, match="cannot write"):
        save_inputs(inputs, tmp_path / "missing" / "inputs.npz")


def test_the_tool_sees_the_same_values(tmp_path: Path) -> None:
    kinds = [f"tensor<{t}>" if not t.scalar else t.dtype for t in ALL_KINDS]
    arguments = ", ".join(f"%a{n}: {kind}" for n, kind in enumerate(kinds))
    names = ", ".join(f"%a{n}" for n in range(len(kinds)))
    (tmp_path / "same.mlir").write_text(
        f"func.func @main({arguments}) -> ({', '.join(kinds)}) {{ return {names} : {', '.join(kinds)} }}"
    )
    compile_program(tmp_path / "same.mlir", tmp_path / "same.vmfb", default_target_flags([]))
    (function,) = functions(tmp_path / "same.mlir", tmp_path / "same.vmfb")
    assert function.inputs == ALL_KINDS
    inputs = make_inputs(function, [])
    flags = tool_arguments(inputs, tmp_path / "with spaces")
    outputs = [
        f"--output=@{tmp_path}/out_{n}.bin" if not kind.scalar else "--output=-" for n, kind in enumerate(ALL_KINDS)
    ]
    done = run_tool(
        [
            "iree-run-module",
            f"--module={tmp_path}/same.vmfb",
            "--function=main",
            "--device=local-sync",
            *flags,
            *outputs,
        ],
        what="running",
    )
    for n, (kind, array) in enumerate(zip(ALL_KINDS, inputs, strict=True)):
        if not kind.scalar:
            assert (tmp_path / f"out_{n}.bin").read_bytes() == array.tobytes(), kind
    scalars = [
        line.split("=")[1]
        for line in done.stdout.splitlines()
        if line.startswith(("result[", "i32=", "f32=")) and "=" in line
    ]
    numbers = [float(a) for k, a in zip(ALL_KINDS, inputs, strict=True) if k.scalar]
    assert [float(s) for s in scalars] == pytest.approx(numbers, rel=1e-5)
    with pytest.raises(UsageError, match="datetime64"):
        tool_arguments([np.zeros(2, "datetime64[s]")], tmp_path / "d")
