"""Small programs with every kind of op that must be tunable, for the tests."""

from __future__ import annotations

import re
import textwrap


def owner(dispatch_name: str) -> str:
    """Tell which function of a program a dispatch is from."""
    return re.split(r"(?:\$async)?_dispatch_\d", dispatch_name)[0]


def function(name: str, result: str, *arguments: str, body: str) -> str:
    listed = ", ".join(f"%a{i}: tensor<{t}>" for i, t in enumerate(arguments))
    dtype = result.split("x")[-1]
    zero = "0" if dtype.startswith("i") else "0.0"
    return textwrap.dedent(f"""
        func.func @{name}({listed}) -> tensor<{result}> {{
          %zero = arith.constant {zero} : {dtype}
          %empty = tensor.empty() : tensor<{result}>
          %init = linalg.fill ins(%zero : {dtype}) outs(%empty : tensor<{result}>) -> tensor<{result}>
          %r = {body} -> tensor<{result}>
          return %r : tensor<{result}>
        }}
    """)


def named(name: str, op: str, result: str, *arguments: str) -> str:
    values = ", ".join(f"%a{i}" for i in range(len(arguments)))
    types = ", ".join(f"tensor<{t}>" for t in arguments)
    body = f"linalg.{op} ins({values} : {types}) outs(%init : tensor<{result}>)"
    return function(name, result, *arguments, body=body)


def generic(name: str, maps: str, iterators: str, code: str, result: str, *arguments: str) -> str:
    """Write a linalg.generic; ``maps`` as "(m, n, k) -> m k; n k; m n", ``iterators`` as "ppr"."""
    loops, accesses = maps.split("->")
    spelled = ", ".join(
        f"affine_map<{loops.strip()} -> ({', '.join(access.split())})>" for access in accesses.split(";")
    )
    kinds = ", ".join({"p": '"parallel"', "r": '"reduction"'}[c] for c in iterators)
    values = ", ".join(f"%a{i}" for i in range(len(arguments)))
    types = ", ".join(f"tensor<{t}>" for t in arguments)
    dtypes = [t.split("x")[-1] for t in arguments]
    block = ", ".join([*(f"%x{i}: {t}" for i, t in enumerate(dtypes)), f"%acc: {result.split('x')[-1]}"])
    body = (
        f"linalg.generic {{indexing_maps = [{spelled}], iterator_types = [{kinds}]}} ins({values} : {types}) "
        f"outs(%init : tensor<{result}>) {{\n^bb0({block}):\n{code}\n}}"
    )
    return function(name, result, *arguments, body=body)


MULTIPLY_ADD = "%p = arith.mulf %x0, %x1 : f32\n%s = arith.addf %acc, %p : f32\nlinalg.yield %s : f32"

