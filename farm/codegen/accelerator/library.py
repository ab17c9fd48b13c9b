"""The library way: a layer becomes a call of one of the accelerator's external functions.

Owns: choosing the first that supports the layer, and the call's form in an artifact. Does not own: calling it
(`farm.runtime.plugin`).

Invariant: a call names a function that said yes to the layer, with one allowed value for each tunable.
"""

from __future__ import annotations

from farm.accel import External, Loaded, guard
from farm.codegen.accelerator.knobs import chosen_knobs, space_of
from farm.codegen.accelerator.layer import Layer, layer_of
from farm.core.digest import canonical_json
from farm.errors import UnsupportedFunction
from farm.ir import Function

MAX_WORKSPACE_BYTES = 1 << 32


def compile_call(loaded: Loaded, function: Function, config: object) -> tuple[str, bytes]:
    """Return the format and the bytes of a call; raises as `compile_accelerator`."""
    external, layer = _external(loaded, function, config)
    return f"{loaded.accelerator.name}-call", _call(loaded, external, layer, config)


def space_of_call(
    loaded: Loaded, function: Function, config: object
) -> dict[str, tuple[int | str, ...]]:
    """Return the values of each tunable of the external that does a function; raises as `compile_call`."""
    return _space(loaded, *_external(loaded, function, config), config)


def _external(loaded: Loaded, function: Function, config: object) -> tuple[External, Layer]:
    """Return the first external that supports a function, and the function as a layer."""
    name = loaded.accelerator.name
    layer = layer_of(function)
    reasons = []
    for external in loaded.accelerator.externals:
        hook = f"{external.name}.supports"
        why = guard.text(
            loaded.who, hook, guard.call(loaded.who, hook, external.supports, layer, config)
        )
        if not why:
            return external, layer
        reasons.append(f"{external.name}: {why}")
    raise UnsupportedFunction(
        f"function {function.name} on {name}: no external function does it ({'; '.join(reasons)}); place it on the CPU"
    )


def _space(
    loaded: Loaded, external: External, layer: Layer, config: object
) -> dict[str, tuple[int | str, ...]]:
    if external.tunables is None:
        return {}
    hook = f"{external.name}.tunables"
    given = guard.call(loaded.who, hook, external.tunables, layer, config)
    return space_of(loaded.who, hook, given)


def _call(loaded: Loaded, external: External, layer: Layer, config: object) -> bytes:
    space = _space(loaded, external, layer, config)
    knobs = chosen_knobs(loaded.accelerator.name, layer.function, space)
    size: object = 0
    if external.workspace is not None:
        hook = f"{external.name}.workspace"
        size = guard.call(loaded.who, hook, external.workspace, layer.sizes, config, knobs)
        if not isinstance(size, int) or not 0 <= size <= MAX_WORKSPACE_BYTES:
            raise guard.nonsense(loaded.who, hook, size, f"0 to {MAX_WORKSPACE_BYTES} bytes")
    value = {
        "external": external.name,
        "sizes": dict(layer.sizes),
        "knobs": knobs,
        "workspace_bytes": size,
    }
    return canonical_json(value)
