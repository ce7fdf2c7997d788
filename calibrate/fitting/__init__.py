"""From samples of kernels, launches, copies and collectives to the terms of a calibration."""
