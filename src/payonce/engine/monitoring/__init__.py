"""What operators and machines read of a running installation: metrics, alerts, timelines, vendor health."""
