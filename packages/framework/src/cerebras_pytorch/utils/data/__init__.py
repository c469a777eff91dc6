"""Data loaders, and datasets over files that people have."""

from cerebras_pytorch.data.files import HDF5Dataset, TarDataset, TFRecordDataset
from cerebras_pytorch.data.loader import DataLoader

__all__ = ["DataLoader", "HDF5Dataset", "TFRecordDataset", "TarDataset"]
