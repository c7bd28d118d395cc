"""Small pure things with no input or output of ours."""
