"""The models whose training rates were published, for the calibration of the cost model.

Every model takes a depth, so that a capture of two blocks stands for the whole: the blocks are alike.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """Sizes of a transformer; `inner` is the width of its feed-forward part."""

    layers: int
    width: int
    heads: int
    inner: int
    sequence: int
    vocabulary: int
    dropout: float = 0.0


class Attention(nn.Module):
    """Multi-head self-attention, causal in decoders, with rotary positions where `rotary` dimensions turn."""

    def __init__(self, shape: Shape, *, causal: bool, bias: bool = True, rotary: int = 0) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout, self.rotary = shape.heads, causal, shape.dropout, rotary
        self.query = nn.Linear(shape.width, shape.width, bias=bias)
        self.key = nn.Linear(shape.width, shape.width, bias=bias)
        self.value = nn.Linear(shape.width, shape.width, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        if self.rotary:
            query, key = turned(query, self.rotary), turned(key, self.rotary)
        y = functional.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


def turned(x: Tensor, count: int) -> Tensor:
    """Rotary positions on the first `count` dimensions of each head."""
    angles = torch.outer(torch.arange(x.shape[-2]), 10000.0 ** (-torch.arange(0, count, 2) / count))
    turning, rest = x[..., :count], x[..., count:]
    first, second = turning.chunk(2, dim=-1)
    cosine, sine = angles.cos(), angles.sin()
    parts = (first * cosine - second * sine, second * cosine + first * sine, rest)
    return torch.cat(parts if rest.shape[-1] else parts[:2], dim=-1)


class Block(nn.Module):
    """A GPT-2 block; with `after`, BERT's, whose norms follow the additions."""

    def __init__(self, shape: Shape, *, causal: bool, after: bool) -> None:
        super().__init__()
        self.after = after
        self.attention = Attention(shape, causal=causal)
        self.first_norm, self.second_norm = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.expand, self.contract = nn.Linear(shape.width, shape.inner), nn.Linear(shape.inner, shape.width)
        self.dropout = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.first_norm(x + self.dropout(self.attention(x)))
            return self.second_norm(x + self._feed_forward(x))
        x = x + self.dropout(self.attention(self.first_norm(x)))
        return x + self._feed_forward(self.second_norm(x))

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.contract(functional.gelu(self.expand(x))))


class ParallelBlock(nn.Module):
    """A GPT-J block: attention and feed-forward side by side, a quarter of each head turned."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape, causal=True, bias=False, rotary=64)
        self.expand, self.contract = nn.Linear(shape.width, shape.inner), nn.Linear(shape.inner, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.attention(y) + self.contract(functional.gelu(self.expand(y)))


class GatedBlock(nn.Module):
    """A Llama block: RMSNorm, rotary positions, a gated feed-forward part."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.attention = Attention(shape, causal=True, bias=False, rotary=shape.width // shape.heads)
        self.gate = nn.Linear(shape.width, shape.inner, bias=False)
        self.expand = nn.Linear(shape.width, shape.inner, bias=False)
        self.contract = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        y = self.second_norm(x)
        return x + self.contract(functional.silu(self.gate(y)) * self.expand(y))


class Decoder(nn.Module):
    """A language model over tokens. `kind` is gpt2, gptj or llama."""

    def __init__(self, shape: Shape, kind: str) -> None:
        super().__init__()
        gpt2 = kind == "gpt2"
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width) if gpt2 else None
        self.dropout = nn.Dropout(shape.dropout) if shape.dropout else nn.Identity()
        makers = {"gpt2": lambda: Block(shape, causal=True, after=False), "gptj": lambda: ParallelBlock(shape)}
        make = makers.get(kind, lambda: GatedBlock(shape))
        self.blocks = nn.ModuleList([make() for _ in range(shape.layers)])
        self.norm: nn.Module = nn.RMSNorm(shape.width) if kind == "llama" else nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=kind == "gptj")
        if gpt2:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1]))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """BERT: with `predictions`, that many masked tokens a sample are predicted; without, two classes."""

    def __init__(self, shape: Shape, predictions: int = 0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.sequence, shape.width)
        self.segments = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList([Block(shape, causal=False, after=True) for _ in range(shape.layers)])
        self.pooler = nn.Linear(shape.width, shape.width)
        self.classes = nn.Linear(shape.width, 2)
        self.predictions = predictions
        if predictions:
            self.transform = nn.Linear(shape.width, shape.width)
            self.transform_norm = nn.LayerNorm(shape.width)
            self.decoder = nn.Linear(shape.width, shape.vocabulary)
            self.decoder.weight = self.tokens.weight

    def forward(self, tokens: Tensor, segments: Tensor) -> Any:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1])) + self.segments(segments)
        x = self.dropout(self.norm(x))
        for block in self.blocks:
            x = block(x)
        classes = self.classes(torch.tanh(self.pooler(x[:, 0])))
        if not self.predictions:
            return classes
        masked = self.transform_norm(functional.gelu(self.transform(x[:, : self.predictions])))
        return classes, self.decoder(masked)


