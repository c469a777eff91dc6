"""GPT-2 (Radford et al., 2019), whose larger form is GPT-3 (Brown et al., 2020)."""

import math

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.project(self.attend(self.norm1(x))))
        hidden = functional.gelu(self.expand(self.norm2(x)), approximate="tanh")
        return x + self.dropout(self.contract(hidden))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class GPT2(nn.Module):
    """Tokens (batch, length) to logits (batch, length, vocabulary). The head's weight is the embedding's."""

    def __init__(
        self, vocabulary_size: int, length: int, width: int, layers: int, heads: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary_size, bias=False)
        self.apply(self.initialise)
        for block in self.blocks:
            nn.init.normal_(block.contract.weight, std=0.02 / math.sqrt(2 * layers))
        self.head.weight = self.tokens.weight

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class NextTokenLoss(nn.Module):
    """The mean cross-entropy of logits (batch, length, vocabulary) against tokens (batch, length)."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())
