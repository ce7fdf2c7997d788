"""The protocol of a family, and the part that all but the padded kernels share: a cost per group of linears."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from simlora.latency.calibration_engines import FamilyParameters
from simlora.latency.families.groups import Group
from simlora.latency.families.work import Cost, LoraWork, seconds

ELEMENT_BYTES = 2


class LoraFamily(Protocol):
    """Kernels of one family on one model's linears."""

    @property
    def triton(self) -> bool:
        """Launched by Triton's launcher rather than through PyTorch."""

    def step_s(self, work: LoraWork) -> float:
        """GPU seconds of a step's LoRA kernels, launched without gaps."""

    def unused_s(self) -> float:
        """GPU seconds where they are launched without any adapter in the step."""

    def launches(self, work: LoraWork) -> float:
        """Kernels launched in a step."""

    def views(self, work: LoraWork) -> float:
        """Views of tensors that Python takes in a step beside launching."""


@dataclass(frozen=True)
class CostedFamily(ABC):
    """A family whose time is a sum over physical sizes."""

    parameters: FamilyParameters
    fill_s: float
    """One trivial kernel."""
    groups: tuple[Group, ...]
    triton: bool = False

    @abstractmethod
    def cost(self, group: Group, work: LoraWork) -> Cost:
        """Sizes for one group, with the work as that group sees it."""

    def step_s(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        return sum(seconds(self.cost(group, group.work(work)), self.parameters, self.fill_s) for group in self.groups)

    def unused_s(self) -> float:
        """Every kernel starts and ends; no block of it works."""
        return sum(2 * group.linears * self.parameters.launch_s for group in self.groups)

    def launches(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        costs = [self.cost(group, group.work(work)) for group in self.groups]
        return sum(cost.products + cost.fills for cost in costs)

    def views(self, work: LoraWork) -> float:
        if work.adapters <= 0:
            return 0.0
        return sum(self.cost(group, group.work(work)).views for group in self.groups)
