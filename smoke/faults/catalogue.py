"""All faults."""

from __future__ import annotations

from smoke.faults.fault import Fault
from smoke.faults.in_layers import IN_LAYERS
from smoke.faults.in_training import IN_TRAINING

FAULTS: tuple[Fault, ...] = (*IN_LAYERS, *IN_TRAINING)
