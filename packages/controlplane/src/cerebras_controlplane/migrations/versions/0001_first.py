"""The first shape: bundles, jobs, stages, artifacts, telemetry."""

import sqlalchemy as sa
from alembic import op


revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
COMPILING = sa.text("kind = 'compile' AND status = 'running'")


def upgrade() -> None:
    op.create_table(
        "artifacts",
        sa.Column("artifact_key", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("size_bytes", INTEGER, nullable=False),
        sa.Column("files", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("artifact_key", name="pk_artifacts"),
    )
    op.create_table(
        "bundles",
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("size_bytes", INTEGER, nullable=False),
        sa.Column("files", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("sha256", name="pk_bundles"),
    )
    op.create_table(
        "outbox",
        sa.Column("number", INTEGER, autoincrement=True, nullable=False),
        sa.Column("queue", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_outbox"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("busy_with", sa.String(), nullable=True),
        sa.Column("compiler_version", sa.String(), nullable=False),
        sa.Column("torch_version", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_workers"),
    )
    op.create_table(
        "input_keys",
        sa.Column("input_key", sa.String(), nullable=False),
        sa.Column("artifact_key", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["artifact_key"], ["artifacts.artifact_key"], name="fk_input_keys_artifact_key"
        ),
        sa.PrimaryKeyConstraint("input_key", name="pk_input_keys"),
    )
    op.create_table(
        "jobs",
        sa.Column("number", INTEGER, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("bundle_sha256", sa.String(), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("system", sa.String(), nullable=False),
        sa.Column("priority", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("artifact_key", sa.String(), nullable=True),
        sa.Column("progress", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("log_size_bytes", INTEGER, nullable=False),
        sa.Column("metric_sequence", INTEGER, nullable=False),
        sa.Column("event_sequence", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["bundle_sha256"], ["bundles.sha256"], name="fk_jobs_bundle_sha256"),
        sa.PrimaryKeyConstraint("number", name="pk_jobs"),
        sa.UniqueConstraint("id", name="uq_jobs_id"),
        sa.UniqueConstraint("idempotency_key", name="uq_jobs_idempotency_key"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("step", INTEGER, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("size_bytes", INTEGER, nullable=False),
        sa.Column("files", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_checkpoints_job_number"),
        sa.PrimaryKeyConstraint("job_number", "step", name="pk_checkpoints"),
    )
    op.create_table(
        "events",
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("message", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_events_job_number"),
        sa.PrimaryKeyConstraint("job_number", "sequence", name="pk_events"),
    )
    op.create_table(
        "log_chunks",
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("offset", INTEGER, nullable=False),
        sa.Column("size_bytes", INTEGER, nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_log_chunks_job_number"),
        sa.PrimaryKeyConstraint("job_number", "offset", name="pk_log_chunks"),
    )
    op.create_table(
        "metrics",
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", INTEGER, nullable=False),
        sa.Column("value", sa.Double(), nullable=True),
        sa.Column("time", sa.Double(), nullable=False),
        sa.Column("device_seconds", sa.Double(), nullable=True),
        sa.Column("sequence", INTEGER, nullable=False),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_metrics_job_number"),
        sa.PrimaryKeyConstraint("job_number", "name", "step", name="pk_metrics"),
    )
    op.create_index("ix_metrics_sequence", "metrics", ["job_number", "sequence"], unique=False)

    op.create_table(
        "stages",
        sa.Column("number", INTEGER, autoincrement=True, nullable=False),
        sa.Column("job_number", INTEGER, nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("priority", sa.String(), nullable=False),
        sa.Column("source_key", sa.String(), nullable=False),
        sa.Column("attempt", INTEGER, nullable=False),
        sa.Column("token", sa.String(), nullable=True),
        sa.Column("worker", sa.String(), nullable=True),
        sa.Column("lease_expires_at", sa.Double(), nullable=True),
        sa.Column("queued_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("error", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["job_number"], ["jobs.number"], name="fk_stages_job_number"),
        sa.PrimaryKeyConstraint("number", name="pk_stages"),
    )
    op.create_index("ix_stages_claim", "stages", ["kind", "status", "priority", "number"], unique=False)
    op.create_index("ix_stages_job_number", "stages", ["job_number"], unique=False)
    op.create_index(
        "uq_stages_compiling",
        "stages",
        ["source_key"],
        unique=True,
        sqlite_where=COMPILING,
        postgresql_where=COMPILING,
    )


def downgrade() -> None:
    for table in (
        "stages",
        "metrics",
        "log_chunks",
        "events",
        "checkpoints",
        "jobs",
        "input_keys",
        "workers",
        "outbox",
        "bundles",
        "artifacts",
    ):
        op.drop_table(table)
