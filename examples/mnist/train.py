"""Trains a small convolutional network on 4,000 MNIST digits and tests it on 1,000 others.

Runs by hand (`python train.py`) and as a job (`cerebras-cloud submit train.py --config run.yaml`).
"""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

import cerebras_pytorch as cbt
from cerebras_pytorch import nn
from cerebras_pytorch.amp import MixedPrecision

HERE = Path(__file__).parent
PIXEL_MEAN, PIXEL_STANDARD_DEVIATION = 0.1307, 0.3081  # of the MNIST training set


class DigitClassifier(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(2 * width * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.relu(self.conv1(images)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.dropout(self.relu(self.fc1(x.flatten(1))))
        return self.fc2(x)


def read_idx(path: Path) -> np.ndarray:
    """Read an IDX file: a magic number whose last byte counts dimensions, their sizes, then unsigned bytes."""
    content = gzip.decompress(path.read_bytes())
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">i4", count=dimensions, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def digits(folder: Path, part: str) -> TensorDataset:
    """Images (N, 1, 28, 28), normalised, and labels (N)."""
    images = torch.from_numpy(read_idx(folder / f"{part}-images-idx3-ubyte.gz").astype(np.float32)) / 255
    labels = torch.from_numpy(read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64))
    return TensorDataset(((images - PIXEL_MEAN) / PIXEL_STANDARD_DEVIATION).unsqueeze(1), labels)


def accuracy(compiled_model: torch.nn.Module, loader: cbt.utils.data.DataLoader) -> float:
    correct = total = 0
    for images, labels in loader:
        correct += int((compiled_model(images).argmax(dim=1) == labels).sum())
        total += len(labels)
    return correct / total


def main() -> None:
    with cbt.init_context(config=HERE / "run.yaml") as context:
        params = context.params
        torch.manual_seed(params["runconfig"].get("seed", 0))
        model = cbt.nn.DataParallel(DigitClassifier(**params["model"]))
        optimizer = torch.optim.Adam(model.parameters(), lr=params["optimizer"]["learning_rate"])
        criterion = nn.CrossEntropyLoss()

        train_input, eval_input = params["train_input"], params["eval_input"]
        folder = HERE / train_input["data_dir"]
        train_loader = cbt.utils.data.DataLoader(
            torch.utils.data.DataLoader(digits(folder, "train"), train_input["batch_size"], shuffle=True)
        )
        eval_loader = cbt.utils.data.DataLoader(
            torch.utils.data.DataLoader(digits(folder, "t10k"), eval_input["batch_size"])
        )

        print("Compiling model...")
        precision = MixedPrecision(param_dtype=torch.float16, loss_scale=1024.0)
        compiled_model = cbt.compile(model, optimizer, criterion, train_loader, mixed_precision=precision)
        print("Compilation finished.")

        model.train()
        for _ in range(train_input["epochs"]):
            for images, labels in train_loader:
                optimizer.zero_grad()
                loss = criterion(compiled_model(images), labels)
                loss.backward()
                optimizer.step()

        model.eval()
        test_accuracy = accuracy(compiled_model, eval_loader)
        cbt.log_metrics({"test_accuracy": test_accuracy})
        print(f"Test accuracy: {test_accuracy:.1%}")


if __name__ == "__main__":
    main()
