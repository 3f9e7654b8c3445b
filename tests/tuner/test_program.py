"""Programs of every form are imported, compiled and described by the real compiler."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tuner import toolchain
from tuner.errors import TuneError, UsageError
from tuner.inputs import make_inputs, tool_arguments
from tuner.program import Function, TensorSpec, functions, load_program, parse_declaration, pick_function
from tuner.toolchain import (
    check_versions,
    compile_program,
    default_target_flags,
    digest_errors,
    disk_errors,
    iree_version,
    read_flags_file,
    run_tool,
    tool,
)

TWO = """
func.func @double(%a: tensor<4x3xf16>, %b: tensor<?x3xbf16>) -> (tensor<4x3xf16>, tensor<?x3xbf16>) {
  %0 = arith.addf %a, %a : tensor<4x3xf16>
  %1 = arith.addf %b, %b : tensor<?x3xbf16>
  return %0, %1 : tensor<4x3xf16>, tensor<?x3xbf16>
}
func.func @"Model from (some) tool."(%a: tensor<4xi8>, %b: tensor<4xi1>, %s: i32, %t: tensor<f32>)
    -> (tensor<4xi8>, i32, tensor<f32>) {
  %zero = arith.constant dense<0> : tensor<4xi8>
  %0 = arith.select %b, %a, %zero : tensor<4xi1>, tensor<4xi8>
  return %0, %s, %t : tensor<4xi8>, i32, tensor<f32>
}
"""
ODD_NAME = "Model from (some) tool."


def write_onnx(path: Path, *, opset: int, shape: list[object], external: bool = False) -> onnx.ModelProto:
    """Write ``y = softmax(x W + b)`` with weights of 128 KB; softmax changed its meaning with opset 13."""
    rng = np.random.default_rng(1)
    # As models are found: the input's sizes were opened by hand, the others still say what was exported.
    outputs = [7, 7, 512] if isinstance(shape[0], str) else [*shape[:2], 512]
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.1, (64, 512)).astype(np.float32), "w"),
        numpy_helper.from_array(rng.normal(0, 0.1, 512).astype(np.float32), "b"),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["xw"]),
            helper.make_node("Add", ["xw", "b"], ["sum"]),
            helper.make_node("Softmax", ["sum"], ["y"]),
        ],
        "a graph's name",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, outputs)],
        weights,
        value_info=[helper.make_tensor_value_info("xw", TensorProto.FLOAT, outputs)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    inline = onnx.ModelProto.FromString(model.SerializeToString())
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return inline


def build_and_run(program: Path, workdir: Path, *, inputs: list[str]) -> tuple[Function, list[np.ndarray]]:
    """Compile, run with iree-run-module, and return the arguments followed by the output."""
    loaded = load_program(program, workdir, inputs=inputs)
    vmfb = workdir / "out.vmfb"
    compile_program(loaded.mlir, vmfb, default_target_flags([]))
    function = pick_function(functions(loaded.mlir, vmfb), None)
    arrays = make_inputs(function, inputs)
    run_tool(
        [
            "iree-run-module",
            f"--module={vmfb}",
            f"--function={function.name}",
            "--device=local-sync",
            *tool_arguments(arrays, workdir / "in"),
            f"--output=@{workdir / 'y.npy'}",
        ],
        what="running",
    )
    return function, [*arrays, np.load(workdir / "y.npy")]


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("external", [False, True])
def test_onnx_computes_what_it_did_before(tmp_path: Path, opset: int, external: bool) -> None:
    path = tmp_path / "model.onnx"
    model = write_onnx(path, opset=opset, shape=["batch", "time", 64], external=external)
    function, (x, y) = build_and_run(path, tmp_path, inputs=["2x3x64xf32"])
    assert function.name == "a graph's name"
    assert function.inputs == (TensorSpec("f32", (2, 3, 64)),)
    assert function.outputs == (TensorSpec("f32", (2, 3, 512)),)
    weights, bias = (numpy_helper.to_array(t) for t in model.graph.initializer)
    powers = np.exp(x.astype(np.float64) @ weights + bias)
    # Written out, as ONNX's reference evaluator gives opset 11 the meaning that came with opset 13.
    axes = (1, 2) if opset < 13 else (2,)
    np.testing.assert_allclose(y, powers / powers.sum(axes, keepdims=True), rtol=1e-4)


def test_dimensions_are_fixed_by_name_or_by_an_input(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_onnx(path, opset=17, shape=["batch", "time", 64])
    with pytest.raises(UsageError, match=r"'x' is batchxtimex64.*--dim batch=N --dim time=N"):
        load_program(path, tmp_path)
    with pytest.raises(UsageError, match=r"'x' is 2xtimex64.*Add --dim time=N,"):
        load_program(path, tmp_path, dims={"batch": 2})
    with pytest.raises(UsageError, match="time=0: a size must be at least 1"):
        load_program(path, tmp_path, dims={"batch": 2, "time": 0})
    by_name = load_program(path, tmp_path, dims={"batch": 2, "time": 3})
    by_input = load_program(path, tmp_path, inputs=["2x3x64"])
    other = load_program(path, tmp_path, dims={"batch": 2, "time": 4})
    assert by_name.digest == by_input.digest != other.digest
    with pytest.raises(UsageError, match="can't be both 5 and 2"):
        load_program(path, tmp_path, dims={"batch": 5}, inputs=["2x3x64"])
    with pytest.raises(UsageError, match=r"no symbolic dimension 'bitch_size'; it has: 'batch', 'time'"):
        load_program(path, tmp_path, dims={"bitch_size": 2})
    with pytest.raises(UsageError, match="is batchxtimex64, but --input gives 2x3x65"):
        load_program(path, tmp_path, inputs=["2x3x65xf32"])
    with pytest.raises(UsageError, match=r"takes 1 input \('x' batchxtimex64\), but 2 --input were given"):
        load_program(path, tmp_path, inputs=["2x3x64", "4"])


def test_two_nameless_dimensions_are_not_one(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    write_onnx(path, opset=17, shape=["?", "?", 64])
    with pytest.raises(UsageError, match="Add --input NxNx64"):
        load_program(path, tmp_path)
    assert load_program(path, tmp_path, inputs=["2x3x64"]).mlir.stat().st_size > 0


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.onnx"
    write_onnx(whole, opset=17, shape=[1, 2, 64])
    bytecode = tmp_path / "whole.mlirbc"
    (tmp_path / "two.mlir").write_text(TWO)
    run_tool(["iree-opt", tmp_path / "two.mlir", "--emit-bytecode", "-o", bytecode], what="making bytecode")
    contents = {
        "noise.onnx": bytes(range(256)) * 8,
        "noise.mlir": b"\x00\x01\x02" * 99,
        "cut.onnx": whole.read_bytes()[:-100],
        "nearly_nothing.onnx": whole.read_bytes()[:2],
        "cut.mlirbc": bytecode.read_bytes()[:300],
        "letter.mlir": b"Dear compiler, please be faster.",
        "half.mlir": TWO[:200].encode(),
        "empty.onnx": b"",
        "blank.mlir": b" \n\n",
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(UsageError, match=name) as caught:
            load_program(path, tmp_path)
        assert len(str(caught.value)) < 900
    for path in (tmp_path, tmp_path / "missing.onnx"):
        with pytest.raises(UsageError, match=path.name):
            load_program(path, tmp_path)
    with pytest.raises(UsageError, match="--dim is for ONNX"):
        load_program(tmp_path / "two.mlir", tmp_path, dims={"batch": 1})


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx", opset=17, shape=[1, 2, 64], external=True)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(UsageError, match=r"weights\.bin"):
        load_program(tmp_path / "m.onnx", tmp_path)


def test_an_op_that_iree_cannot_compile_is_named(tmp_path: Path) -> None:
    node = helper.make_node("NoSuchOp", ["x"], ["y"], domain="my.domain")
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.domain", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(TuneError, match="NoSuchOp"):
        loaded = load_program(tmp_path / "m.onnx", tmp_path)
        compile_program(loaded.mlir, tmp_path / "m.vmfb", default_target_flags([]))
    assert not (tmp_path / "m.vmfb").exists()


@pytest.mark.parametrize("form", ["text", "bytecode"])
def test_functions_of_mlir_and_their_signatures(tmp_path: Path, form: str) -> None:
    source = tmp_path / "two.mlir"
    source.write_text(TWO)
    if form == "bytecode":
        text, source = source, tmp_path / "two.mlirbc"
        run_tool(["iree-opt", text, "--emit-bytecode", "-o", source], what="making bytecode")
    program = load_program(source, tmp_path)
    assert program.mlir == source and program.name == "two" and len(program.digest) == 64
    compile_program(program.mlir, tmp_path / "two.vmfb", default_target_flags([]))
    found = functions(program.mlir, tmp_path / "two.vmfb")
    assert [f.name for f in found] == ["double", ODD_NAME]
    assert found[0].inputs == (TensorSpec("f16", (4, 3)), TensorSpec("bf16", (None, 3)))
    assert found[1].inputs == (
        TensorSpec("i8", (4,)),
        TensorSpec("i1", (4,)),
        TensorSpec("i32", (), scalar=True),
        TensorSpec("f32", ()),
    )
    assert found[1].outputs == (
        TensorSpec("i8", (4,)),
        TensorSpec("i32", (), scalar=True),
        TensorSpec("f32", ()),
    )
    assert pick_function(found, ODD_NAME) is found[1]
    assert pick_function(found, "@double") is found[0]
    with pytest.raises(UsageError, match=r"--function: 'double', 'Model from"):
        pick_function(found, None)
    with pytest.raises(UsageError, match="no function 'triple'; it has 'double'"):
        pick_function(found, "triple")
    with pytest.raises(UsageError, match="no function that can be called"):
        pick_function([], None)
    with pytest.raises(TuneError, match="no module"):
        functions(program.mlir, source)


def test_signatures_of_torch_come_from_the_program(tmp_path: Path) -> None:
    source = tmp_path / "torch.mlir"
    source.write_text(
        "func.func @main(%a: !torch.vtensor<[2,?],f32>, %i: !torch.vtensor<[],si64>)\n"
        "    -> (!torch.vtensor<[2,?],f32>, !torch.vtensor<[],si64>) {\n"
        "  return %a, %i : !torch.vtensor<[2,?],f32>, !torch.vtensor<[],si64>\n}\n"
    )
    compile_program(source, tmp_path / "t.vmfb", default_target_flags([]))
    (main,) = functions(source, tmp_path / "t.vmfb")
    assert main == Function("main", main.outputs, (TensorSpec("f32", (2, None)), TensorSpec("i64", ())))


def test_declarations_with_attributes_and_odd_names() -> None:
    function = parse_declaration(
        "f(x) -> y",
        "sync func @f(x) -> y(%input0: tensor<4x?xi8> {e = tensor<4x?xui8>, a = (b -> c), s = 1 : i32}, "
        "%input1: !hal.buffer_view, %input4: tensor<5x6xf32, #e<a, b>>, "
        "%input2: tensor<2xcomplex<f32>>, %input3: index) "
        "-> (%output0: tensor<f8E5M2>)",
    )
    assert function.inputs == (
        TensorSpec("i8", (4, None)),
        TensorSpec("!hal.buffer_view", ()),
        TensorSpec("f32", (5, 6)),
        TensorSpec("complex<f32>", (2,)),
        TensorSpec("index", (), scalar=True),
    )
    assert function.outputs == (TensorSpec("f8E5M2", ()),)
    assert parse_declaration("f", "sync func @f() -> ()") == Function("f", (), ())


def test_dumped_dispatches_replace_those_of_an_earlier_compile(matmul: Path, tmp_path: Path) -> None:
    dump = tmp_path / "deep" / "dump"
    dump.mkdir(parents=True)
    (dump / "old_benchmark.mlir").write_text("stale")
    compile_program(matmul, tmp_path / "deep" / "m.vmfb", default_target_flags([]), dump_dir=dump)
    (benchmark,) = dump.iterdir()
    assert benchmark.name.endswith("_benchmark.mlir") and "root_op" in benchmark.read_text()
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["dump", "m.vmfb"]


def test_a_failed_compile_leaves_the_earlier_output_alone(matmul: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.vmfb"
    out.write_bytes(b"earlier")
    with pytest.raises(TuneError, match="no-such-flag") as caught:
        compile_program(matmul, out, [*default_target_flags([]), "--no-such-flag"])
    assert len(str(caught.value)) < 700
    with pytest.raises(TuneError, match=r"longer than 0\.001 s"):
        compile_program(matmul, out, default_target_flags([]), timeout_s=0.001)
    assert out.read_bytes() == b"earlier"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.vmfb", "matmul.mlir"]
    (tmp_path / "file").write_text("")
    with pytest.raises(TuneError, match="cannot write"):
        compile_program(matmul, tmp_path / "file" / "m.vmfb", default_target_flags([]))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_named(matmul: Path, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this sandbox allows no mounts")
    try:
        with pytest.raises(TuneError, match="no space left"):
            compile_program(matmul, small / "m.vmfb", default_target_flags([]))
        assert not list(small.iterdir())
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_disk_errors_become_one_message(tmp_path: Path) -> None:
    with pytest.raises(TuneError, match="cannot write x: no space left"), disk_errors(Path("x")):
        raise OSError(errno.ENOSPC, "full")
    with pytest.raises(TuneError, match="cannot write x: Permission denied"), disk_errors(Path("x")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_timeout_kills_all_that_a_tool_started(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    started = time.monotonic()
    with pytest.raises(TuneError, match=r"waiting: sh took longer than 0\.5 s"):
        run_tool(["/bin/sh", "-c", script], timeout_s=0.5, what="waiting")
    assert time.monotonic() - started < 10
    assert _ends((tmp_path / "pid").read_text())


def _ends(pid: str) -> bool:
    """Whether a process ends within 5 s."""
    stat = Path("/proc") / pid.strip() / "stat"
    end = time.monotonic() + 5
    while stat.exists() and stat.read_text().split()[2] != "Z":
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_tool_that_stops_working_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time it hangs without using the processor, as a deadlocked compiler does."""
    fake = tmp_path / "iree-opt"
    fake.write_text(f"#!/bin/sh\nif mkdir {tmp_path}/once 2>/dev/null; then exec sleep 60; fi\necho done\n")
    fake.chmod(0o755)
    monkeypatch.setattr(toolchain, "STALL_S", 0.5)
    assert run_tool([fake], what="trying").stdout == "done\n"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(TuneError, match=r"iree-opt stopped working 3 times.*--mlir-disable-threading"):
        run_tool([fake], what="trying")
    # What computes is left to its end, however long it is silent.
    fake.write_text("#!/bin/sh\ni=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done; echo counted\n")
    assert run_tool([fake], what="trying").stdout == "counted\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
