"""onnxruntime as the peer on one thread, if ``onnxruntime`` and ``onnx`` are installed (extra ``[peers]``).

Owns: models of one node. Does not own: what is measured.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

NAME = "onnxruntime"
Call = Callable[[], np.ndarray[Any, Any]]


class Peers:
    """Makes calls of single operators; each is None without the packages."""

    def __init__(self) -> None:
        self.is_installed = all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnx"))

    def matmul_i8(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> Call | None:
        """Return int32 ``a @ b`` of int8."""
        return self._node("MatMulInteger", {"a": a}, {"b": b})

    def conv(self, x: np.ndarray[Any, Any], w: np.ndarray[Any, Any], groups: int) -> Call | None:
        """Return a 3x3 convolution padded by 1."""
        return self._node("Conv", {"x": x}, {"w": w}, pads=[1, 1, 1, 1], group=groups)

    def softmax(self, x: np.ndarray[Any, Any]) -> Call | None:
        """Return the softmax of rows."""
        return self._node("Softmax", {"x": x}, {}, axis=1)

    def layer_norm(self, x: np.ndarray[Any, Any], *scale: np.ndarray[Any, Any]) -> Call | None:
        """Return the layer normalisation of rows."""
        constants = dict(zip(("gamma", "beta"), scale, strict=True))
        return self._node("LayerNormalization", {"x": x}, constants, axis=1, epsilon=1e-5)

    def _node(
        self,
        op: str,
        inputs: dict[str, np.ndarray[Any, Any]],
        constants: dict[str, np.ndarray[Any, Any]],
        **attributes: Any,
    ) -> Call | None:
        if not self.is_installed:
            return None
        import onnx
        import onnxruntime as ort
        from onnx import helper, numpy_helper

        def info(name: str, array: np.ndarray[Any, Any]) -> onnx.ValueInfoProto:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            return helper.make_tensor_value_info(name, kind, array.shape)

        kind = onnx.TensorProto.INT32 if op == "MatMulInteger" else onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node(op, [*inputs, *constants], ["y"], **attributes)],
            op,
            [info(name, array) for name, array in inputs.items()],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda: session.run(None, inputs)[0]
