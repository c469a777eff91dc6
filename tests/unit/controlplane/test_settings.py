import pytest

from cerebras_contract.errors import ErrorCode, ReportedError
from cerebras_controlplane.settings import read_settings


def test_missing_settings_are_named_without_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_BROKER_URL", "redis://:canary@127.0.0.1/0")
    monkeypatch.setenv("CEREBRAS_LEASE_SECONDS", "canary")
    with pytest.raises(ReportedError) as refused:
        read_settings()
    assert refused.value.report.code is ErrorCode.CONFIG_INVALID
    assert "CEREBRAS_DATABASE_URL (missing)" in refused.value.report.message
    assert "CEREBRAS_LEASE_SECONDS" in refused.value.report.message
    assert "canary" not in str(refused.value)
