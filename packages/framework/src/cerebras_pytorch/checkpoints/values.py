"""Python values as JSON and tensors, and back, exactly: what schedulers and generators keep as their state.

What JSON has is written as it is. The rest is an object of one key that begins with `$`, so that a person can read
the file: `{"$float": "inf"}`, `{"$tuple": [...]}`, `{"$pairs": [[key, value], ...]}`, `{"$tensor": "name"}`,
`{"$array": "name"}`.
"""

import math
from collections import Counter
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor


class NotStorableError(TypeError):
    """A value that no checkpoint can hold; the message says which and where."""


def to_json(value: Any, tensors: dict[str, Tensor] | None, place: str) -> JsonValue:
    """`value` as JSON. Tensors go to `tensors`, under their place; None: there are to be none.

    Raises `NotStorableError`.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Tensor) and tensors is not None:
        tensors[place] = value.detach().clone()
        return {"$tensor": place}
    if isinstance(value, np.ndarray) and tensors is not None and value.dtype.kind in "biufc":
        tensors[place] = torch.from_numpy(value.copy())
        return {"$array": place}
    if isinstance(value, (list, tuple)):
        listed = [to_json(item, tensors, f"{place}/{number}") for number, item in enumerate(value)]
        return listed if isinstance(value, list) else {"$tuple": listed}
    if isinstance(value, dict):
        return _from_mapping(value, tensors, place)
    if isinstance(value, np.generic):
        return to_json(value.item(), tensors, place)
    raise NotStorableError(f"{place} is a {type(value).__name__}, which a checkpoint cannot hold")


def _from_mapping(value: dict[Any, Any], tensors: dict[str, Tensor] | None, place: str) -> JsonValue:
    if type(value) is dict and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: to_json(item, tensors, f"{place}/{key}") for key, item in value.items()}
    pairs: JsonValue = [
        [to_json(key, tensors, f"{place}/key"), to_json(item, tensors, f"{place}/{key}")] for key, item in value.items()
    ]
    return {"$counter": pairs} if isinstance(value, Counter) else {"$pairs": pairs}


def from_json(value: JsonValue, tensors: dict[str, Tensor]) -> Any:
    """The value that `to_json` wrote. Raises `KeyError` for a tensor that is not among `tensors`."""
    if isinstance(value, list):
        return [from_json(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (kind, content), *_ = value.items()
        if kind == "$tensor":
            return tensors[str(content)].clone()
        if kind == "$array":
            return tensors[str(content)].numpy().copy()
        if kind == "$float":
            return float(str(content))
        if kind == "$tuple":
            return tuple(from_json(content, tensors))
        if kind in ("$pairs", "$counter"):
            mapping = {from_json(key, tensors): from_json(item, tensors) for key, item in _pairs(content)}
            return Counter(mapping) if kind == "$counter" else mapping
    return {key: from_json(item, tensors) for key, item in value.items()}


def _pairs(content: JsonValue) -> list[list[JsonValue]]:
    assert isinstance(content, list)
    return [pair for pair in content if isinstance(pair, list)]