PLAIN = "".join(
    [
        named("matmul", "matmul", "96x112xf32", "96x80xf32", "80x112xf32"),
        named("matmul_f16", "matmul", "96x112xf16", "96x80xf16", "80x112xf16"),
        named("matmul_bf16", "matmul", "96x112xf32", "96x80xbf16", "80x112xbf16"),
        named("matmul_i8", "matmul", "96x112xi32", "96x80xi8", "80x112xi8"),
        named("batch_matmul", "batch_matmul", "4x48x64xf32", "4x48x80xf32", "4x80x64xf32"),
        named("matvec", "matvec", "512xf32", "512x256xf32", "256xf32"),
        generic("swapped", "(m, n, k) -> k n; m k; m n", "ppr", MULTIPLY_ADD, "96x112xf32", "80x112xf32", "96x80xf32"),
        named("conv1d", "conv_1d_ncw_fcw", "2x48x125xf32", "2x32x129xf32", "48x32x5xf32"),
        generic(
            "conv1d_generic",
            "(o, w, c, k) -> c w+k; o c k; o w",
            "pprr",
            MULTIPLY_ADD,
            "48x125xf32",
            "32x129xf32",
            "48x32x5xf32",
        ),
        named("conv_nchw", "conv_2d_nchw_fchw", "1x32x28x28xf32", "1x16x30x30xf32", "32x16x3x3xf32"),
        named("conv_nhwc", "conv_2d_nhwc_hwcf", "1x28x28x32xf32", "1x30x30x16xf32", "3x3x16x32xf32"),
        named("conv_nhwc_f16", "conv_2d_nhwc_hwcf", "1x28x28x32xf16", "1x30x30x16xf16", "3x3x16x32xf16"),
        named("conv_nhwc_i8", "conv_2d_nhwc_hwcf", "1x28x28x32xi32", "1x30x30x16xi8", "3x3x16x32xi8"),
        named("grouped", "conv_2d_ngchw_gfchw", "1x2x16x28x28xf32", "1x2x8x30x30xf32", "2x16x8x3x3xf32"),
        named("depthwise", "depthwise_conv_2d_nhwc_hwc", "1x28x28x64xf32", "1x30x30x64xf32", "3x3x64xf32"),
        named("depthwise_nchw", "depthwise_conv_2d_nchw_chw", "1x64x28x28xf32", "1x64x30x30xf32", "64x3x3xf32"),
        generic(
            "depthwise_generic",
            "(c, w, k) -> c w+k; c k; c w",
            "ppr",
            MULTIPLY_ADD,
            "64x124xf32",
            "64x128xf32",
            "64x5xf32",
        ),
        named("pooling", "pooling_nchw_max", "1x32x28x28xf32", "1x32x30x30xf32", "3x3xf32"),
        generic(
            "reduction",
            "(m, k) -> m k; m",
            "pr",
            "%s = arith.addf %acc, %x0 : f32\nlinalg.yield %s : f32",
            "256xf32",
            "256x512xf32",
        ),
        generic(
            "elementwise",
            "(m, n) -> m n; n; m n",
            "pp",
            "%s = arith.addf %x0, %x1 : f32\n%m = arith.maximumf %s, %x0 : f32\nlinalg.yield %m : f32",
            "256x512xf32",
            "256x512xf32",
            "512xf32",
        ),
        function(
            "unpacked",
            "96x112xf32",
            "12x14x8x8xf32",
            body="linalg.unpack %a0 inner_dims_pos = [0, 1] inner_tiles = [8, 8] into %init : tensor<12x14x8x8xf32>",
        ),
        generic("transposed", "(m, n) -> n m; m n", "pp", "linalg.yield %x0 : f32", "256x512xf32", "512x256xf32"),
    ]
)

