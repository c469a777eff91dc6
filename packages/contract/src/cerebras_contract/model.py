"""The base of every model in the contract."""

from pydantic import BaseModel, ConfigDict


class ContractModel(BaseModel):
    """Immutable, refuses unknown fields, and writes NaN and infinities as the strings JSON can carry."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")
