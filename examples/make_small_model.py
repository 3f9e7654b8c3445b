"""Write ``small_model.onnx``: a small convolutional classifier of sequences, the same bytes on every machine.

Two 1-D convolutions, a 1x1 convolution, a global mean and a matmul head over a batch of eight sequences of
24 channels. The convolutions give 508 values a row: 508 is no multiple of 8 or 16, so a compiler that wants
tiles that divide it stays with short vectors, which is what leaves room for tuning.

Run it as ``python examples/make_small_model.py [PATH]``.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

BATCH, CHANNELS, LENGTH = 8, 24, 512
HIDDEN, KERNEL, CLASSES = 48, 5, 10
SEED = 2024


def make_model() -> onnx.ModelProto:
    """Build the model: ``x`` float32 [8, 24, 512] to ``y`` float32 [8, 10]."""
    # Python's own generator: its sequence is promised to stay the same, NumPy's distributions are not.
    rng = random.Random(SEED)

    def uniform(*shape: int, fan_in: int) -> NDArray[np.float32]:
        bound = math.sqrt(6.0 / fan_in)
        values = [(2.0 * rng.random() - 1.0) * bound for _ in range(math.prod(shape))]
        return np.array(values, np.float32).reshape(shape)

    weights = {
        "conv1.weight": uniform(HIDDEN, CHANNELS, KERNEL, fan_in=CHANNELS * KERNEL),
        "conv1.bias": uniform(HIDDEN, fan_in=6 * HIDDEN),
        "conv2.weight": uniform(HIDDEN, HIDDEN, KERNEL, fan_in=HIDDEN * KERNEL),
        "conv2.bias": uniform(HIDDEN, fan_in=6 * HIDDEN),
        "conv3.weight": uniform(HIDDEN, HIDDEN, 1, fan_in=HIDDEN),
        "conv3.bias": uniform(HIDDEN, fan_in=6 * HIDDEN),
        "head.weight": uniform(HIDDEN, CLASSES, fan_in=HIDDEN),
        "head.bias": uniform(CLASSES, fan_in=6 * HIDDEN),
    }

    def conv(layer: str, source: str, kernel: int, padding: int) -> onnx.NodeProto:
        return helper.make_node(
            "Conv",
            [source, f"{layer}.weight", f"{layer}.bias"],
            [layer],
            name=layer,
            kernel_shape=[kernel],
            pads=[padding, padding],
        )

    nodes = [
        conv("conv1", "x", KERNEL, 0),
        helper.make_node("Relu", ["conv1"], ["relu1"], name="relu1"),
        conv("conv2", "relu1", KERNEL, KERNEL // 2),
        helper.make_node("Relu", ["conv2"], ["relu2"], name="relu2"),
        conv("conv3", "relu2", 1, 0),
        helper.make_node("Relu", ["conv3"], ["relu3"], name="relu3"),
        helper.make_node("ReduceMean", ["relu3"], ["pooled"], name="pool", axes=[2], keepdims=0),
        helper.make_node("Gemm", ["pooled", "head.weight", "head.bias"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "small_model",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [BATCH, CHANNELS, LENGTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [BATCH, CLASSES])],
        # "<f4": the bytes in the file are little-endian wherever they are written.
        [numpy_helper.from_array(value.astype("<f4"), name) for name, value in weights.items()],
    )
    model = helper.make_model(
        graph, producer_name="iree-tune", opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.checker.check_model(model)
    return model


def model_bytes() -> bytes:
    """Serialise the model; the result is what ``small_model.onnx`` holds."""
    return make_model().SerializeToString(deterministic=True)


def main() -> None:
    """Write the model to the path given, or beside this file."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("small_model.onnx")
    path.write_bytes(model_bytes())
    print(f"wrote {path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
