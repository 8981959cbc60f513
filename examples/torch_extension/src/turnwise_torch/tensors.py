"""How arguments reach the extension: tensors and options by name."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor


def given(
    function: str, *, required: tuple[str, ...] = (), differentiable: tuple[str, ...] = (), **named: Optional[Tensor]
) -> dict[str, Tensor]:
    """The tensors that are not None. Raises where one is required, or asks for a gradient that it would not get."""
    tensors = {}
    for name, tensor in named.items():
        if tensor is None:
            if name in required:
                raise ValueError(f"{function}: {name} is missing")
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{function}: {name} is a {type(tensor).__name__}, expected a torch.Tensor")
        if tensor.requires_grad and name not in differentiable and torch.is_grad_enabled():
            raise ValueError(f"{function}: {name} requires grad, but gets none here: pass {name}.detach()")
        if name == "reasons" and tensor.dtype in (torch.bool, torch.uint8):  # as int32 its 1 would mean rejected
            raise ValueError(
                f"{function}: reasons has elements of type {str(tensor.dtype)[6:]}: pass int32 reasons, in which 0 is "
                "kept, such as step.reasons, not a mask"
            )
        if tensor.layout != torch.strided:
            raise ValueError(f"{function}: {name} is {str(tensor.layout)[6:]}: pass {name}.to_dense()")
        if tensor.is_neg() or tensor.is_conj():  # bits that a view of the memory would not show
            raise ValueError(f"{function}: {name} is a lazy negation or conjugate: pass {name}.clone()")
        tensors[name] = tensor.detach()
    return tensors


def flat_options(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"ratio_band": {"low": 0.9}} as {"ratio_band.low": 0.9}; an empty dict is True, None is False."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, dict) and value:
            flat.update(flat_options(value, f"{prefix}{name}."))
        elif isinstance(value, dict) or value is None or isinstance(value, (bool, str)):
            flat[prefix + name] = value if isinstance(value, str) else isinstance(value, dict) or bool(value)
        elif isinstance(value, (int, float)):
            try:
                flat[prefix + name] = float(value)
            except OverflowError:
                raise ValueError(f"option {prefix}{name} is an integer beyond every float") from None
        else:
            raise TypeError(f"option {prefix}{name} is a {type(value).__name__}, expected a number, bool, str or dict")
    return flat
