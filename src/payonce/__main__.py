"""The command `payonce`, also as `python -m payonce`."""

from payonce.kit.collector import freeze_for_exit, relax_for_imports


def main() -> None:
    relax_for_imports()
    from payonce.cli.application import main as run

    try:
        run()
    finally:
        freeze_for_exit()


if __name__ == "__main__":
    main()
