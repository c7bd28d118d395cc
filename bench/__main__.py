"""`python -m bench` is the command `./dev bench`."""

from bench.command import main

main()
