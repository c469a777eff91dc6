"""Alembic's environment: runs on the connection that `run.migrate` opened."""

from alembic import context

from cerebras_controlplane.models import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
