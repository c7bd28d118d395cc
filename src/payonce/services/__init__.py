"""What payonce is run for: each folder is a service with the rooms of its neighbours."""
