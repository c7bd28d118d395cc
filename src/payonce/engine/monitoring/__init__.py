"""Monitoring of a running installation, for operators and machines: metrics, alerts, timelines, vendor health."""
