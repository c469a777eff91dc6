"""BERT (Devlin et al., 2019), trained to say what was masked. Sentence pairs are left out, as in RoBERTa."""

import torch
from torch import nn
from torch.nn import functional

IGNORED = -100


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width, eps=1e-12)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, is_text: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.dropout(self.project(self.attend(x, is_text))))
        hidden = functional.gelu(self.expand(x))
        return self.norm2(x + self.dropout(self.contract(hidden)))

    def attend(self, x: torch.Tensor, is_text: torch.Tensor) -> torch.Tensor:
        """`is_text` (batch, 1, 1, length) says which keys may be looked at."""
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=is_text)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class Bert(nn.Module):
    """Tokens and `is_text`, both (batch, length), to logits (batch, length, vocabulary)."""

    def __init__(
        self,
        vocabulary_size: int,
        length: int,
        width: int,
        layers: int,
        heads: int,
        hidden: int,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, hidden, dropout) for _ in range(layers))
        self.head_dense = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width, eps=1e-12)
        self.head = nn.Linear(width, vocabulary_size)
        self.apply(self.initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor, is_text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions(places)))
        mask = is_text[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.head_norm(functional.gelu(self.head_dense(x))))


class MaskedTokenLoss(nn.Module):
    """The mean cross-entropy over the masked places: those whose target is not `IGNORED`."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)
