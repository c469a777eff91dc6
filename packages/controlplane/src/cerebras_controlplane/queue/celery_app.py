"""The Celery application that rings workers, and the settings that hours-long stages need."""

from celery import Celery

WAKE_TASK = "cerebras.wake"

# A message is only a wake-up, so it is acknowledged at once and its loss or repetition does not matter. Late
# acknowledgement runs a long task twice when a connection drops.
CELERY_SETTINGS = {
    "task_acks_late": False,
    "worker_disable_prefetch": True,
    "worker_prefetch_multiplier": 1,
    "task_reject_on_worker_lost": False,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "task_ignore_result": True,
    "task_serializer": "json",
    "accept_content": ["json"],
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_enable_remote_control": False,  # its keys in Redis never expire
    "worker_send_task_events": False,
    "worker_hijack_root_logger": False,
}
TRANSPORT_OPTIONS = {
    "visibility_timeout": 600,
    "socket_connect_timeout": 2,
    "socket_keepalive": True,
    "health_check_interval": 25,
    "retry_on_timeout": True,
}


def make_listener(broker_url: str) -> Celery:
    """A Celery application that waits for rings; it opens no connection yet."""
    return _make(broker_url, {"socket_timeout": 30})


def make_ringer(broker_url: str) -> Celery:
    """A Celery application that rings. It gives up soon: nobody may wait for a Redis that does not answer,
    since workers find the work by polling."""
    return _make(broker_url, {"socket_timeout": 2, "max_retries": 0})


def _make(broker_url: str, transport_options: dict[str, float]) -> Celery:
    celery = Celery("cerebras", broker=broker_url, set_as_current=False)
    celery.conf.update(CELERY_SETTINGS)
    celery.conf.broker_transport_options = TRANSPORT_OPTIONS | transport_options
    return celery
