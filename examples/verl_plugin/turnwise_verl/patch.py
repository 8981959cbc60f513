"""Importing this makes verl call our rollout correction, in this process: in its trainers and its bypass-mode loss."""

from verl.trainer.ppo import rollout_corr_helper

from .correction import compute_rollout_correction_and_rejection_mask

rollout_corr_helper.compute_rollout_correction_and_rejection_mask = compute_rollout_correction_and_rejection_mask
