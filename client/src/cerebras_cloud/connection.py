"""Where the cluster is, and the key to it."""

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from cerebras_cloud.errors import BadInput, NotRunning
from cerebras_contract.cluster import (
    API_KEY_VARIABLE,
    DEFAULT_HOME,
    HOME_VARIABLE,
    URL_VARIABLE,
    ClusterHome,
    Connection,
)

KEY_CHARACTERS = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class Endpoint:
    """URL and API key of a cluster. The key is in no `repr`.

    `home_option` is what a command needs to mean this cluster, as ` --home DIR`; advice in errors carries it.
    """

    url: str
    api_key: str = field(repr=False)
    home_option: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        # The HTTP library refuses such a key too, but with a message that shows it.
        if not KEY_CHARACTERS.fullmatch(self.api_key):
            raise BadInput(
                "the API key is empty or has characters that no key has, such as spaces. "
                f"Look at {API_KEY_VARIABLE}, or at the file api_key in the cluster's home."
            )


def find_endpoint(home: Path | None = None) -> Endpoint:
    """The cluster of `home` if given, else of CEREBRAS_CLOUD_URL, else of the default home.

    `NotRunning` where a home has no running cluster, `BadInput` where one variable is set without the other.
    """
    url = os.environ.get(URL_VARIABLE)
    if home is None and url:
        key = os.environ.get(API_KEY_VARIABLE)
        if not key:
            raise BadInput(f"{URL_VARIABLE} is set but {API_KEY_VARIABLE} is not: set both, or neither.")
        return Endpoint(url.rstrip("/"), key.strip())
    return _endpoint_of_home(ClusterHome(cluster_home(home)))


def cluster_home(home: Path | None) -> Path:
    """The home as given, else of CEREBRAS_CLOUD_HOME, else ~/.cerebras-cloud."""
    return Path(home or os.environ.get(HOME_VARIABLE) or DEFAULT_HOME).expanduser().absolute()


def _endpoint_of_home(home: ClusterHome) -> Endpoint:
    try:
        connection = Connection.model_validate_json(home.connection.read_bytes())
        return Endpoint(connection.url, home.api_key.read_text().strip(), _home_option(home.root))
    except FileNotFoundError:
        raise not_running(home.root) from None
    except PermissionError as error:
        raise BadInput(f"cannot read {error.filename}: only the cluster's owner can.") from None
    except ValidationError:
        raise BadInput(f"{home.connection} is damaged: `cerebras-cloud down`, then `up`, writes it anew.") from None


def not_running(home: Path) -> NotRunning:
    """The error for a home whose cluster is not up: one line that says how to start it."""
    return NotRunning(f"no cluster is running at {home}. Start one: cerebras-cloud up --detach{_home_option(home)}")


def _home_option(home: Path) -> str:
    return "" if home == cluster_home(None) else f" --home {shlex.quote(str(home))}"