def test_a_tool_dies_with_a_tuner_that_is_killed(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 60"
    call = f"from tuner.toolchain import run_tool; run_tool(['/bin/sh', '-c', {script!r}], what='waiting')"
    tuner = subprocess.Popen([sys.executable, "-c", call])
    end = time.monotonic() + 20
    while not (tmp_path / "pid").exists():
        assert tuner.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    pid = (tmp_path / "pid").read_text()
    assert (Path("/proc") / pid.strip()).exists()
    tuner.kill()
    tuner.wait()
    assert _ends(pid)


def test_failures_of_a_tool_are_short_and_say_why(tmp_path: Path) -> None:
    with pytest.raises(TuneError, match="trying: sh crashed \\(SIGSEGV\\)"):
        run_tool(["/bin/sh", "-c", "kill -SEGV $$"], what="trying")
    with pytest.raises(TuneError, match="cannot start"):
        run_tool([tmp_path / "nothing"], what="trying")
    wall = "x.mlir:3:1: error: no such op: dense<" + "1, " * 9999 + ">\n%0 = wall\nnote: see\n" * 500
    said = digest_errors("warning: fine\n" + wall)
    assert said.startswith("x.mlir:3:1: error: no such op: dense<...>") and len(said) <= 600
    assert digest_errors("something\nunexpected\nhappened") == "unexpected; happened"
    assert digest_errors("") == "no message"


def test_tools_are_found_or_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("iree-compile", "iree-opt", "iree-run-module", "iree-profile", "iree-import-onnx"):
        assert os.access(tool(name), os.X_OK)
    monkeypatch.setattr(toolchain, "_binary_directory", lambda package: None)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, package in (("iree-opt", "iree-base-compiler"), ("iree-profile", "iree-base-runtime")):
        with pytest.raises(TuneError, match=f"{name} was not found: pip install '{package}"):
            tool(name)
    (tmp_path / "iree-opt").write_text("#!/bin/sh\n")
    (tmp_path / "iree-opt").chmod(0o755)
    assert tool("iree-opt") == tmp_path / "iree-opt"


def test_versions_that_differ_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    assert iree_version()[0].isdigit()

    def installed(compiler: str, runtime: str | None) -> list[str]:
        monkeypatch.setattr(toolchain, "iree_version", lambda: compiler)
        monkeypatch.setattr(toolchain, "_installed", lambda package: runtime)
        return check_versions()

    assert installed("3.13.0", "3.13.0") == []
    assert [w for w in installed("3.130.0", "3.130.0") if "compiler 3.130.0 is not tested" in w]
    (warning,) = installed("3.13.0", "3.13.1")
    assert "differ" in warning
    (warning,) = installed("3.13.0", None)
    assert "pip install" in warning


LOCAL, BACKEND, HOST = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


@pytest.mark.parametrize(
    ("user", "added"),
    [
        ([], [LOCAL, BACKEND, HOST]),
        (["--iree-opt-level=O3"], [LOCAL, BACKEND, HOST]),
        ([LOCAL], [BACKEND, HOST]),
        ([BACKEND], [LOCAL, HOST]),
        (["--iree-hal-target-device", "local"], [BACKEND, HOST]),
        (["-iree-llvmcpu-target-cpu=znver3"], [LOCAL, BACKEND]),
        (["--iree-llvmcpu-target-cpu-features=+avx2"], [LOCAL, BACKEND]),
        (["--iree-hal-target-backends=llvm-cpu"], [HOST]),
        (["--iree-hal-target-backends=vmvx"], []),
        (["--iree-hal-local-target-device-backends=vmvx"], [LOCAL]),
        (["--iree-hal-target-device=hip", "--iree-rocm-target=gfx942"], []),
    ],
)
def test_target_flags_leave_what_the_user_chose(user: list[str], added: list[str]) -> None:
    assert default_target_flags(user) == added


def test_flags_file(tmp_path: Path) -> None:
    path = tmp_path / "flags.txt"
    path.write_text("# all of them\n--a=1 --b='two words'  # why\n\n-c 3\n")
    assert read_flags_file(path) == ["--a=1", "--b=two words", "-c", "3"]
    path.write_text("--a\n--b='open\n")
    with pytest.raises(UsageError, match=r"flags\.txt, line 2"):
        read_flags_file(path)
    path.write_text("model.mlir\n")
    with pytest.raises(UsageError, match=r"line 1: 'model\.mlir' is no flag"):
        read_flags_file(path)
    with pytest.raises(UsageError, match="cannot read the flags file"):
        read_flags_file(tmp_path / "missing")
