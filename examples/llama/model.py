"""A decoder in the style of Llama (Touvron et al., 2023): RMSNorm, rotary positions, shared keys and values, SwiGLU."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal attention in which several query heads share a key and value head (Ainslie et al., 2023)."""

    def __init__(self, width: int, heads: int, key_value_heads: int) -> None:
        super().__init__()
        self.heads, self.key_value_heads, self.head_width = heads, key_value_heads, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_value_heads * self.head_width, bias=False)
        self.value = nn.Linear(width, key_value_heads * self.head_width, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query = rotate(self.split(self.query(x), self.heads), cosine, sine)
        key = rotate(self.split(self.key(x), self.key_value_heads), cosine, sine)
        value = self.split(self.value(x), self.key_value_heads)
        mixed = functional.scaled_dot_product_attention(query, self.share(key), self.share(value), is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))

    def split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        batch, length, _ = x.shape
        return x.view(batch, length, heads, self.head_width).transpose(1, 2)

    def share(self, x: torch.Tensor) -> torch.Tensor:
        """Repeat each head for the query heads that share it."""
        batch, heads, length, head_width = x.shape
        repeated = x[:, :, None].expand(batch, heads, self.heads // heads, length, head_width)
        return repeated.reshape(batch, self.heads, length, head_width)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn pairs of features by an angle that grows with the position (Su et al., 2021)."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.expand = nn.Linear(width, hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.contract(functional.silu(self.gate(x)) * self.expand(x))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, key_value_heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, key_value_heads)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.feed_forward = FeedForward(width, hidden)

    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x), cosine, sine)
        return x + self.feed_forward(self.norm2(x))


class Llama(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(
        self,
        vocabulary_size: int,
        length: int,
        width: int,
        layers: int,
        heads: int,
        key_value_heads: int,
        hidden: int,
        rotary_base: float = 10_000.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.blocks = nn.ModuleList(Block(width, heads, key_value_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        half = width // heads // 2
        frequencies = rotary_base ** (-torch.arange(half) / half)
        angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        self.apply(self.initialise)

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.head(self.norm(x))


class NextTokenLoss(nn.Module):
    """The mean cross-entropy of logits (batch, length, vocabulary) against tokens (batch, length)."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
