"""Queues on Google Cloud Tasks, or on a compatible server: messages are delivered over HTTP.

PostgreSQL keeps each message in the outbox until it is settled; a task only triggers its delivery.

names         names of tasks and queues at the task service
client        the task service, connected on first use
feed          puts messages
relay         creates tasks from the outbox
deliveries    deliveries waiting for a run, and the responses they wait for
endpoint      the HTTP endpoint that the task service calls
oidc          authenticates the task service
queue         runs: begun with a token from PostgreSQL, settled there, and only then answered
statements    the SQL of runs
depths        states and counts of messages
admin         operations for operators
refill        recreates tasks that the task service has lost
sync          makes the task service's queues match the policies
tune          derives rate and concurrency from measurements
assembly      all of it, for one process
"""
