"""The recipe of each engine's adapter loads (transfers.py)."""

from __future__ import annotations

from simlora.latency.calibration import CopyParameters
from simlora.latency.calibration_engines import LaunchParameters
from simlora.latency.inputs import ArtifactSwitch, EngineSettings
from simlora.latency.transfers import Recipe, matrices
from simlora.scenario.lora_modules import module_shape
from simlora.scenario.model import ModelSpec

PAPER_COPIES, ARTIFACT_COPIES = 1, 2
"""S-LoRA's published code copies a layer's combined tensor once for the key buffer and again for the value buffer."""
STRIDED = 1.5
"""SGLang's B of a rank below the slots' has strided columns: half of the matrices take a second kernel."""
LORAX_KERNELS = 2
"""Per matrix, beside the copy: transposed, and padded into the stack of all layers."""


def load_recipes(
    engine: EngineSettings,
    model: ModelSpec,
    modules: tuple[str, ...],
    copies: CopyParameters,
    launches: LaunchParameters,
) -> dict[bool, Recipe]:
    """Recipes by whether an adapter's rank is below the slots'."""
    pinned, layers, op_s = engine.adapter_loading.pinned is not False, model.num_hidden_layers, launches.torch_s
    if engine.kind == "vllm":
        pairs = sum(module_shape(model, module)[2] for module in modules)
        equal = Recipe(pairs * copies.module_s, pinned=pinned)
        return {False: equal, True: equal._replace(issue_s=pairs * (copies.module_s + copies.mismatch_module_s))}
    if engine.kind == "slora":
        artifact = isinstance(engine, ArtifactSwitch) and engine.artifact
        times = ARTIFACT_COPIES if artifact else PAPER_COPIES
        return _both(Recipe(layers * times * 2 * op_s, crossings=times, pinned=pinned))
    if engine.kind == "lorax":
        each = layers * matrices(modules, fused=False)
        return _both(Recipe(each * (1 + LORAX_KERNELS) * op_s, pinned=pinned))
    if engine.kind == "sglang":
        each = layers * matrices(modules, fused=True)
        keeps = pinned or engine.adapter_loading.overlap is True
        equal = Recipe(each * op_s, pins=0 if keeps else each)
        return {False: equal, True: equal._replace(issue_s=STRIDED * equal.issue_s)}
    return _both(Recipe(matrices(modules, fused=False) * op_s, pinned=pinned))


def _both(recipe: Recipe) -> dict[bool, Recipe]:
    """Engines without slots of one rank."""
    return {False: recipe, True: recipe}