class Perceptron(nn.Module):
    """fc_mnist: three hidden layers of 128."""

    def __init__(self) -> None:
        super().__init__()
        widths = (784, 128, 128, 128)
        self.hidden = nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(widths)])
        self.last = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = functional.relu(layer(x))
        return self.last(x)


class TokenLoss(nn.Module):
    """Mean cross-entropy over tokens (and over classes, where the model returns both)."""

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        pairs = [(outputs, targets)] if isinstance(outputs, Tensor) else zip(outputs, targets, strict=True)
        losses = [functional.cross_entropy(output.flatten(0, -2), target.flatten()) for output, target in pairs]
        return torch.stack(losses).sum()


BERT_BASE = Shape(12, 768, 12, 3072, 128, 30522, dropout=0.1)
BERT_LARGE = Shape(24, 1024, 16, 4096, 128, 30522, dropout=0.1)
LLAMA_7B = Shape(32, 4096, 32, 11008, 2048, 32000)
MASKED_TOKENS = 20  # of a sample of 128, in BERT's pretraining

# Name of a workload, as in the points: kind of model and its sizes.
MODELS: dict[str, tuple[str, Shape]] = {
    "cerebras-gpt-111m": ("gpt2", Shape(10, 768, 12, 3072, 2048, 50257)),
    "cerebras-gpt-256m": ("gpt2", Shape(14, 1088, 17, 4352, 2048, 50257)),
    "cerebras-gpt-590m": ("gpt2", Shape(18, 1536, 12, 6144, 2048, 50257)),
    "cerebras-gpt-1.3b": ("gpt2", Shape(24, 2048, 16, 8192, 2048, 50257)),
    "cerebras-gpt-2.7b": ("gpt2", Shape(32, 2560, 32, 10240, 2048, 50257)),
    "cerebras-gpt-6.7b": ("gpt2", Shape(32, 4096, 32, 16384, 2048, 50257)),
    "cerebras-gpt-13b": ("gpt2", Shape(40, 5120, 40, 20480, 2048, 50257)),
    "cerebras-gpt-20b": ("gpt2", Shape(44, 6144, 64, 24576, 2048, 50257)),
    "gpt2-small": ("gpt2", Shape(12, 768, 12, 3072, 2048, 50257, dropout=0.1)),
    "gpt-j-6b": ("gptj", Shape(28, 4096, 16, 16384, 2048, 50400)),
    "llama2-7b": ("llama", LLAMA_7B),
    "llama2-7b-1024": ("llama", replace(LLAMA_7B, sequence=1024)),
    "bert-base-classes": ("bert", BERT_BASE),
    "bert-large-classes": ("bert", BERT_LARGE),
    "bert-large-pretrain": ("bert-pretrain", BERT_LARGE),
    "fc-mnist": ("perceptron", Shape(3, 128, 1, 128, 1, 10)),
}


def build(kind: str, shape: Shape) -> nn.Module:
    """The model on the meta device: shapes without values."""
    with torch.device("meta"):
        match kind:
            case "perceptron":
                return Perceptron()
            case "bert":
                return Encoder(shape)
            case "bert-pretrain":
                return Encoder(shape, MASKED_TOKENS)
            case _:
                return Decoder(shape, kind)


def batch(kind: str, shape: Shape, samples: int) -> tuple[Any, Any]:
    """Inputs and target of the shapes that the model takes."""
    tokens = torch.zeros(samples, shape.sequence, dtype=torch.int64)
    classes = torch.zeros(samples, dtype=torch.int64)
    match kind:
        case "perceptron":
            return torch.zeros(samples, 784), classes
        case "bert":
            return (tokens, tokens), classes
        case "bert-pretrain":
            return (tokens, tokens), (classes, tokens[:, :MASKED_TOKENS])
        case _:
            return tokens, tokens
