"""Small real data that the examples share: handwritten digits and Shakespeare's plays.

The digits lie in `mnist/data`, the text in `shakespeare`; each has a README with its source.
"""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

HERE = Path(__file__).resolve().parent
PIXEL_MEAN, PIXEL_STANDARD_DEVIATION = 0.1307, 0.3081  # of the MNIST training set
IGNORED = -100  # a target that cross_entropy leaves out
MASKED_SHARE = 0.15  # of the characters, as in the BERT paper


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file: a magic number whose last byte counts dimensions, their sizes, then unsigned bytes."""
    content = gzip.decompress(path.read_bytes())
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=dimensions, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def digit_pixels(part: str) -> torch.Tensor:
    """Images (N, 1, 28, 28) with values from 0 to 1. `part` is `train` (4,000 images) or `t10k` (1,000)."""
    images = read_idx(HERE / "mnist" / "data" / f"{part}-images-idx3-ubyte.gz")
    return torch.from_numpy(images.astype(np.float32)).unsqueeze(1) / 255


def digits(part: str) -> TensorDataset:
    """Normalised images (N, 1, 28, 28) and labels (N)."""
    labels = read_idx(HERE / "mnist" / "data" / f"{part}-labels-idx1-ubyte.gz")
    images = (digit_pixels(part) - PIXEL_MEAN) / PIXEL_STANDARD_DEVIATION
    return TensorDataset(images, torch.from_numpy(labels.astype(np.int64)))


class ScaledDigits(Dataset):
    """Digits enlarged to `image_size` pixels and repeated over `channels`, for models of other images."""

    def __init__(self, part: str, image_size: int, channels: int) -> None:
        self.digits, self.image_size, self.channels = digits(part), image_size, channels

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, label = self.digits[number]
        if self.image_size != image.shape[-1]:
            image = torch.nn.functional.interpolate(image[None], size=(self.image_size, self.image_size))[0]
        return image.expand(self.channels, -1, -1), label


class InkOfNoisyDigits(Dataset):
    """Noisy images (1, size, size) of digits, and for each pixel whether it is ink: 1 or 0, (size, size)."""

    def __init__(self, part: str, image_size: int, noise: float) -> None:
        self.pixels, self.image_size, self.noise = digit_pixels(part), image_size, noise

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.pixels[number]
        if self.image_size != image.shape[-1]:
            image = torch.nn.functional.interpolate(image[None], size=(self.image_size, self.image_size))[0]
        generator = torch.Generator().manual_seed(number)
        noisy = image + self.noise * torch.randn(image.shape, generator=generator)
        return noisy, (image[0] > 0.5).long()


def shakespeare() -> str:
    return (HERE / "shakespeare" / "tinyshakespeare.txt").read_text(encoding="utf-8")


class Characters:
    """Numbers for the 65 characters of the plays, in the order of their code points; then a mask and a padding."""

    def __init__(self, text: str) -> None:
        self.known = np.unique(code_points(text))
        self.mask, self.padding = len(self.known), len(self.known) + 1

    def encode(self, text: str) -> torch.Tensor:
        return torch.from_numpy(np.searchsorted(self.known, code_points(text)))


def code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)


class NextCharacters(Dataset):
    """Windows of `length` characters, and the characters that follow each: both (length) of int64."""

    def __init__(self, length: int) -> None:
        text = shakespeare()
        self.tokens, self.length = Characters(text).encode(text), length
        self.stride = max(1, length // 8)

    def __len__(self) -> int:
        return (len(self.tokens) - self.length - 1) // self.stride + 1

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.tokens[number * self.stride :][: self.length + 1]
        return window[:-1], window[1:]


class MaskedCharacters(Dataset):
    """Speeches with some characters masked: `((tokens, is_text), target)`, each (length).

    `is_text` is false in the padding behind a short speech. The target is `IGNORED` where nothing was masked.
    Of the masked characters 80 % become the mask, 10 % another character, and 10 % stay, as in the BERT paper.
    """

    def __init__(self, length: int) -> None:
        text = shakespeare()
        self.characters, self.length = Characters(text), length
        self.speeches = text.split("\n\n")

    def __len__(self) -> int:
        return len(self.speeches)

    def __getitem__(self, number: int) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        speech = self.characters.encode(self.speeches[number][: self.length])
        tokens = torch.full((self.length,), self.characters.padding)
        tokens[: len(speech)] = speech
        is_text = torch.arange(self.length) < len(speech)
        generator = torch.Generator().manual_seed(number)
        masked = is_text & (torch.rand(self.length, generator=generator) < MASKED_SHARE)
        target = torch.where(masked, tokens, IGNORED)
        fate = torch.rand(self.length, generator=generator)
        others = torch.randint(len(self.characters.known), (self.length,), generator=generator)
        tokens = torch.where(masked & (fate < 0.8), self.characters.mask, tokens)
        return (torch.where(masked & (fate >= 0.9), others, tokens), is_text), target
