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
    "broker_transport_options": {
        "visibility_timeout": 600,
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 25,
        "retry_on_timeout": True,
        "max_retries": 0,  # of a sender: a dead Redis must not hold up a request, the poll covers it
    },
}


def make_celery(broker_url: str) -> Celery:
    """A Celery application for sending and for receiving; it opens no connection yet."""
    celery = Celery("cerebras", broker=broker_url, set_as_current=False)
    celery.conf.update(CELERY_SETTINGS)
    return celery
