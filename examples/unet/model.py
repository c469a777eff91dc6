"""The U-Net (Ronneberger et al., 2015), padded to keep the size of the image, with batch normalisation."""

from itertools import pairwise

import torch
from torch import nn


def convolutions(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Images (batch, channels, size, size) to logits (batch, classes, size, size).

    The way down halves the image `depth` times and doubles the width each time; the way up is its mirror and
    sees what the way down had at the same size. The size is a multiple of 2 to the power of `depth`.
    """

    def __init__(self, channels: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        pairs = list(pairwise(widths))
        self.first = convolutions(channels, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(convolutions(narrow, wide) for narrow, wide in pairs)
        self.enlarge = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in pairs[::-1])
        self.up = nn.ModuleList(convolutions(wide, narrow) for narrow, wide in pairs[::-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        levels = [self.first(images)]
        for down in self.down:
            levels.append(down(self.pool(levels[-1])))
        x = levels.pop()
        for enlarge, up in zip(self.enlarge, self.up, strict=True):
            x = up(torch.cat((levels.pop(), enlarge(x)), dim=1))
        return self.head(x)
