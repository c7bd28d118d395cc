"""The platform's own roles: delivering webhooks, and the Cloud Tasks server."""

from typing import Final

from payonce.engine import webhooks
from payonce.service import Service, lazily
from payonce.taskserver.metrics import observe_tasks

WEBHOOKS: Final = Service(
    "webhooks", None, {"sender": [webhooks.deliver]}, resources=lazily("payonce.app.resources:open_webhooks")
)
CLOUDTASKS: Final = Service(
    "cloudtasks",
    "payonce.taskserver",
    {"server": ()},
    runs={"server": lazily("payonce.app.resources:open_task_server")},
    observes=observe_tasks,
)
SERVICE: Final = (WEBHOOKS, CLOUDTASKS)
