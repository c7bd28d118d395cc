"""The queue on Google Cloud Tasks, or on a server that speaks its language: messages are brought over HTTP.

PostgreSQL keeps each message in the outbox until it is settled; a task is only the errand that brings it.

names       what tasks and queues are called there
client      the task service, connected when it is first needed
feed        putting messages
relay       from the outbox to the task service
box         deliveries that wait for a run, and the answers they wait for
door        where the task service knocks
oidc        who may knock
queue       runs: begun with a token of PostgreSQL's, settled there, and only then answered
statements  their SQL
admin       the operator's hand
refill      what the task service has lost is brought anew
sync        the queues there, from the policies here
tune        rate and concurrency from what was measured
opening     all of it, for one process
"""
