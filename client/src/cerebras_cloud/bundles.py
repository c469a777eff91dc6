"""`client.bundles`: uploaded code, addressed by the digest of its tar."""

from cerebras_cloud.bundle import Bundle
from cerebras_cloud.errors import ApiError
from cerebras_cloud.transport import Transport
from cerebras_contract.errors import ErrorCode
from cerebras_contract.wire import BundleView


class Bundles:
    """Bundles of the cluster."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def find(self, sha256: str) -> BundleView | None:
        """The bundle, None where the cluster does not have it."""
        try:
            response = self._transport.request("GET", f"/bundles/{sha256}")
        except ApiError as error:
            if error.report.code is ErrorCode.NOT_FOUND:
                return None
            raise
        return BundleView.model_validate_json(response.content)

    def upload(self, bundle: Bundle) -> BundleView:
        """Send a bundle; sending it again changes nothing."""
        headers = {"Content-Type": "application/x-tar"}
        response = self._transport.request("PUT", f"/bundles/{bundle.sha256}", file=bundle.tar, headers=headers)
        return BundleView.model_validate_json(response.content)
