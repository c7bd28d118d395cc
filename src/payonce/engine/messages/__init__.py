"""Messages: the model, policies, queue ports, handlers, workers, transactions and the job log."""
