"""`python -m kedge` is `kedge`."""

from kedge.cli import main

if __name__ == "__main__":
    main()
