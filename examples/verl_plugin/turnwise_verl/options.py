"""verl's threshold strings."""

from __future__ import annotations

import re
from typing import Any, Optional

RULE = re.compile(r"(token|seq_sum|seq_mean)_k[123]|seq_max_k[23]")


def parse_bounds(text: str, option: str) -> list[float]:
    """One bound, or two as "low_high", all above 0."""
    try:
        found = [float(part) for part in text.split("_", 1)]
    except ValueError:
        found = []
    if not found or not all(x > 0 for x in found) or found[0] > found[-1]:
        raise ValueError(f"{option} = '{text}', expected a number above 0, or two as 'low_high'")
    return found


def parse_rules(rollout_rs: Optional[str], threshold: Any) -> dict[str, tuple[float, float]]:
    """Bounds of each rule: of ratios for k1, of nats for k2 and k3."""
    if rollout_rs is None:
        return {}
    rules = list(dict.fromkeys(part.strip() for part in rollout_rs.split(",") if part.strip()))
    for rule in rules:
        if not RULE.fullmatch(rule):
            raise ValueError(f"rollout_rs has '{rule}', expected (token|seq_sum|seq_mean)_k[123] or seq_max_k[23]")
    texts = [] if threshold is None else [part.strip() for part in str(threshold).split(",") if part.strip()]
    if not rules or len(texts) not in (1, len(rules)):
        raise ValueError(f"rollout_rs_threshold = {threshold}, expected one entry, or one for each of {rules}")
    bounds = {}
    for rule, text in zip(rules, texts * (len(rules) if len(texts) == 1 else 1)):
        found = parse_bounds(text, "rollout_rs_threshold")
        if rule.endswith("k1"):
            bounds[rule] = (found[0], found[1]) if len(found) == 2 else (1 / found[0], found[0])
        elif len(found) == 2:
            raise ValueError(f"rollout_rs_threshold = '{text}' for {rule}, expected one number")
        else:
            bounds[rule] = (0.0, found[0])
        if rule.endswith("k1") and not 0 < bounds[rule][0] <= bounds[rule][1]:
            raise ValueError(f"rollout_rs_threshold = '{text}' for {rule}, expected a number from 1 on, or 'low_high'")
    return bounds
