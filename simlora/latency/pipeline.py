"""One step over the stages of a pipeline: every stage runs its layers, the last one the head and the sampler, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from simlora.latency.parts import assemble, share_of
from simlora.latency.step import StepPlan, StepTiming

if TYPE_CHECKING:
    from simlora.latency.engine_latency import EngineLatency

TENSORS = 2
"""Hidden states and residual go from stage to stage, each by a send of its own. Source: vLLM's IntermediateTensors of
Llama and GroupCoordinator.send_tensor_dict, whose message of names and shapes over the CPU is left out."""


class PipelineTiming(NamedTuple):
    """What each stage does, and the way between two of them."""

    stages: tuple[StepTiming, ...]
    """The first one schedules; each of the others has the host time of launching its own part."""
    transfer_s: float
    """Sending the hidden states and residual of all tokens to the next stage."""


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage: the remainder goes to the stages before the last, from the back.

    Source: vLLM `distributed.utils.get_pp_indices`.
    """
    more = layers % stages
    return tuple(layers // stages + (stages - 1 - more <= index < stages - 1) for index in range(stages))


def split_stages(latency: EngineLatency, plan: StepPlan) -> PipelineTiming:
    """The step's parts shared out by layers; those on the GPU add up to the step's on one stage."""
    stages = latency.engine.pipeline_parallel_size
    if stages == 1:
        return PipelineTiming((latency.price(plan),), 0.0)
    counts = stage_layers(latency.model.num_hidden_layers, stages)
    parts, overlap = latency.parts(plan), latency.overlap
    head_s = min(latency.operators.head_s(plan.num_requests) * latency.step_scale, parts.gpu[0])
    fixed_s = latency.calibration.terms.host.parameters.launch_s * latency.step_scale
    split = tuple(
        share_of(
            parts,
            count / latency.model.num_hidden_layers,
            (head_s, head_s if index == stages - 1 else 0.0),
            fixed_s,
            index == 0,
        )
        for index, count in enumerate(counts)
    )
    return PipelineTiming(tuple(assemble(each, overlap) for each in split), transfer_s(latency, plan.num_tokens))


def transfer_s(latency: EngineLatency, tokens: int) -> float:
    """Seconds of sending the tensors of that many tokens from a GPU to its peer in the next stage."""
    model, collectives = latency.model, latency.collectives
    return TENSORS * collectives.send_s(tokens * model.hidden_size * model.dtype_bytes) * latency.step_scale
