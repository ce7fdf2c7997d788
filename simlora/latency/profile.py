"""How one engine executes a step, as the latency model reads it: kernels, graphs, launches, loads, who waits for whom.

Every engine's folder makes its own profile (EngineSpec.profile); nothing in latency/ knows an engine by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from simlora.latency.calibration import CopyParameters, LaunchParameters, StartParameters
from simlora.latency.collectives import Exchange
from simlora.latency.cuda_graphs import Captured
from simlora.latency.families.work import LoraWork
from simlora.latency.loads import Recipe
from simlora.latency.overlap import Overlap
from simlora.latency.step import StepPlan
from simlora.scenario.model import ModelSpec

Recipes = Callable[[ModelSpec, tuple[str, ...], CopyParameters, LaunchParameters], dict[bool, Recipe]]
"""(model, modules of the adapters, copies, launches) -> how an adapter is loaded, by whether its rank is below the
slots'."""


@dataclass(frozen=True)
class EngineProfile:
    """One engine's way of executing a step, under its settings."""

    kind: str
    """For messages."""
    overlap: Overlap
    prefill_kernels: str | None
    """Family of a step with prompts; None: no LoRA kernels."""
    decode_kernels: str | None
    recipes: Recipes
    choose: Callable[[int, LoraWork], str | None] | None = None
    """(prompts of the step, its work) -> family, where that depends on the step; None: the two above."""
    one_rank: bool = False
    """The kernels are called once for each distinct rank."""
    slotted: bool = False
    """Adapters lie in slots of one rank, stacked; else each in tensors of its own."""
    sharded: bool = False
    """Tensor parallelism splits A and B both."""
    exchange: Exchange | None = None
    """What a layer exchanges for LoRA beyond the base model's two all-reduces; None: nothing."""
    modules: tuple[str, ...] | None = None
    """Modules that every adapter has on the GPU; None: those of the scenario."""
    crossings: int = 1
    """Times that an adapter's bytes cross the host link in a load."""
    unused_runs: bool = False
    """Steps without adapters launch the LoRA kernels all the same, unless launched kernel by kernel."""

    torch_launches: int = 0
    """Kernels of a layer without graphs and without LoRA, launched through PyTorch. Counted in the model's code."""
    triton_launches: int = 0
    graph: Callable[[StepPlan], Captured | None] | None = None
    """The graph that holds a whole step; None: no graphs."""

    regimes: bool = False
    """Steps are launched as full graphs, as graph pieces or kernel by kernel (latency/host.py), with the costs that the
    calibration's host term has for each; launches are not counted, and graph is not asked."""
    capture_sizes: tuple[int, ...] = ()
    """With regimes: captured token counts, ascending."""
    full_decode_graphs: bool = True
    """With regimes: a step of decodes replays one graph; else graph pieces, with attention between them."""
    families: bool = True
    """Steps or loads need terms that a calibration may leave out: families of LoRA kernels, launches, host memory."""
    needs_ranks: bool = True
    """Plans must tell the ranks of their adapters (StepPlan.mix); else all compute at the slots' rank."""
    measured_loads: bool = False
    """The calibration's copy term prices blocking loads as it is; else recipes do."""

    expand_columns: int = 64
    """Column tile of the padded expand kernel where a linear has several slices."""
    default_penalties: bool = False
    """Penalties that the model's generation_config.json names are priced."""
    start: StartParameters | None = None
    """Engine start where the calibration is of another engine or version; None: as calibrated."""

    def with_kernels(self, family: str) -> EngineProfile:
        """The profile with another family for prompts and decodes alike; itself for its own, or where it has none."""
        if self.decode_kernels is None or family == self.decode_kernels:
            return self
        return replace(self, prefill_kernels=family, decode_kernels=family, choose=None, one_rank=False)

    def kernels(self, prompts: int, work: LoraWork) -> str | None:
        """The family of a step with that many prompts; None: it has none."""
        if self.choose is not None:
            return self.choose(prompts, work)
        return self.prefill_kernels if prompts else self.decode_kernels


def any_rank(recipe: Recipe) -> dict[bool, Recipe]:
    """One recipe whatever the rank: engines without slots of one rank."""
    return {False: recipe, True: recipe}
