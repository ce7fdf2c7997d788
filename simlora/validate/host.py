"""The host CPU of a recorded run, where the calibration knows it: host times differ between machines of one kind.

A calibration lists the machines that its runs were recorded on, with a factor on all host times for each. A run on such
a machine is simulated with its factor; a run on any other with the calibration's own host times.
"""

from __future__ import annotations

from dataclasses import replace

from simlora.engines.inputs import Inputs
from simlora.latency.calibration import Calibration
from simlora.latency.scaling import scale_host
from simlora.runs.run_file import RunFile


def host_factor(run: RunFile, calibration: Calibration) -> float:
    """Factor on host times for the run's machine; 1 where the calibration does not know it."""
    host, provenance = run.host, calibration.provenance
    if host is None or host.machine is None or host.cpu is None:
        return 1.0
    cpu = host.cpu.partition("(")[0].strip()  # without remarks
    if not cpu or cpu not in provenance.host_cpu:
        return 1.0
    return provenance.host_factors.get(host.machine, 1.0)


def on_its_host(inputs: Inputs, run: RunFile, step_scale: float) -> Inputs:
    """The inputs with the latency of the run's machine."""
    latency = inputs.latency
    factor = host_factor(run, latency.calibration)
    if factor == 1.0:
        return inputs
    modules = latency.slot_modules, latency.adapter_modules
    calibration = scale_host(latency.calibration, factor)
    latency = type(latency)(
        latency.model, latency.gpu, latency.engine, calibration, step_scale, *modules, latency.disk_bytes_per_s
    )
    return replace(inputs, latency=latency)
