// A matmul and a relu on tensors: 61 columns, so that no power of two divides them.
// Try: iree-tune run examples/matmul.mlir --trials 24
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%lhs: tensor<96x80xf32>, %rhs: tensor<80x61xf32>) -> tensor<96x61xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<96x61xf32>
  %init = linalg.fill ins(%zero : f32) outs(%empty : tensor<96x61xf32>) -> tensor<96x61xf32>
  %product = linalg.matmul ins(%lhs, %rhs : tensor<96x80xf32>, tensor<80x61xf32>)
                           outs(%init : tensor<96x61xf32>) -> tensor<96x61xf32>
  %result = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%product : tensor<96x61xf32>) outs(%empty : tensor<96x61xf32>) {
    ^bb0(%value: f32, %unused: f32):
      %relu = arith.maximumf %value, %zero : f32
      linalg.yield %relu : f32
    } -> tensor<96x61xf32>
  return %result : tensor<96x61xf32>
}
