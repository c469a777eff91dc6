"""Attention written out by hand is the attention of the library."""

import math

import torch
from tests.fixtures.training import compiled
from torch import nn

from cerebras_contract.plans import Phase
from cerebras_wafer.compiler.ir.kernels import Kernel, KernelGraph, KernelKind

WIDTH, HEADS, TOKENS = 8, 2, 6


class Attention(nn.Module):
    """Rows of an image as tokens; `written_out` says how the core is spelled."""

    def __init__(self, written_out: bool) -> None:
        super().__init__()
        self.written_out = written_out
        self.inwards, self.head = nn.Linear(6, 3 * WIDTH), nn.Linear(TOKENS * WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.inwards(x.squeeze(1)).split(WIDTH, dim=2)
        query, key, value = (part.view(-1, TOKENS, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        if self.written_out:
            scores = query @ key.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
            mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
            attended = scores.masked_fill(~mask, float("-inf")).softmax(3) @ value
        else:
            attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(attended.transpose(1, 2).flatten(1))


def attention_of(graph: KernelGraph, phase: Phase) -> Kernel:
    (kernel,) = (kernel for kernel in graph.of(phase) if kernel.kind == KernelKind.ATTENTION)
    return kernel


def test_both_spellings_are_the_same_work():
    by_hand, library = compiled(Attention(written_out=True)).graph, compiled(Attention(written_out=False)).graph
    one, other = attention_of(by_hand, Phase.FORWARD), attention_of(library, Phase.FORWARD)
    assert one.multiply_adds == other.multiply_adds
    assert one.element_work == other.element_work
    assert [kernel.kind for kernel in by_hand.of(Phase.FORWARD) if kernel.multiply_adds] == [
        kernel.kind for kernel in library.of(Phase.FORWARD) if kernel.multiply_adds
    ]


def test_backward_is_four_products_of_the_scores():
    backward = attention_of(compiled(Attention(written_out=True)).graph, Phase.BACKWARD)
    forward = attention_of(compiled(Attention(written_out=True)).graph, Phase.FORWARD)
    assert backward.multiply_adds == 2 * forward.multiply_adds
    assert backward.element_work == forward.element_work


def test_readers_of_what_was_fused_read_the_attention():
    graph = compiled(Attention(written_out=True)).graph
    name = attention_of(graph, Phase.FORWARD).name
    readers = [kernel.name for kernel in graph.of(Phase.FORWARD) if name in kernel.producers]
    assert readers
    assert not any("softmax" in kernel.name for kernel in graph.of(Phase.FORWARD))


class Products(nn.Module):
    """Two products with a softmax between them, which are no attention: the second is of other things."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.squeeze(1)
        first = (x @ x.transpose(1, 2)).softmax(2)
        return self.head((x[:, :, :2].transpose(1, 2) @ first).repeat(1, 3, 1).flatten(1))


def test_what_is_no_attention_stays_as_it_is():
    kinds = [kernel.kind for kernel in compiled(Products()).graph.of(Phase.FORWARD)]
    assert KernelKind.ATTENTION not in kinds
    assert KernelKind.SOFTMAX in kinds
