"""Classes of work, by what they cost."""

from enum import StrEnum


class WorkClass(StrEnum):
    """What is done to an element, as far as its cost differs. SCORE is an entry of an attention matrix."""

    ELEMENTWISE = "elementwise"
    ACTIVATION = "activation"
    DROPOUT = "dropout"
    NORM = "norm"
    SOFTMAX = "softmax"
    SCORE = "score"
    POOLING = "pooling"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    LOSS = "loss"
