"""`python -m payonce` is the command `payonce`."""

from payonce.cli import main

main()
