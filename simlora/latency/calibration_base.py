"""What every part of a calibration file shares."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Range = tuple[float, float]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Term(Part):
    """Common to all terms: where the numbers come from and how far they carry."""

    basis: Literal["measured", "assumed", "scaled", "roofline"]
    measured: dict[str, Range] = Field(default_factory=dict, description="Variable -> lowest and highest value fitted")
    fit_error: float | None = Field(default=None, ge=0, description="RMS relative error on the samples fitted")
    held_out_error: float | None = Field(default=None, ge=0, description="RMS relative error on samples left out")
    note: str = ""
