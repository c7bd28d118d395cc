"""The composition root: which services there are, and how a process is assembled from them."""
