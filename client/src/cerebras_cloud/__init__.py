"""Python SDK and command line of the Cerebras Cloud emulator."""

from cerebras_cloud.client import Client
from cerebras_cloud.connection import Endpoint, find_endpoint
from cerebras_cloud.errors import ApiError, BadInput, CloudError, ConnectionLost, NotRunning
from cerebras_cloud.submission import Submission

__all__ = [
    "ApiError",
    "BadInput",
    "Client",
    "CloudError",
    "ConnectionLost",
    "Endpoint",
    "NotRunning",
    "Submission",
    "find_endpoint",
]
