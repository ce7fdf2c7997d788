"""Loading calibration files and choosing the nearest one for an engine and a GPU."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simlora.errors import ConfigError
from simlora.latency.calibration import FAMILY_TERMS, OPTIONAL_TERMS, Calibration, StartParameters
from simlora.latency.inputs import EngineSettings
from simlora.latency.scaling import scale_to_engine, scale_to_gpu
from simlora.scenario.gpu import GpuSpec

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE.parent / "scenarios" / "calibrations", _PACKAGE / "shipped" / "calibrations")
CALIBRATION_FOLDER = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
"""In a checkout the repository's own folder, in an installed wheel the copy that it brought."""


def load_calibration(name_or_path: str) -> Calibration:
    """A shipped calibration by name, or any file by path, as it was measured. Raises ConfigError."""
    path = Path(name_or_path)
    if path.suffix != ".json":
        path = CALIBRATION_FOLDER / f"{name_or_path}.json"
    if not path.is_file():
        raise ConfigError("<arguments>", "calibration", name_or_path, f"a file, or one of: {', '.join(shipped())}")
    try:
        data: Any = json.loads(path.read_text())
        return Calibration.model_validate(data)
    except json.JSONDecodeError as error:
        raise ConfigError(str(path), "calibration", name_or_path, f"valid JSON ({error})") from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(str(path), key, first.get("input"), first["msg"]) from error


def shipped() -> list[str]:
    """Names of the calibrations that come with simlora."""
    return sorted(item.stem for item in CALIBRATION_FOLDER.glob("*.json"))


def choose_calibration(
    gpu: GpuSpec,
    engine: EngineSettings,
    name_or_path: str | None = None,
    families: bool = False,
    start: StartParameters | None = None,
) -> Calibration:
    """The calibration named, or the nearest shipped one, carried over to this GPU and engine.

    Nearest by engine kind, then minor version, then GPU architecture, then GPU; for an engine that none was measured
    with, before the version, one that holds kernels of several families. `notes` of the result says what was chosen and
    by which factors it was scaled, `extrapolated` which terms that concerns.

    Args:
        families: steps or loads are priced by terms that a calibration may leave out (EngineProfile.families); the
            nearest calibration that has them lends them.
        start: engine start where the calibration is of another engine or version (EngineProfile.start).

    Raises:
        ConfigError: no such name or file, or no shipped calibration has the terms.
    """
    if name_or_path is None:
        calibration = _nearest(gpu, engine, families)
        note = f"calibration {calibration.id} chosen for {engine.kind} {engine.version} on {gpu.name}"
    else:
        calibration = load_calibration(name_or_path)
        note = f"calibration {calibration.id} as asked for"
    noted = calibration.model_copy(update={"notes": (*calibration.notes, note)})
    scaled = scale_to_gpu(scale_to_engine(noted, engine, start), gpu)
    return _with_families(scaled, gpu) if families else scaled


def _with_families(calibration: Calibration, gpu: GpuSpec) -> Calibration:
    """Optional terms that the calibration leaves out, from the nearest one that has them, scaled to this GPU."""
    missing = [name for name in FAMILY_TERMS if getattr(calibration.terms, name) is None]
    if not missing:
        return calibration
    others = [load_calibration(name) for name in shipped()]
    others = [item for item in others if all(getattr(item.terms, name) is not None for name in missing)]
    if not others:
        allowed = f"a calibration with the terms {', '.join(missing)}"
        raise ConfigError("<arguments>", "calibration", calibration.id, allowed)
    other = min(others, key=lambda x: (x.gpu.architecture != gpu.architecture, x.gpu.name != gpu.name, x.id))
    terms = {name: getattr(scale_to_gpu(other, gpu).terms, name) for name in missing}
    return calibration.model_copy(
        update={
            "terms": calibration.terms.model_copy(update=terms),
            "extrapolated": tuple(dict.fromkeys((*calibration.extrapolated, "lora_kernels"))),
            "notes": (*calibration.notes, f"{', '.join(missing)} from {other.id}"),
        }
    )


def _nearest(gpu: GpuSpec, engine: EngineSettings, families: bool) -> Calibration:
    candidates = [load_calibration(name) for name in shipped()]
    if not candidates:
        raise ConfigError("<arguments>", "calibration", None, f"no calibration is shipped in {CALIBRATION_FOLDER}")

    measured = any(candidate.engine.kind == engine.kind for candidate in candidates)

    def distance(candidate: Calibration) -> tuple[bool, bool, bool, bool, bool, str]:
        return (
            candidate.engine.kind != engine.kind,
            families and not measured and candidate.terms.lora_families is None,
            candidate.engine.version != minor_version(engine.version),
            candidate.gpu.architecture != gpu.architecture,
            candidate.gpu.name != gpu.name,
            candidate.id,
        )

    return min(candidates, key=distance)


def minor_version(version: str) -> str:
    """The part that a calibration is tied to: 0.8.5 -> 0.8, 0.20 -> 0.20."""
    return ".".join(version.split(".")[:2])


def calibration_sha256(calibration: Calibration) -> str:
    """A digest of everything that can change a result (canonical JSON)."""
    data = calibration.model_dump(mode="json", by_alias=True)
    for name in OPTIONAL_TERMS:
        if data["terms"][name] is None:  # a file without the term has the digest that it always had
            del data["terms"][name]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
