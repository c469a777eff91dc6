"""Datasets over files that people have: HDF5, TFRecord, tar. Map datasets all, so that a resume goes by position."""

from cerebras_pytorch.data.files.hdf5 import HDF5Dataset
from cerebras_pytorch.data.files.tar import TarDataset
from cerebras_pytorch.data.files.tfrecord import TFRecordDataset

__all__ = ["HDF5Dataset", "TFRecordDataset", "TarDataset"]
