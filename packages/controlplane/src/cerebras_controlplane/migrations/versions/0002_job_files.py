"""Files that a job's process has left beside its checkpoints."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("job_files")
