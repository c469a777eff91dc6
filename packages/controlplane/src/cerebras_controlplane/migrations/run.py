"""Runs the migrations."""

from alembic import command
from alembic.config import Config

from cerebras_controlplane.db import open_engine


def migrate(database_url: str) -> None:
    """Bring a database to the newest shape; does nothing where it has it."""
    config = Config()
    config.set_main_option("script_location", "cerebras_controlplane:migrations")
    engine = open_engine(database_url)
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    engine.dispose()
