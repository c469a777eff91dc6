"""Residual networks (He et al., 2016), with the stride in the 3x3 convolution of a bottleneck as torchvision has it."""

import torch
from torch import nn


def convolution(channels_in: int, channels_out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of the image at stride 1, and batch normalisation."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel, stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(channels_out),
    )


class Block(nn.Module):
    """Two 3x3 convolutions; as a bottleneck, one between two 1x1, of which the last widens fourfold."""

    def __init__(self, channels_in: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        channels_out = 4 * width if bottleneck else width
        if bottleneck:
            self.convolutions = nn.Sequential(
                convolution(channels_in, width, 1),
                self.relu,
                convolution(width, width, 3, stride),
                self.relu,
                convolution(width, channels_out, 1),
            )
        else:
            self.convolutions = nn.Sequential(
                convolution(channels_in, width, 3, stride), self.relu, convolution(width, width, 3)
            )
        same = stride == 1 and channels_in == channels_out
        self.shortcut = nn.Identity() if same else convolution(channels_in, channels_out, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.convolutions(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Images (batch, channels, size, size) to logits (batch, classes).

    `layers` counts the blocks of each stage; each stage but the first halves the image and doubles the width.
    With `small_images` the first convolution is 3x3 at stride 1, without pooling, as the paper has it for CIFAR.
    """

    def __init__(
        self, channels: int, width: int, layers: list[int], bottleneck: bool, classes: int, small_images: bool
    ) -> None:
        super().__init__()
        if small_images:
            self.stem = nn.Sequential(convolution(channels, width, 3), nn.ReLU())
        else:
            self.stem = nn.Sequential(
                convolution(channels, width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
            )
        blocks, before = [], width
        for stage, count in enumerate(layers):
            for number in range(count):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Block(before, width * 2**stage, stride, bottleneck))
                before = width * 2**stage * (4 if bottleneck else 1)
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(self.pool(x).flatten(1))
