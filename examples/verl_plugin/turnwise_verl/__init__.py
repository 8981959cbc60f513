"""turnwise in verl: leave-one-out advantages by turn, and rollout correction that reads its metrics in one go.

Importing this registers the advantage estimators "turnwise_trloo" and "turnwise_rloo"; importing turnwise_verl.patch
also puts compute_rollout_correction_and_rejection_mask in the place of verl's function of that name. Tensors are verl's
padded [B, T] ones, on the cpu or on CUDA. Without verl, all works but what returns or touches what is verl's.
"""

from .advantages import row_leave_one_out, turn_leave_one_out
from .correction import compute_rollout_correction_and_rejection_mask, rollout_correction

__all__ = [
    "compute_rollout_correction_and_rejection_mask",
    "rollout_correction",
    "row_leave_one_out",
    "turn_leave_one_out",
]
