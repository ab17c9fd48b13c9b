"""TVM's MetaSchedule through its RPC runner, as the peer of tuning; a program of its own, since its workers import it.

Owns: tuning a product of float32 squares with it, and timing its best kernel and others in turns. Usage:
``python tvm_tune.py ARTIFACT N TRIALS``; prints one JSON object. Notes: as installed, its build workers import every
intrinsic of every GPU, longer than their own time limit on a small machine; that import is left out. Its cost model
is the random one, which needs no further package.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def lean() -> None:
    """Leave out intrinsics that a CPU never needs; in each worker."""
    sys.modules.setdefault("tvm.s_tir.tensor_intrin", types.ModuleType("tvm.s_tir.tensor_intrin"))


def tune(n: int, trials: int, port: int) -> tuple[float, int, object]:
    """Tune; return seconds, how many candidates were measured, and the compiled best kernel."""
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    lean()
    a, b = (te.placeholder((n, n), name=name, dtype="float32") for name in "AB")
    k = te.reduce_axis((0, n), "k")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    function = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    cpu = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUName")()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": 1})
    evaluator = ms.runner.EvaluatorConfig(number=3, repeat=1, min_repeat_ms=0)
    runner = ms.runner.RPCRunner(
        ms.runner.RPCConfig("127.0.0.1", port, "cpu", session_timeout_sec=60),
        evaluator_config=evaluator,
        max_workers=1,
    )
    builder = ms.builder.LocalBuilder(max_workers=2, timeout_sec=120, initializer=lean)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        database = ms.tune_tir(
            mod=module,
            target=target,
            work_dir=folder,
            max_trials_global=trials,
            num_trials_per_iter=min(32, trials),
            builder=builder,
            runner=runner,
            cost_model="random",
            seed=1,
        )
        seconds = time.perf_counter() - began
        measured = [r for r in database.get_all_tuning_records() if r.run_secs]
        schedule = ms.tir_integration.compile_tir(database, module, target)
        return seconds, len(measured), tvm.compile(schedule.mod, target=target)


def main() -> None:
    """Tune, time, print."""
    from support import tvm_peer
    from support.best import interleaved

    artifact, n, trials = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with tvm_peer.tracker() as connection:
        if connection is None:
            sys.exit("tvm is not installed")
        seconds, measured, library = tune(n, trials, tvm_peer.port_of(connection))
    import tvm

    tvm.get_global_func("runtime.config_threadpool")(1, 1)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, n), np.float32) for _ in "ab"]
    device = tvm.cpu(0)
    on_device = [tvm.runtime.tensor(x, device) for x in (*arrays, np.zeros((n, n), np.float32))]
    kernel = library["main"]
    kernel(*on_device)
    assert np.allclose(on_device[2].numpy(), arrays[0] @ arrays[1], rtol=1e-3, atol=1e-3)
    best = interleaved(artifact, arrays, {"tvm": lambda: kernel(*on_device)})
    print(json.dumps({"seconds": seconds, "measured": measured, "best_ns": best}))


if __name__ == "__main__":
    main()
