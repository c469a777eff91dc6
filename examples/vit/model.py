"""The Vision Transformer (Dosovitskiy et al., 2021)."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.project(self.attend(self.norm1(x))))
        hidden = self.dropout(functional.gelu(self.expand(self.norm2(x))))
        return x + self.dropout(self.contract(hidden))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.query_key_value(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(batch, length, width)


class VisionTransformer(nn.Module):
    """Images (batch, channels, size, size) to logits (batch, classes)."""

    def __init__(
        self,
        image_size: int,
        channels: int,
        patch_size: int,
        width: int,
        layers: int,
        heads: int,
        hidden: int,
        classes: int,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, (image_size // patch_size) ** 2 + 1, width))
        nn.init.normal_(self.positions, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.class_token.expand(len(images), -1, -1), patches), dim=1)
        x = self.dropout(tokens + self.positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])
