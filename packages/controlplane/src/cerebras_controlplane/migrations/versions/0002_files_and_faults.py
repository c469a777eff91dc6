"""Files that a job's process has left beside its checkpoints, faults that are sent to it, and a worker's processor."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    with op.batch_alter_table("workers") as workers:  # those that live register again
        workers.add_column(sa.Column("processor", sa.String(), nullable=False, server_default=""))
        workers.alter_column("processor", server_default=None)
    op.create_table(
        "job_files",
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("size_bytes", INTEGER, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_job_files_job_number"),
        sa.PrimaryKeyConstraint("job_number", "name", name="pk_job_files"),
    )
    op.create_table(
        "job_faults",
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("number", INTEGER, nullable=False),
        sa.Column("fault", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("delivered", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_job_faults_job_number"),
        sa.PrimaryKeyConstraint("job_number", "number", name="pk_job_faults"),
    )


def downgrade() -> None:
    op.drop_column("workers", "processor")
    op.drop_table("job_faults")
    op.drop_table("job_files")
