"""Build the canary kernels that agents carry: ``python agents/generate_canaries.py``.

An agent has no compiler, so that its canaries are built here, once, for the plainest CPU of each family and for each
accelerator with each host. Run it again when an agent refuses them (a new version of the format or of an accelerator).
"""

from __future__ import annotations

from pathlib import Path

import farm
from farm import te
from farm.ir import Function

FOLDER = Path(__file__).parent / "farm_agents" / "canaries"
ROWS, DEPTH, COLUMNS = 8, 32, 8
CPUS = (
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64",
    "llvm -mtriple=aarch64-linux-gnu",
    "llvm -mtriple=armv7-linux-gnueabihf",
    "llvm -mtriple=riscv64-linux-gnu",
    "llvm -mtriple=wasm32-unknown-unknown",
)
HOSTS = CPUS[:2]
ACCELERATORS = {
    "ea -config=ea8": ("integers",),
    "ea -config=ea16": ("integers",),
    "ea -config=ea32": ("integers",),
    "opencl": ("integers", "floats"),
}


def functions() -> dict[str, Function]:
    """Return products of matrices: of int8 into int32, and of float32 whose values are small whole numbers."""
    made = {}
    for name, dtype, sum_dtype in (("integers", "int8", "int32"), ("floats", "float32", "float32")):
        a = te.placeholder((ROWS, DEPTH), dtype, name="a")
        b = te.placeholder((DEPTH, COLUMNS), dtype, name="b")
        k = te.reduce_axis(DEPTH, "k")
        c = te.compute(
            (ROWS, COLUMNS),
            lambda i, j, a=a, b=b, k=k, to=sum_dtype: te.sum(
                a[i, k].astype(to) * b[k, j].astype(to), k
            ),
            name="c",
        )
        made[name] = te.function(f"canary_{name}", [a, b, c])
    return made


def main() -> None:
    """Write every file."""
    made = functions()
    for old in FOLDER.glob("*.farm"):
        old.unlink()
    for cpu in CPUS:
        farm.build({cpu: list(made.values())}).save(FOLDER / f"cpu-{_arch(cpu)}.farm")
    for target, names in ACCELERATORS.items():
        for host in HOSTS:
            built = farm.build({target: [made[it] for it in names]}, target_host=host)
            built.save(FOLDER / f"{target.split('=')[-1]}-{_arch(host)}.farm")
    for path in sorted(FOLDER.glob("*.farm")):
        print(f"{path.name}: {path.stat().st_size} bytes")


def _arch(target: str) -> str:
    return target.split("=")[1].split("-")[0]


if __name__ == "__main__":
    main()
