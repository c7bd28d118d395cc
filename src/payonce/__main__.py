"""`python -m payonce` is the command `payonce`."""

from payonce.cli.application import main

main()
