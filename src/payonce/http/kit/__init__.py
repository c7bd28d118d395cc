"""What the HTTP routes of services are written with: who calls, what they may, answers kept by key, and problems."""