KINDS = """
func.func @conv(%x: tensor<2x4x10x10xf32>, %w: tensor<8x4x3x3xf32>, %o: tensor<2x8x8x8xf32>) -> tensor<2x8x8x8xf32> {
  %r = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<2x4x10x10xf32>, tensor<8x4x3x3xf32>) outs(%o : tensor<2x8x8x8xf32>) -> tensor<2x8x8x8xf32>
  return %r : tensor<2x8x8x8xf32>
}
func.func @batchless(%x: tensor<4x10x10xf32>, %w: tensor<8x4x3x3xf32>, %o: tensor<8x8x8xf32>) -> tensor<8x8x8xf32> {
  %r = linalg.generic {indexing_maps = [affine_map<(f, h, w, c, p, q) -> (c, h + p, w + q)>, affine_map<(f, h, w, c, p, q) -> (f, c, p, q)>, affine_map<(f, h, w, c, p, q) -> (f, h, w)>], iterator_types = ["parallel", "parallel", "parallel", "reduction", "reduction", "reduction"]} ins(%x, %w : tensor<4x10x10xf32>, tensor<8x4x3x3xf32>) outs(%o : tensor<8x8x8xf32>) {
  ^bb0(%a: f32, %b: f32, %acc: f32):
    %m = arith.mulf %a, %b : f32
    %s = arith.addf %acc, %m : f32
    linalg.yield %s : f32
  } -> tensor<8x8x8xf32>
  return %r : tensor<8x8x8xf32>
}
func.func @depthwise(%x: tensor<1x10x10x16xf32>, %w: tensor<3x3x16xf32>, %o: tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32> {
  %r = linalg.depthwise_conv_2d_nhwc_hwc ins(%x, %w : tensor<1x10x10x16xf32>, tensor<3x3x16xf32>) outs(%o : tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32>
  return %r : tensor<1x8x8x16xf32>
}
func.func @softmax(%x: tensor<32x64xf32>) -> tensor<32x64xf32> {
  %empty = tensor.empty() : tensor<32x64xf32>
  %r = linalg.softmax dimension(1) ins(%x : tensor<32x64xf32>) outs(%empty : tensor<32x64xf32>) -> tensor<32x64xf32>
  return %r : tensor<32x64xf32>
}
func.func @transpose(%x: tensor<16x24x32xf32>) -> tensor<32x24x16xf32> {
  %empty = tensor.empty() : tensor<32x24x16xf32>
  %r = linalg.transpose ins(%x : tensor<16x24x32xf32>) outs(%empty : tensor<32x24x16xf32>) permutation = [2, 1, 0]
  return %r : tensor<32x24x16xf32>
}
func.func @half(%a: tensor<4x32x64xf16>, %b: tensor<4x64x48xf16>, %o: tensor<4x32x48xf16>) -> tensor<4x32x48xf16> {
  %r = linalg.batch_matmul ins(%a, %b : tensor<4x32x64xf16>, tensor<4x64x48xf16>) outs(%o : tensor<4x32x48xf16>) -> tensor<4x32x48xf16>
  return %r : tensor<4x32x48xf16>
}
func.func @bytes(%a: tensor<32x64xi8>, %b: tensor<64x48xi8>) -> tensor<32x48xi32> {
  %zero = arith.constant 0 : i32
  %empty = tensor.empty() : tensor<32x48xi32>
  %fill = linalg.fill ins(%zero : i32) outs(%empty : tensor<32x48xi32>) -> tensor<32x48xi32>
  %r = linalg.matmul ins(%a, %b : tensor<32x64xi8>, tensor<64x48xi8>) outs(%fill : tensor<32x48xi32>) -> tensor<32x48xi32>
  return %r : tensor<32x48xi32>
}
func.func @attention(%q: tensor<2x32x16xf32>, %k: tensor<2x64x16xf32>, %v: tensor<2x64x16xf32>) -> tensor<2x32x16xf32> {
  %scale = arith.constant 0.25 : f32
  %empty = tensor.empty() : tensor<2x32x16xf32>
  %r = iree_linalg_ext.attention <{indexing_maps = [affine_map<(b, m, n, k1, k2) -> (b, m, k1)>, affine_map<(b, m, n, k1, k2) -> (b, k2, k1)>, affine_map<(b, m, n, k1, k2) -> (b, k2, n)>, affine_map<(b, m, n, k1, k2) -> ()>, affine_map<(b, m, n, k1, k2) -> (b, m, n)>]}> ins(%q, %k, %v, %scale : tensor<2x32x16xf32>, tensor<2x64x16xf32>, tensor<2x64x16xf32>, f32) outs(%empty : tensor<2x32x16xf32>) {
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  } -> tensor<2x32x16xf32>
  return %r : tensor<2x32x16xf32>
}
func.func @index_and_constant(%x: tensor<64x32xf32>) -> tensor<64x32xf32> {
  %seven = arith.constant 7.0 : f32
  %empty = tensor.empty() : tensor<64x32xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]} ins(%x : tensor<64x32xf32>) outs(%empty : tensor<64x32xf32>) {
  ^bb0(%a: f32, %o: f32):
    %n = linalg.index 1 : index
    %c = arith.index_cast %n : index to i32
    %f = arith.sitofp %c : i32 to f32
    %m = arith.mulf %f, %seven : f32
    %s = arith.addf %m, %a : f32
    linalg.yield %s : f32
  } -> tensor<64x32xf32>
  return %r : tensor<64x32xf32>
}
"""  # noqa: E501
